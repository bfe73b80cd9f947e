import { chooseModel } from "../conversations";
import { useChat } from "../state";
import { words } from "../words";
import type { Panel } from "./App";
import { Icon } from "./Icon";
import { Meter } from "./Meter";

interface Props {
  listed: boolean;
  list: () => void;
  show: (panel: Panel) => void;
}

export function Header({ listed, list, show }: Props) {
  const chat = useChat();
  return (
    <header>
      <button class="icon" aria-label={listed ? words.closeList : words.openList} aria-expanded={listed} onClick={list}>
        <Icon name="list" />
      </button>
      <label class="model">
        <span class="hidden">{words.model}</span>
        <Models value={chat.model} choose={(id) => void chooseModel(id)} />
      </label>
      {chat.loading !== null && (
        <progress aria-label={words.loading(chat.loading)} title={words.loading(chat.loading)} value={chat.loading} max={1} />
      )}
      <span class="space" />
      <Meter />
      <button class="icon" aria-label={words.compare} title={words.compare} aria-pressed={chat.current.other !== undefined}
        onClick={() => show("compare")}>
        <Icon name="compare" />
      </button>
      <button class="icon wide" aria-label={words.shortcuts} title={words.shortcuts} onClick={() => show("shortcuts")}>
        <Icon name="help" />
      </button>
      <button class="icon" aria-label={words.settings} title={words.settings} onClick={() => show("settings")}>
        <Icon name="settings" />
      </button>
    </header>
  );
}

export function Models({ value, choose }: { value: string; choose: (id: string) => void }) {
  const chat = useChat();
  return (
    <select value={value} onChange={(event) => choose(event.currentTarget.value)}>
      {chat.models.map((model) => (
        <option key={model.id} value={model.id} disabled={model.problem !== undefined} title={model.problem}>
          {model.problem ? words.unusable(model.id, model.problem) : model.id}
        </option>
      ))}
    </select>
  );
}
