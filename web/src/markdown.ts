/**
 * Markdown that models write, as HTML, block by block.
 *
 * It is hostile input. HTML in it is shown as text, but for a few tags without attributes; images are links; then
 * everything goes through `sanitize`. While an answer streams, only its last block is parsed again.
 */

import { Marked, type Token, type TokenizerAndRendererExtension, type Tokens } from "marked";
import { extras, want } from "./extras";
import { sanitize } from "./sanitize";
import { words } from "./words";

export const escape = (text: string): string =>
  text.replace(/[&<>"']/g, (char) => `&#${char.charCodeAt(0)};`);

const PLAIN_TAG = /^<\/?(?:b|br|del|em|i|kbd|mark|s|small|strong|sub|sup|u)\s*\/?>$/i;
const SAFE_LINK = /^(?:https?:\/\/|mailto:)/i;
const MOST_HIGHLIGHTED = 50_000; // characters: beyond, highlighting would hold up the page

function math(name: string, level: "block" | "inline", start: RegExp, whole: RegExp): TokenizerAndRendererExtension {
  return {
    name,
    level,
    start: (source) => {
      const at = source.search(start);
      return at < 0 ? undefined : at;
    },
    tokenizer(source) {
      const found = whole.exec(source);
      const tex = found?.slice(1).find((part) => part !== undefined);
      if (!found || tex === undefined) return undefined;
      return { type: name, raw: found[0], text: tex.trim(), display: level === "block" || /^(?:\$\$|\\\[)/.test(found[0]) };
    },
    renderer: (token) => formula(token.text, token.display),
  };
}

function formula(tex: string, display: boolean): string {
  want("formula");
  if (!extras.formula) return `<code class="tex">${escape(tex)}</code>`;
  const made = extras.formula(tex, display);
  return display ? `<div class="formula">${made}</div>` : made;
}

/** Pretty where it is JSON in one line. */
function prettyJson(code: string): string {
  try {
    return code.includes("\n") ? code : JSON.stringify(JSON.parse(code), null, 2);
  } catch {
    return code;
  }
}

function codeBlock(given: string, language: string): string {
  const code = language === "json" ? prettyJson(given) : given;
  want("highlight");
  const lit = code.length <= MOST_HIGHLIGHTED && language ? extras.highlight?.(code, language) : null;
  const label = `<span class="language">${escape(language)}</span>`;
  const copy = `<button class="copy">${escape(words.copy)}</button>`;
  return `<figure class="code" dir="ltr"><figcaption>${label}${copy}</figcaption><pre><code>${lit ?? escape(code)}</code></pre></figure>`;
}

const marked = new Marked({
  gfm: true,
  breaks: false,
  renderer: {
    html: ({ text }) => (PLAIN_TAG.test(text.trim()) ? text : escape(text)),
    code: ({ text, lang }) => codeBlock(text, (lang ?? "").trim().split(/\s/)[0]?.toLowerCase() ?? ""),
    image({ href, text }) {
      const label = escape(text || href);
      return SAFE_LINK.test(href) ? `<a href="${escape(href)}">${label}</a>` : label;
    },
    link({ href, tokens }) {
      const label = this.parser.parseInline(tokens);
      return SAFE_LINK.test(href) ? `<a href="${escape(href)}">${label}</a>` : label;
    },
    table(token) {
      const row = (cells: Tokens.TableCell[]) => `<tr>${cells.map((cell) => this.tablecell(cell)).join("")}</tr>`;
      const body = token.rows.map(row).join("");
      return `<div class="table"><table><thead>${row(token.header)}</thead><tbody>${body}</tbody></table></div>`;
    },
  },
  extensions: [
    math("mathBlock", "block", /\$\$|\\\[/, /^ {0,3}(?:\$\$([^$]+?)\$\$|\\\[([\s\S]+?)\\\]) *(?:\n|$)/),
    math("mathInline", "inline", /\$|\\[([]/, /^(?:\$\$([^$\n]+?)\$\$|\$(?![\s$])([^$\n]*?[^\s$\\])\$(?!\d)|\\\(([^\n]+?)\\\)|\\\[([^\n]+?)\\\])/),
  ],
});

export interface Block {
  raw: string;
  html: string; // sanitised
}

function render(token: Token): Block {
  return { raw: token.raw, html: sanitize(marked.parser([token])) };
}

const DEFINITION = /^ {0,3}\[[^\]\n]+\]:/m; // of a link: it changes other blocks

/** The blocks of a whole text. Those that are known from its growing are not made again. */
export function blocksOf(text: string, known: Block[] = []): Block[] {
  const same = new Map(DEFINITION.test(text) ? [] : known.map((block) => [block.raw, block]));
  const tokens = marked.lexer(text).filter((token) => token.type !== "space" && token.type !== "def");
  return tokens.map((token) => same.get(token.raw) ?? render(token));
}

/** A text that grows. Blocks before the last one are final, and are neither parsed nor drawn again. */
export class GrowingMarkdown {
  private done: Block[] = [];
  private taken = 0; // characters in `done`
  private text = "";

  /** The blocks that do not change any more. */
  get complete(): Block[] {
    return this.done;
  }

  update(text: string): Block[] {
    if (!text.startsWith(this.text)) {
      this.done = [];
      this.taken = 0;
    }
    this.text = text;
    const tokens = marked.lexer(text.slice(this.taken));
    const last = tokens.findLastIndex((token) => token.type !== "space");
    for (const token of tokens.slice(0, Math.max(last, 0))) {
      this.taken += token.raw.length;
      if (token.type !== "space" && token.type !== "def") this.done.push(render(token));
    }
    const tail = hideHalfMarkers(text.slice(this.taken));
    return tail.trim() ? [...this.done, ...blocksOf(tail)] : this.done;
  }
}

/** A text without what may become a marker: a fence whose line is not complete, a marker that is only opened. */
export function hideHalfMarkers(text: string): string {
  return text
    .replace(/(^|\n)[ \t]*(?:`{3,}[^\n`]*|~{3,}[^\n]*|`{1,2}|~{1,2})$/, "$1")
    .replace(/(^|[\s(])(?:\*{1,3}|_{1,3}|`{1,2}|!?\[)$/, "$1");
}
