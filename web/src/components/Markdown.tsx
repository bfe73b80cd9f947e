import { Component } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { copyText } from "../clipboard";
import { loaded, onExtras } from "../extras";
import { GrowingMarkdown, type Block } from "../markdown";
import { onceNear } from "../near";
import { words } from "../words";

interface Props {
  text: string;
  growing: boolean;
  far?: boolean; // it shows as typed until it comes near what is seen
}

/** A text as Markdown. While it grows, only its last block changes. */
export function Markdown({ text, growing, far = false }: Props) {
  const [drawn, again] = useState(loaded());
  const [near, setNear] = useState(!far);
  const [late, setLate] = useState(0);
  const root = useRef<HTMLDivElement>(null);
  useEffect(() => onExtras(() => again(loaded())), []);
  useEffect(() => (near || !root.current ? undefined : onceNear(root.current, () => setNear(true))), [near]);
  const parser = useRef(new GrowingMarkdown());
  const blocks = useMemo(() => {
    if (!near) return null;
    return growing ? parser.current.update(text) : parser.current.finish(text);
  }, [text, growing, near, drawn, late]);
  const wait = growing && near ? parser.current.wait(text) : 0;
  useEffect(() => {
    if (!wait) return;
    const timer = setTimeout(() => setLate((old) => old + 1), wait);
    return () => clearTimeout(timer);
  });
  if (!blocks) return <div class="markdown as-typed" dir="auto" ref={root}>{text}</div>;
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
