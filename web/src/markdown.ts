/**
 * Markdown that models write, as HTML, block by block.
 *
 * It is hostile input. HTML in it is shown as text, but for a few tags without attributes; images are links; then
 * everything goes through `sanitize`. While an answer streams, only its last block is parsed again.
 */

import { Marked, type Token, type TokenizerAndRendererExtension, type Tokens } from "marked";
import { extras, loaded, want } from "./extras";
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
  if (!extras.formula) lack("formula");
  const typed = `<code class="tex">${escape(tex)}</code>`;
  if (!extras.formula) return typed;
  const made = orElse(() => extras.formula?.(tex, display) ?? typed, () => typed);
  return display ? `<div class="formula">${made}</div>` : made;
}

/** Parsers recurse: a text that nests too deeply for them overflows the stack, and shows as typed. */
function orElse<Made>(make: () => Made, otherwise: () => Made): Made {
  try {
    return make();
  } catch {
    return otherwise();
  }
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
  if (language && !extras.highlight) lack("highlight");
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
    // Up to the next marker, or texts of many would be read to their end for each. After several lines, text may follow.
    math("mathBlock", "block", /\$\$|\\\[/, /^ {0,3}(?:\$\$([^$]+?)\$\$|\\\[((?:[^\\]|\\[^[\]])+?)\\\])(?: *(?:\n|$)|(?<=\n *(?:\$\$|\\\])))/),
    math("mathInline", "inline", /\$|\\[([]/, /^(?:\$\$([^$\n]+?)\$\$|\$(?![\s$])([^$\n]*?[^\s$\\])\$(?!\d)|\\\(([^\n]+?)\\\)|\\\[([^\n]+?)\\\])/),
  ],
});

export interface Block {
  raw: string;
  html: string; // sanitised
  token?: Token; // where it lacks something that is being loaded
}

let lacking = false;

function lack(part: "highlight" | "formula"): void {
  lacking = true;
  want(part);
}

function render(token: Token): Block {
  lacking = false;
  const html = orElse(
    () => sanitize(marked.parser([token])),
    () => sanitize(`<p class="as-typed">${escape(token.raw)}</p>`),
  );
  return { raw: token.raw, html, ...(lacking ? { token } : {}) };
}

const lexed = (text: string): Token[] => orElse<Token[]>(() => marked.lexer(text), () => [{ type: "typed", raw: text }]);

const again = (block: Block): Block => (block.token ? render(block.token) : block);

const DEFINITION = /^ {0,3}\[[^\]\n]+\]:/m; // of a link: it changes other blocks

/** The blocks of a whole text. */
export function blocksOf(text: string): Block[] {
  return lexed(text).filter((token) => token.type !== "space" && token.type !== "def").map(render);
}

const CHEAP = 6; // ms: a last block that takes less is made again for every frame
const SHARE = 5; // one that takes longer has this part of the time, so that the page can be used meanwhile

/** A text that grows. Blocks before the last one are final, and are neither parsed nor drawn again. */
export class GrowingMarkdown {
  private done: Block[] = [];
  private taken = 0; // characters in `done`
  private text = "";
  private loaded = loaded();
  private shown: Block[] = [];
  private due = 0; // when a last block that is long is made again

  constructor(private readonly now = () => performance.now()) {}

  /** The blocks so far. A last block that is long (a table of hundreds of rows) may be behind: see `wait`. */
  update(text: string): Block[] {
    const start = this.now();
    if (start < this.due && text.startsWith(this.text)) return this.shown;
    this.take(text);
    const tail = hideHalfMarkers(text.slice(this.taken));
    this.shown = tail.trim() ? [...this.done, ...blocksOf(tail)] : [...this.done];
    const end = this.now();
    this.due = end - start > CHEAP ? end + SHARE * (end - start) : 0;
    return this.shown;
  }

  /** The milliseconds until `update` makes this text, which it has not made yet; 0 if it has. */
  wait(text: string): number {
    return text === this.text ? 0 : Math.max(0, this.due - this.now());
  }

  /** The blocks of the whole text, which does not grow any more. */
  finish(text: string): Block[] {
    if (DEFINITION.test(text)) return blocksOf(text);
    this.take(text);
    return [...this.done, ...blocksOf(text.slice(this.taken))];
  }

  private take(text: string): void {
    if (!text.startsWith(this.text)) {
      this.done = [];
      this.taken = 0;
    }
    this.text = text;
    if (this.loaded !== loaded()) {
      this.loaded = loaded();
      this.done = this.done.map(again);
    }
    const tokens = lexed(text.slice(this.taken));
    const last = tokens.findLastIndex((token) => token.type !== "space");
    for (const token of tokens.slice(0, Math.max(last, 0))) {
      this.taken += token.raw.length;
      if (token.type !== "space" && token.type !== "def") this.done.push(render(token));
    }
  }
}

/** A text without what may become a marker: a fence whose line is not complete, a marker that is only opened. */
export function hideHalfMarkers(text: string): string {
  return text
    .replace(/(^|\n)[ \t]*(?:`{3,}[^\n`]*|~{3,}[^\n]*|`{1,2}|~{1,2})$/, "$1")
    .replace(/(^|[\s(])(?:\*{1,3}|_{1,3}|`{1,2}|!?\[)$/, "$1");
}
