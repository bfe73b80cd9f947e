import { useEffect, useRef, useState } from "preact/hooks";
import { stop } from "../answers";
import { change } from "../conversations";
import { send } from "../messages";
import { preference, setPreference } from "../preferences";
import { tell, useChat } from "../state";
import type { Message } from "../tree";
import { words } from "../words";
import { Icon } from "./Icon";

const LARGEST = 1_000_000; // bytes of an attached file

type Files = NonNullable<Message["files"]>;

/** Where messages are written. What is typed is kept for each conversation until it is sent. */
export function Composer() {
  const chat = useChat();
  const draft = `draft:${chat.current?.id ?? ""}` as const;
  const [text, setText] = useState(preference(draft));
  const [files, setFiles] = useState<Files>([]);
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    if (!matchMedia("(pointer: coarse)").matches) field.current?.focus();
  }, []);
  useEffect(() => fit(field.current), [text]);
  const type = (given: string): void => {
    setText(given);
    setPreference(draft, given);
  };
  const submit = (): void => {
    if (chat.running.length || !chat.model || !(text.trim() || files.length)) return;
    void send(text, files);
    type("");
    setFiles([]);
  };
  const attach = async (given: Iterable<File>): Promise<void> => {
    const read: Files = [];
    for (const file of given) {
      if (file.size > LARGEST) tell(words.tooLarge(file.name));
      else {
        const found = await textOf(file);
        if (found === null) tell(words.notText(file.name));
        else read.push({ name: file.name, text: found });
      }
    }
    setFiles((old) => [...old, ...read]);
  };
  const effort = chat.current?.effort ?? "";
  return (
    <form class="composer" onSubmit={(event) => { event.preventDefault(); submit(); }}
      onDragOver={(event) => event.preventDefault()}
      onDrop={(event) => { event.preventDefault(); void attach(event.dataTransfer?.files ?? []); }}>
      {files.length > 0 && (
        <ul class="files" aria-label={words.attached}>
          {files.map((file, index) => (
            <li key={index}>{file.name}
              <button type="button" class="quiet" aria-label={words.removeFile(file.name)}
                onClick={() => setFiles(files.filter((_, each) => each !== index))}>×</button>
            </li>
          ))}
        </ul>
      )}
      <textarea id="message" ref={field} rows={1} dir="auto" aria-label={words.message} placeholder={words.placeholder} value={text}
        onInput={(event) => type(event.currentTarget.value)}
        onPaste={(event) => {
          const pasted = event.clipboardData?.files;
          if (pasted?.length) { event.preventDefault(); void attach(pasted); }
        }}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); submit(); }
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
          <label class="effort">{words.effort}{" "}
            <select value={effort} onChange={(event) => void change({ effort: event.currentTarget.value })}>
              {Object.entries(words.efforts).map(([name, label]) => <option key={name} value={name}>{label}</option>)}
            </select>
          </label>
        )}
        <span class="space" />
        {chat.running.length ? (
          <button type="button" class="send" aria-label={words.stop} title={words.stop} onClick={() => stop()}><Icon name="stop" /></button>
        ) : (
          <button class="send" aria-label={words.send} title={words.send} disabled={!text.trim() && !files.length}><Icon name="send" /></button>
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

async function textOf(file: File): Promise<string | null> {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    return text.includes("\0") ? null : text;
  } catch {
    return null;
  }
}
