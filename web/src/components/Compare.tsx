import { useEffect } from "preact/hooks";
import { differences, keep, own, pairOf, startComparing, stopComparing } from "../compare";
import { change } from "../conversations";
import { useChat } from "../state";
import type { Asked } from "../store";
import type { Message } from "../tree";
import { words } from "../words";
import { AskedFields, Effort } from "./AskedFields";
import { Dialog } from "./Dialog";
import { Models } from "./Header";
import { Shown } from "./Message";

/** With what the second answer is asked for. */
export function ComparePanel({ close }: { close: () => void }) {
  const chat = useChat();
  const known = chat.models.length > 0;
  useEffect(() => { if (known) void startComparing(); }, [known]);
  const other = chat.current.other;
  if (!other) return null;
  const set = (given: (old: Asked) => Partial<Asked>): void =>
    void change(({ other: old = other }) => ({ other: { ...old, ...given(old) } }));
  const model = chat.models.find((each) => each.id === other.model);
  return (
    <Dialog title={words.compare} close={close}>
      <p class="hint">{words.compareHint}</p>
      <label class="field">{words.secondModel}<Models value={other.model ?? ""} choose={(id) => set(() => ({ model: id }))} /></label>
      {model?.reasoning && <Effort value={other.effort} change={(effort) => set(() => ({ effort }))} />}
      <AskedFields asked={other} change={set} defaults={other.model === chat.model ? chat.defaults : {}} />
      <div class="row">
        <button onClick={close}>{words.done}</button>
        <button class="quiet" onClick={() => { void stopComparing(); close(); }}>{words.stopComparing}</button>
      </div>
    </Dialog>
  );
}

/** Above the message field, while two are asked. */
export function Comparing({ show }: { show: () => void }) {
  const chat = useChat();
  const other = chat.current.other;
  if (!other) return null;
  const what = [...(other.model === chat.model ? [] : [other.model ?? ""]), ...differences(other, own())];
  return (
    <p class="comparing">
      {words.comparing(what.join(" · ") || words.sameTwice)}
      <button type="button" class="quiet" onClick={show}>{words.changeIt}</button>
      <button type="button" class="quiet" aria-label={words.stopComparing} title={words.stopComparing} onClick={() => void stopComparing()}>×</button>
    </p>
  );
}

/** Two answers to one question. */
export function Pair({ of, busy }: { of: Message; busy: boolean }) {
  const chat = useChat();
  const both = pairOf(of);
  return (
    <section class="pair" aria-label={words.compare}>
      {both.map((message, index) => {
        const rival = both[1 - index];
        const told = message.asked && rival?.asked ? differences(message.asked, rival.asked) : [];
        return (
          <div key={message.id}>
            {told.length > 0 && <p class="told">{told.join(" · ")}</p>}
            <Shown message={message} growing={chat.runs.has(message.id)} busy={busy} last at={1} of={1} />
            <button disabled={busy} onClick={() => void keep(message)}>{words.keepThis}</button>
          </div>
        );
      })}
    </section>
  );
}
