import type { Asked, Sampling } from "../store";
import { words } from "../words";

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

interface Props {
  asked: Pick<Asked, "system" | "sampling">;
  change: (fields: Partial<Asked>) => void;
  defaults: Sampling;
}

/** The system prompt and the sampling options. */
export function AskedFields({ asked: { system, sampling }, change, defaults }: Props) {
  const set = (name: keyof Sampling, given: string): void => {
    const { [name]: _, ...others } = sampling;
    const value = Number(given);
    change({ sampling: given.trim() === "" || !Number.isFinite(value) ? others : { ...others, [name]: value } });
  };
  return (
    <>
      <label class="field">
        {words.systemPrompt}
        <textarea rows={3} dir="auto" placeholder={words.systemHint} value={system}
          onChange={(event) => change({ system: event.currentTarget.value })} />
      </label>
      <fieldset>
        <legend>{words.sampling}</legend>
        <p class="hint">{words.samplingHint}</p>
        <div class="grid">
          {(Object.keys(FIELDS) as (keyof Sampling)[]).map((name) => (
            <label class="field" key={name}>
              {words.parameters[name]}
              <input type="number" {...FIELDS[name]} value={sampling[name] ?? ""} placeholder={shown(defaults[name])}
                onChange={(event) => set(name, event.currentTarget.value)} />
            </label>
          ))}
        </div>
        <button onClick={() => change({ sampling: {} })}>{words.reset}</button>
      </fieldset>
    </>
  );
}

/** The thinking of a model that can. */
export function Effort({ value, change }: { value: string; change: (effort: string) => void }) {
  return (
    <label class="effort">{words.effort}{" "}
      <select value={value} onChange={(event) => change(event.currentTarget.value)}>
        {Object.entries(words.efforts).map(([name, label]) => <option key={name} value={name}>{label}</option>)}
      </select>
    </label>
  );
}

/** A default as people write it: single-precision numbers have digits that nobody chose. */
const shown = (value: number | undefined): string => (value === undefined ? "" : String(Number(value.toPrecision(6))));
