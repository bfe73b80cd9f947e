import { useState } from "preact/hooks";
import { fenced } from "../exchange";
import { sendResults } from "../messages";
import { chat } from "../state";
import { pretty } from "../tools";
import type { Message, ToolCall } from "../tree";
import { words } from "../words";
import { Markdown } from "./Markdown";

/** A function that the model called, with what for. */
export function Call({ call }: { call: ToolCall }) {
  return (
    <details class="call">
      <summary>{words.call(call.name)} <code>{call.arguments}</code></summary>
      <Markdown text={fenced(pretty(call.arguments), "json")} growing={false} />
    </details>
  );
}

/** What a function gave back. */
export function Result({ message }: { message: Message }) {
  const calls = chat.tree.path(message.parent).flatMap((each) => each.toolCalls ?? []);
  const name = calls.findLast((call) => call.id === message.toolCallId)?.name ?? "";
  return (
    <details class="call">
      <summary>{words.result(name)} <code>{message.text}</code></summary>
      <Markdown text={fenced(pretty(message.text), "json")} growing={false} />
    </details>
  );
}

/** Fields for the results of calls that nobody has answered. */
export function Results({ message }: { message: Message }) {
  const calls = message.toolCalls ?? [];
  const [texts, setTexts] = useState<string[]>(calls.map(() => ""));
  return (
    <form class="results" onSubmit={(event) => { event.preventDefault(); void sendResults(message, texts); }}>
      {calls.map((call, index) => (
        <label class="field" key={index}>{words.result(call.name)}
          <textarea class="mono" rows={2} dir="auto" placeholder={words.resultHint} value={texts[index]}
            onInput={(event) => setTexts(texts.with(index, event.currentTarget.value))} />
        </label>
      ))}
      <button disabled={!texts.every((text) => text.trim())}>{words.sendResults}</button>
    </form>
  );
}
