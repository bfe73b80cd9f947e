import { useState } from "preact/hooks";
import { change } from "../conversations";
import { applyTheme, preference, setPreference } from "../preferences";
import { useChat } from "../state";
import type { Sampling } from "../store";
import { words } from "../words";
import { Dialog } from "./Dialog";

const FIELDS: Record<keyof Sampling, { min: number; max?: number; step: number | "any" }> = {
  temperature: { min: 0, max: 100, step: "any" },
  top_p: { min: 0, max: 1, step: "any" },
  top_k: { min: 0, step: 1 },
  min_p: { min: 0, max: 1, step: "any" },
  repetition_penalty: { min: 0, step: "any" },
  presence_penalty: { min: -2, max: 2, step: "any" },
  frequency_penalty: { min: -2, max: 2, step: "any" },
  max_tokens: { min: 1, step: 1 },
  seed: { min: 0, step: 1 },
};

export function Settings({ close }: { close: () => void }) {
  const chat = useChat();
  const [theme, setTheme] = useState(preference("theme") || "system");
  const sampling = chat.current?.sampling ?? {};
  const set = (name: keyof Sampling, given: string): void => {
    const { [name]: _, ...others } = sampling;
    const value = Number(given);
    void change({ sampling: given.trim() === "" || !Number.isFinite(value) ? others : { ...others, [name]: value } });
  };
  return (
    <Dialog title={words.settings} close={close}>
      <label class="field">
        {words.systemPrompt}
        <textarea rows={4} dir="auto" placeholder={words.systemHint} value={chat.current?.system ?? ""}
          onChange={(event) => void change({ system: event.currentTarget.value })} />
      </label>
      <fieldset>
        <legend>{words.sampling}</legend>
        <p class="hint">{words.samplingHint}</p>
        <div class="grid">
          {(Object.keys(FIELDS) as (keyof Sampling)[]).map((name) => (
            <label class="field" key={name}>
              {words.parameters[name]}
              <input type="number" {...FIELDS[name]} value={sampling[name] ?? ""} placeholder={shown(chat.defaults[name])}
                onChange={(event) => set(name, event.currentTarget.value)} />
            </label>
          ))}
        </div>
        <button onClick={() => void change({ sampling: {} })}>{words.reset}</button>
      </fieldset>
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

/** A default as people write it: single-precision numbers have digits that nobody chose. */
const shown = (value: number | undefined): string => (value === undefined ? "" : String(Number(value.toPrecision(6))));
