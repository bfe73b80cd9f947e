import { useEffect, useState } from "preact/hooks";
import { bundleOf, restore, store } from "../conversations";
import { download } from "../download";
import { fromJsonl, toJsonl } from "../exchange";
import { createFolder, dropped, over } from "../folders";
import { open } from "../messages";
import { tell, useChat } from "../state";
import { words } from "../words";
import { Entry } from "./Entry";
import { Folder } from "./Folder";
import { Icon, Mark } from "./Icon";

interface Props {
  close: () => void;
  leave: () => void; // something was chosen
}

export function Sidebar({ close, leave }: Props) {
  const chat = useChat(({ conversations, folders, current }) => [conversations, folders, current.id]);
  const current = chat.current.id;
  const [text, setText] = useState("");
  const [found, setFound] = useState<Set<string> | null>(null);
  useEffect(() => {
    if (!text.trim()) return setFound(null);
    let ended = false; // another text was typed meanwhile, or none
    const timer = setTimeout(() => void store.search(text.trim()).then((ids) => { if (!ended) setFound(ids); }), 150);
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, [text]);
  const known = new Set(chat.folders.map((each) => each.id));
  const loose = found ? chat.conversations.filter((each) => found.has(each.id))
    : chat.conversations.filter((each) => !known.has(each.folder ?? ""));
  return (
    <nav class="sidebar" aria-label={words.conversations}>
      <div class="row">
        <strong class="brand"><Mark size={18} /> {words.name}</strong>
        <button class="icon narrow" aria-label={words.closeList} onClick={close}>×</button>
      </div>
      <button class="new" onClick={() => { void open(null); leave(); }}><Icon name="plus" /> {words.newChat}</button>
      <div class="row">
        <input id="search" type="search" aria-label={words.search} placeholder={words.search} value={text}
          onInput={(event) => setText(event.currentTarget.value)} />
        <button class="icon" aria-label={words.newFolder} title={words.newFolder} onClick={() => void createFolder()}><Icon name="folder" /></button>
      </div>
      <ul class="list" onDragOver={over} onDrop={(event) => dropped(event, undefined)}>
        {!found && chat.folders.map((folder) => (
          <Folder key={folder.id} folder={folder} current={current} leave={leave} entries={chat.conversations.filter((each) => each.folder === folder.id)} />
        ))}
        {loose.map((each) => <Entry key={each.id} of={each} current={each.id === current} leave={leave} />)}
      </ul>
      {found && loose.length === 0 && <p class="hint">{words.nothingFound}</p>}
      {chat.conversations.length === 0 && <p class="hint">{words.noConversations}</p>}
      <div class="row foot">
        <button class="quiet" onClick={() => void exportAll()}>{words.exportAll}</button>
        <label class="button quiet">{words.import}
          <input class="hidden" type="file" accept=".jsonl" multiple onChange={(event) => void load(event.currentTarget)} />
        </label>
      </div>
    </nav>
  );

  async function exportAll(): Promise<void> {
    const bundles = await Promise.all(chat.conversations.map((each) => bundleOf(each.id)));
    download("olivine-conversations.jsonl", await toJsonl(bundles.flat()), "application/jsonl");
  }
}

async function load(input: HTMLInputElement): Promise<void> {
  try {
    const texts = await Promise.all(Array.from(input.files ?? [], (file) => file.text()));
    const bundles = texts.flatMap(fromJsonl);
    await restore(bundles);
    tell(words.imported(bundles.length));
  } catch (error) {
    tell(words.importFailed((error as Error).message));
  }
  input.value = "";
}
