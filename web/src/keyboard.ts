/** Shortcuts for the whole page; `words.keys` lists them. */

import { stop } from "./answers";
import type { Panel } from "./components/App";
import { copyText } from "./clipboard";
import { open, regenerate } from "./messages";
import { chat, tell } from "./state";
import { words } from "./words";

interface Screen {
  panel: Panel;
  show: (panel: Panel) => void;
  list: (open: boolean) => void;
}

/** An open dialog closes, and the search empties. */
const takesEscape = (target: HTMLElement): boolean => target.matches?.("input") || document.querySelector("dialog[open]") !== null;

const focus = (selector: string): void => document.querySelector<HTMLElement>(selector)?.focus();

/** Whether a key sends what was typed. The Enter that ends a composed word does not: Safari tells it by its code only. */
export const sends = ({ key, shiftKey, isComposing, keyCode }: KeyboardEvent): boolean =>
  key === "Enter" && !shiftKey && !isComposing && keyCode !== 229;

/** Reacts to keys until it is called off. */
export function listen({ panel, show, list }: Screen): () => void {
  const withAlt: Record<string, () => void> = {
    KeyN: () => void open(null).then(() => focus("#message")),
    KeyK: () => {
      list(true);
      requestAnimationFrame(() => focus("#search"));
    },
    KeyS: () => show(panel === "settings" ? null : "settings"),
    KeyB: () => show(panel === "compare" ? null : "compare"),
    KeyR: () => {
      const last = chat.path.at(-1);
      if (last?.role === "assistant" && !chat.running.length) void regenerate(last);
    },
    KeyE: () => {
      const edits = document.querySelectorAll<HTMLElement>(".user button.edit");
      edits[edits.length - 1]?.click();
    },
    KeyC: () => {
      const last = chat.path.findLast((message) => message.role === "assistant");
      if (last) void copyText(last.text).then(() => tell(words.copied));
    },
  };
  const pressed = (event: KeyboardEvent): void => {
    const target = event.target as HTMLElement;
    const typing = target.matches?.("input, textarea, select");
    const alt = event.altKey && !event.ctrlKey && !event.metaKey;
    // With Option, which is Alt there, one types letters on a Mac.
    const letter = typing && event.code !== `Key${event.key.toUpperCase()}`;
    const act = alt && !letter ? withAlt[event.code] : undefined;
    if (act) act();
    else if (event.key === "Escape" && panel) show(null);
    else if (event.key === "Escape" && chat.running.length && !takesEscape(target)) stop();
    else if (event.key === "?" && !typing) show("shortcuts");
    else if (event.key === "/" && !typing) focus("#message");
    else return;
    event.preventDefault();
  };
  document.addEventListener("keydown", pressed);
  return () => document.removeEventListener("keydown", pressed);
}
