import { Component } from "preact";
import { useState } from "preact/hooks";
import { alter, bundleOf, remove } from "../conversations";
import { download } from "../download";
import { toJsonl, toMarkdown } from "../exchange";
import { createFolder, DRAGGED } from "../folders";
import { open } from "../messages";
import { useChat } from "../state";
import type { Conversation } from "../store";
import { words } from "../words";
import { Icon } from "./Icon";
import { Menu } from "./Menu";
import { Rename } from "./Rename";

interface Props {
  of: Conversation;
  current: boolean; // it is the one that is shown
  leave: () => void;
}

/** A conversation in the list, with its menu. It is drawn again when something of what it shows has changed: there may
 * be hundreds, and each reading of the store gives new objects. */
export class Entry extends Component<Props> {
  override shouldComponentUpdate({ of, current }: Props): boolean {
    const old = this.props.of;
    return current !== this.props.current || of.title !== old.title || of.pinned !== old.pinned || of.folder !== old.folder;
  }

  override render(props: Props) {
    return <Item {...props} />;
  }
}

function Item({ of, current, leave }: Props) {
  const [renaming, setRenaming] = useState(false);
  const [moving, setMoving] = useState(false);
  const title = of.title || words.untitled;
  if (renaming) {
    return (
      <li>
        <Rename name={of.title} done={(name) => { setRenaming(false); if (name) void alter(of.id, { title: name }); }} />
      </li>
    );
  }
  return (
    <li class={`entry ${current ? "current" : ""}`} data-id={of.id} draggable
      onDragStart={(event) => {
        event.dataTransfer?.setData(DRAGGED, of.id);
        event.stopPropagation();
      }}>
      <button class="title" dir="auto" aria-current={current ? "page" : undefined} onClick={() => { void open(of.id); leave(); }}>
        {of.pinned && <span aria-label={words.pinned} role="img"><Icon name="pin" /></span>}{title}
      </button>
      <Menu label={`${words.more}: ${title}`} closed={() => setMoving(false)}>
        {moving ? <Folders of={of} /> : (
          <>
            <button onClick={() => setRenaming(true)}>{words.rename}</button>
            <button onClick={() => void alter(of.id, { pinned: !of.pinned })}>{of.pinned ? words.unpin : words.pin}</button>
            <button data-stay onClick={() => setMoving(true)}>{words.moveTo}</button>
            <button onClick={() => void exportJsonl(of.id, title)}>{words.exportOne}</button>
            <button onClick={() => void exportMarkdown(of.id, title)}>{words.exportMarkdown}</button>
            <button onClick={() => void remove(of.id)}>{words.delete}</button>
          </>
        )}
      </Menu>
    </li>
  );
}

function Folders({ of }: { of: Conversation }) {
  const chat = useChat();
  const move = (folder: string | undefined): void => {
    const back = (): void => document.querySelector<HTMLElement>(`[data-id="${of.id}"] .title`)?.focus();
    void alter(of.id, { folder }).then(() => requestAnimationFrame(() => requestAnimationFrame(back)));
  };
  const known = chat.folders.some((each) => each.id === of.folder);
  return (
    <>
      {chat.folders.map(({ id, name }, index) => (
        <button key={id} ref={index === 0 ? focused : undefined} aria-current={id === of.folder} onClick={() => move(id)}>{name}</button>
      ))}
      {known && <button onClick={() => move(undefined)}>{words.noFolder}</button>}
      <button ref={chat.folders.length ? undefined : focused}
        onClick={() => void createFolder().then(({ id }) => alter(of.id, { folder: id }))}>{words.newFolder}</button>
    </>
  );
}

function focused(button: HTMLElement | null): void {
  if (!button || button.dataset.seen) return;
  button.dataset.seen = "1";
  button.focus();
}

async function exportJsonl(id: string, title: string): Promise<void> {
  download(`${title}.jsonl`, await toJsonl(await bundleOf(id)), "application/jsonl");
}

async function exportMarkdown(id: string, title: string): Promise<void> {
  const names = { user: words.you, assistant: words.assistant, tool: words.tool };
  for (const bundle of await bundleOf(id)) download(`${title}.md`, toMarkdown(bundle, names), "text/markdown");
}
