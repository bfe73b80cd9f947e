import { useState } from "preact/hooks";
import { focusMessage, focusSoon } from "../focus";
import { sends } from "../keyboard";
import { edit } from "../messages";
import type { Message } from "../tree";
import { words } from "../words";

/** A message as a field. */
export function Editor({ message, busy, close }: { message: Message; busy: boolean; close: () => void }) {
  const [text, setText] = useState(message.text);
  const attached = message.files?.length || message.media?.length;
  const ready = !busy && (text.trim() !== "" || attached); // while another answer comes, a question would get none
  const save = (): void => {
    if (!ready) return;
    focusMessage();
    close();
    if (text !== message.text) void edit(message, text);
  };
  const cancel = (event: Event): void => {
    const article = (event.target as HTMLElement).closest("article");
    focusSoon(() => article?.querySelector<HTMLElement>("button.edit"));
    close();
  };
  return (
    <form class="editor" onSubmit={(event) => { event.preventDefault(); save(); }}>
      <textarea rows={Math.min(12, text.split("\n").length + 1)} dir="auto" aria-label={words.edit} value={text}
        ref={(field) => { if (field && !field.dataset.seen) { field.dataset.seen = "1"; field.focus(); } }}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Escape") { event.stopPropagation(); cancel(event); }
          if (sends(event)) { event.preventDefault(); save(); }
        }} />
      <div class="row">
        <button disabled={!ready}>{message.role === "user" ? words.save : words.keep}</button>
        <button type="button" class="quiet" onClick={cancel}>{words.cancel}</button>
      </div>
    </form>
  );
}
