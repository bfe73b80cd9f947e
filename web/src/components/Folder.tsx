import { useState } from "preact/hooks";
import { dropped, over, removeFolder, renameFolder } from "../folders";
import { preference, setPreference } from "../preferences";
import type { Conversation, Folder as Kept } from "../store";
import { words } from "../words";
import { Entry } from "./Entry";
import { Icon } from "./Icon";
import { Menu } from "./Menu";
import { Rename } from "./Rename";

interface Props {
  folder: Kept;
  entries: Conversation[];
  current: string; // the conversation that is shown
  leave: () => void;
}

/** Conversations under a name. One that has no name yet asks for it. */
export function Folder({ folder: { id, name }, entries, current, leave }: Props) {
  const [open, setOpen] = useState(preference(`folder:${id}`) !== "closed");
  const [renaming, setRenaming] = useState(name === "");
  const [target, setTarget] = useState(false);
  const toggle = (): void => {
    setOpen(!open);
    setPreference(`folder:${id}`, open ? "closed" : "");
  };
  return (
    <li class={`folder ${target ? "target" : ""}`} onDragOver={(event) => setTarget(over(event))} onDragLeave={() => setTarget(false)}
      onDrop={(event) => { setTarget(false); dropped(event, id); }}>
      {renaming ? (
        <Rename name={name} done={(given) => { setRenaming(false); void renameFolder(id, given || name || words.folder); }} />
      ) : (
        <div class="heading">
          <button class="title" dir="auto" aria-expanded={open} onClick={toggle}>
            <Icon name={open ? "open" : "closed"} />{name} <span class="count">{entries.length}</span>
          </button>
          <Menu label={`${words.more}: ${name}`}>
            <button onClick={() => setRenaming(true)}>{words.rename}</button>
            <button onClick={() => void removeFolder(id)}>{words.deleteFolder}</button>
          </Menu>
        </div>
      )}
      {open && entries.length > 0 && (
        <ul>{entries.map((each) => <Entry key={each.id} of={each} current={each.id === current} leave={leave} />)}</ul>
      )}
    </li>
  );
}
