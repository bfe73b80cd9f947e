import { useEffect, useRef, useState } from "preact/hooks";
import { stop } from "../answers";
import { change } from "../conversations";
import { attach, attached, detach, refusal } from "../drafts";
import { sends } from "../keyboard";
import { send } from "../messages";
import { preference, setPreference } from "../preferences";
import { useChat } from "../state";
import { words } from "../words";
import { Effort } from "./AskedFields";
import { Attachments } from "./Attachments";
import { Comparing } from "./Compare";
import { Icon } from "./Icon";

/** Where messages are written. What is typed is kept for each conversation until it is sent. */
export function Composer({ compare }: { compare: () => void }) {
  const chat = useChat();
  const draft = `draft:${chat.current.id}` as const;
  const [text, setText] = useState(preference(draft));
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    if (document.querySelector(".menu[open]")) return; // one that was opened meanwhile would close
    if (!matchMedia("(pointer: coarse)").matches) field.current?.focus();
  }, []);
  useEffect(() => fit(field.current), [text]);
  const type = (given: string): void => {
    setText(given);
    setPreference(draft, given);
  };
  const { files, media } = attached();
  const undecided = chat.path.at(-1)?.pair !== undefined;
  const ready = !undecided && (text.trim() || files.length || media.length) && !refusal(media, chat.asked);
  const busy = chat.running.length > 0;
  const submit = (): void => {
    if (busy || !chat.model || !ready) return;
    const given = attached();
    detach();
    type("");
    void send(text, given);
  };
  return (
    <form class="composer" onSubmit={(event) => { event.preventDefault(); submit(); }}>
      <Comparing show={compare} />
      <Attachments />
      <textarea id="message" ref={field} rows={1} dir="auto" aria-label={words.message} placeholder={undecided ? words.keepFirst : words.placeholder} value={text}
        onInput={(event) => type(event.currentTarget.value)}
        onPaste={(event) => {
          const pasted = event.clipboardData?.files;
          // Cells and formatted text come with a picture of themselves.
          if (pasted?.length && !event.clipboardData?.getData("text/plain")) { event.preventDefault(); void attach(Array.from(pasted)); }
        }}
        onKeyDown={(event) => {
          if (sends(event)) { event.preventDefault(); submit(); }
        }} />
      <div class="row">
        <label class="icon" title={words.attach}>
          <Icon name="attach" /><span class="hidden">{words.attach}</span>
          <input class="hidden" type="file" multiple onChange={(event) => {
            void attach(Array.from(event.currentTarget.files ?? []));
            event.currentTarget.value = "";
          }} />
        </label>
        {chat.served?.reasoning && (
          <Effort value={chat.current.effort} change={(effort) => void change({ effort })} />
        )}
        <span class="space" />
        {busy ? (
          <button type="button" class="send" aria-label={words.stop} title={words.stop} onClick={stop}><Icon name="stop" /></button>
        ) : (
          <button class="send" aria-label={words.send} title={words.send} disabled={!ready}><Icon name="send" /></button>
        )}
      </div>
    </form>
  );
}

/** As high as the text. `field-sizing` is not in all browsers yet. */
function fit(field: HTMLTextAreaElement | null): void {
  if (!field) return;
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
}
