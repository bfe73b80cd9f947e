import { Component } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { copyText } from "../clipboard";
import { onExtras } from "../extras";
import { blocksOf, GrowingMarkdown, type Block } from "../markdown";
import { words } from "../words";

/** A text as Markdown. While it grows, only its last block changes. */
export function Markdown({ text, growing }: { text: string; growing: boolean }) {
  const [drawn, again] = useState(0);
  useEffect(() => onExtras(() => again((old) => old + 1)), []);
  const parser = useRef(new GrowingMarkdown());
  const blocks = useMemo(() => {
    return growing ? parser.current.update(text) : blocksOf(text, drawn ? [] : parser.current.complete);
  }, [text, growing, drawn]);
  return (
    <div class="markdown" dir="auto" onClick={copyCode}>
      {groupsOf(blocks).map((group, index) => <Group key={index} blocks={group} />)}
    </div>
  );
}

const GROUP = 32;

function groupsOf(blocks: Block[]): Block[][] {
  const count = Math.ceil(blocks.length / GROUP);
  return Array.from({ length: count }, (_, index) => blocks.slice(index * GROUP, (index + 1) * GROUP));
}

/** Blocks that are complete stay the same objects: their group is not even compared by Preact. */
class Group extends Component<{ blocks: Block[] }> {
  override shouldComponentUpdate({ blocks }: { blocks: Block[] }): boolean {
    const old = this.props.blocks;
    return blocks.length !== old.length || blocks.some((block, index) => block !== old[index]);
  }

  override render({ blocks }: { blocks: Block[] }) {
    return <div class="group">{blocks.map((block, index) => <Html key={index} html={block.html} />)}</div>;
  }
}

function Html({ html }: { html: string }) {
  // A TrustedHTML is a new object each time: the element is only touched when its text differs.
  const kept = useRef(html);
  if (kept.current !== html && String(kept.current) !== String(html)) kept.current = html;
  return <div dir="auto" dangerouslySetInnerHTML={{ __html: kept.current }} />;
}

/** The buttons in code blocks are HTML of ours without handlers of their own. */
function copyCode(event: MouseEvent): void {
  const button = (event.target as HTMLElement).closest<HTMLElement>("button.copy");
  const code = button?.closest("figure")?.querySelector("code");
  if (!button || !code) return;
  void copyText(code.textContent ?? "").then(() => {
    button.textContent = words.copied;
    setTimeout(() => (button.textContent = words.copy), 1500);
  });
}
