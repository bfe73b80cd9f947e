import { useState } from "preact/hooks";
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
  change: (fields: (old: Asked) => Partial<Asked>) => void;
  defaults: Sampling;
}

/** The system prompt and the sampling options. */
export function AskedFields({ asked: { system, sampling }, change, defaults }: Props) {
  const set = (name: keyof Sampling, given: string): void => {
    const value = given.trim() === "" || !Number.isFinite(Number(given)) ? undefined : Number(given);
    change((old) => ({ sampling: { ...old.sampling, [name]: value } }));
  };
  return (
    <>
      <label class="field">
        {words.systemPrompt}
        <textarea rows={3} dir="auto" placeholder={words.systemHint}
          {...useTyped(system, (given) => change(() => ({ system: given })))} />
      </label>
      <fieldset>
        <legend>{words.sampling}</legend>
        <p class="hint">{words.samplingHint}</p>
        <div class="grid">
          {(Object.keys(FIELDS) as (keyof Sampling)[]).map((name) => (
            <NumberField key={name} name={name} value={sampling[name]} own={defaults[name]} set={set} />
          ))}
        </div>
        <button onClick={() => change(() => ({ sampling: {} }))}>{words.reset}</button>
      </fieldset>
    </>
  );
}

interface NumberProps {
  name: keyof Sampling;
  value?: number;
  own?: number; // the model's
  set: (name: keyof Sampling, given: string) => void;
}

function NumberField({ name, value, own, set }: NumberProps) {
  const typed = useTyped(String(value ?? ""), (given) => set(name, given));
  return (
    <label class="field">
      {words.parameters[name]}
      <input type="number" {...FIELDS[name]} placeholder={shown(own)} {...typed} />
    </label>
  );
}

/** For a field that is saved when it is left: what is half typed stays, whatever is drawn meanwhile. */
function useTyped(value: string, save: (text: string) => void) {
  const [typed, setTyped] = useState<string | null>(null);
  type Typing = { currentTarget: HTMLInputElement | HTMLTextAreaElement };
  return {
    value: typed ?? value,
    onInput: (event: Typing) => setTyped(event.currentTarget.value),
    onChange: (event: Typing) => save(event.currentTarget.value),
    onBlur: () => setTyped(null),
  };
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
