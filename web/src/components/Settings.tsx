import { useState } from "preact/hooks";
import { change } from "../conversations";
import { applyTheme, preference, setPreference } from "../preferences";
import { useChat } from "../state";
import { toolsOf } from "../tools";
import { words } from "../words";
import { AskedFields } from "./AskedFields";
import { Dialog } from "./Dialog";

export function Settings({ close }: { close: () => void }) {
  const chat = useChat();
  const [theme, setTheme] = useState(preference("theme") || "system");
  const { system, sampling } = chat.current;
  return (
    <Dialog title={words.settings} close={close}>
      <AskedFields asked={{ system, sampling }} change={(given) => void change(given)} defaults={chat.defaults} />
      <Tools />
      <label class="field">
        {words.theme}
        <select value={theme} onChange={(event) => {
          setTheme(event.currentTarget.value);
          setPreference("theme", event.currentTarget.value);
          applyTheme();
        }}>
          {Object.entries(words.themes).map(([name, label]) => <option key={name} value={name}>{label}</option>)}
        </select>
      </label>
    </Dialog>
  );
}

/** Functions as JSON. What is wrong is said at once, and not sent. */
function Tools() {
  const chat = useChat();
  const [text, setText] = useState(chat.current.tools ?? "");
  const wrong = wrongIn(text);
  return (
    <label class="field">
      {words.tools}
      <textarea class="mono" rows={text ? 6 : 2} spellcheck={false} placeholder={words.toolsExample} value={text} aria-invalid={wrong !== ""}
        aria-describedby="tools-hint"
        onInput={(event) => setText(event.currentTarget.value)}
        onChange={(event) => { if (!wrongIn(event.currentTarget.value)) void change({ tools: event.currentTarget.value }); }} />
      <span class={wrong ? "refusal" : "hint"} id="tools-hint" role={wrong ? "alert" : undefined}>{wrong || words.toolsHint}</span>
    </label>
  );
}

function wrongIn(text: string): string {
  try {
    toolsOf(text);
    return "";
  } catch (error) {
    return (error as Error).message;
  }
}
