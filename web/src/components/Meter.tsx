import { useChat } from "../state";
import { words } from "../words";

const NEARLY = 0.85;

/** How much of the context the conversation takes, as the server counted it with the last answer. */
export function Meter() {
  const chat = useChat();
  const speed = chat.path.findLast((message) => message.speed)?.speed;
  const context = chat.served?.context ?? 0;
  if (!speed || !context) return null;
  const used = speed.promptTokens + speed.tokens;
  const full = used / context > NEARLY;
  const text = words.context(used, context);
  return (
    <span class={`context ${full ? "full" : ""}`} title={full ? `${text}. ${words.contextNearlyFull}` : text}>
      <meter aria-label={text} min={0} max={context} high={NEARLY * context} value={used} />
      {full && <span role="status" class="hidden">{words.contextNearlyFull}</span>}
      <span class="wide" aria-hidden="true">{Math.round((100 * used) / context)} %</span>
    </span>
  );
}
