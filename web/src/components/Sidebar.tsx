import { useEffect, useState } from "preact/hooks";
import { alter, bundleOf, remove, restore, store } from "../conversations";
import { download } from "../download";
import { fromJsonl, toJsonl, toMarkdown } from "../exchange";
import { open } from "../messages";
import { tell, useChat } from "../state";
import type { Conversation } from "../store";
import { words } from "../words";
import { Icon } from "./Icon";

interface Props {
  close: () => void;
  leave: () => void; // something was chosen
}

export function Sidebar({ close, leave }: Props) {
  const chat = useChat();
  const [text, setText] = useState("");
  const [found, setFound] = useState<Set<string> | null>(null);
  useEffect(() => {
    if (!text.trim()) return setFound(null);
    const timer = setTimeout(() => void store.search(text.trim()).then(setFound), 150);
    return () => clearTimeout(timer);
  }, [text]);
  const shown = chat.conversations.filter((each) => found === null || found.has(each.id));
  const exportAll = async (): Promise<void> => {
    const bundles = await Promise.all(chat.conversations.map((each) => bundleOf(each.id)));
    download("olivine-conversations.jsonl", await toJsonl(bundles.flat()), "application/jsonl");
  };
  const load = async (input: HTMLInputElement): Promise<void> => {
    try {
      const texts = await Promise.all(Array.from(input.files ?? [], (file) => file.text()));
      const bundles = texts.flatMap(fromJsonl);
      await restore(bundles);
      tell(words.imported(bundles.length));
    } catch (error) {
      tell(words.importFailed((error as Error).message));
    }
    input.value = "";
  };
  return (
    <nav class="sidebar" aria-label={words.conversations}>
      <div class="row">
        <strong class="brand"><Mark /> {words.name}</strong>
        <button class="icon narrow" aria-label={words.closeList} onClick={close}>×</button>
      </div>
      <button class="new" onClick={() => { void open(null); leave(); }}><Icon name="plus" /> {words.newChat}</button>
      <input id="search" type="search" aria-label={words.search} placeholder={words.search} value={text}
        onInput={(event) => setText(event.currentTarget.value)} />
      <ul>
        {shown.map((each) => <Entry key={each.id} of={each} leave={leave} />)}
      </ul>
      {shown.length === 0 && <p class="hint">{found ? words.nothingFound : words.noConversations}</p>}
      <div class="row foot">
        <button class="quiet" onClick={() => void exportAll()}>{words.exportAll}</button>
        <label class="button quiet">{words.import}
          <input class="hidden" type="file" accept=".jsonl" multiple onChange={(event) => void load(event.currentTarget)} />
        </label>
      </div>
    </nav>
  );
}

function Mark() {
  return (
    <svg viewBox="0 0 32 32" width="18" height="18" aria-hidden="true">
      <path d="M16 2 28 12 16 30 4 12Z" fill="#7a9a2e" /><path d="M16 2 22 12 16 30 10 12Z" fill="#a9c455" />
    </svg>
  );
}

function Entry({ of, leave }: { of: Conversation; leave: () => void }) {
  const chat = useChat();
  const [renaming, setRenaming] = useState(false);
  const title = of.title || words.untitled;
  const names = { user: words.you, assistant: words.assistant, tool: words.tool };
  const rename = (given: string): void => {
    setRenaming(false);
    if (given.trim()) void alter(of.id, { title: given.trim() });
  };
  if (renaming) {
    return (
      <li>
        <input autofocus aria-label={words.rename} value={of.title} ref={(input) => input?.focus()}
          onBlur={(event) => rename(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter") rename(event.currentTarget.value);
            if (event.key === "Escape") { event.stopPropagation(); setRenaming(false); }
          }} />
      </li>
    );
  }
  return (
    <li class={of.id === chat.current?.id ? "current" : ""}>
      <button class="title" dir="auto" aria-current={of.id === chat.current?.id ? "page" : undefined}
        onClick={() => { void open(of.id); leave(); }}>
        {of.pinned && <span aria-label={words.pinned}><Icon name="pin" /></span>}{title}
      </button>
      <details class="menu" onClick={(event) => { if ((event.target as HTMLElement).matches("div button")) event.currentTarget.open = false; }}
        onFocusOut={(event) => { if (!event.currentTarget.contains(event.relatedTarget as Node)) event.currentTarget.open = false; }}>
        <summary aria-label={`${words.more}: ${title}`}><Icon name="more" /></summary>
        <div>
          <button onClick={() => setRenaming(true)}>{words.rename}</button>
          <button onClick={() => void alter(of.id, { pinned: !of.pinned })}>{of.pinned ? words.unpin : words.pin}</button>
          <button onClick={async () => download(`${title}.jsonl`, await toJsonl(await bundleOf(of.id)), "application/jsonl")}>
            {words.exportOne}
          </button>
          <button onClick={async () => {
            for (const bundle of await bundleOf(of.id)) download(`${title}.md`, toMarkdown(bundle, names), "text/markdown");
          }}>{words.exportMarkdown}</button>
          <button onClick={() => void remove(of.id)}>{words.delete}</button>
        </div>
      </details>
    </li>
  );
}
