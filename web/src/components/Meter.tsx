import { chat, useChat } from "../state";
import { words } from "../words";

const NEARLY = 0.85;

function measured(): { used: number; context: number; full: boolean } {
  const speed = chat.path.findLast((message) => message.speed)?.speed;
  const used = speed ? speed.promptTokens + speed.tokens : 0;
  const context = chat.served?.context ?? 0;
  return { used, context, full: context > 0 && used / context > NEARLY };
}

/** What happens when the context is full, before it is. */
export function ContextWarning() {
  useChat();
  const { used, context, full } = measured();
  return <p class="nearly-full" role="status">{full && <>{words.context(used, context)}. {words.contextNearlyFull}</>}</p>;
}

/** How much of the context the conversation takes, as the server counted it with the last answer. */
export function Meter() {
  useChat();
  const { used, context, full } = measured();
  if (!used || !context) return null;
  const text = words.context(used, context);
  return (
    <span class={`context ${full ? "full" : ""}`} title={text}>
      <meter aria-label={text} min={0} max={context} high={NEARLY * context} value={used} />
      <span class="wide" aria-hidden="true">{Math.ceil((100 * used) / context)} %</span>
    </span>
  );
}
