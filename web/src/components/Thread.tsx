import { useEffect, useRef, useState } from "preact/hooks";
import { useChat } from "../state";
import { words } from "../words";
import { Pair } from "./Compare";
import { Icon, Mark } from "./Icon";
import { Shown } from "./Message";

const LAST = 6; // messages that are seen when a conversation opens
const NEAR = 80; // pixels: so close to the end, the page follows an answer

/** The messages of the branch that is shown. */
export function Thread() {
  const chat = useChat();
  const scroller = useRef<HTMLDivElement>(null);
  const column = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const top = useRef(0); // where it was
  const [away, setAway] = useState(false);
  const toEnd = (): void => {
    const thread = scroller.current;
    if (!thread) return;
    follows.current = true;
    thread.scrollTo({ top: thread.scrollHeight });
    top.current = thread.scrollTop;
  };
  const scrolled = (): void => {
    const { scrollHeight, scrollTop, clientHeight } = scroller.current as HTMLDivElement;
    const left = scrollHeight - scrollTop - clientHeight;
    // Who scrolls up by a line is not taken back: the next token would. At the very end only the layout has changed.
    if (scrollTop < top.current) follows.current = left < 1;
    else if (left < NEAR) follows.current = true;
    top.current = scrollTop;
    setAway(!follows.current);
  };
  useEffect(toEnd, [chat.current.id]);
  useEffect(() => {
    if (follows.current || chat.running.length) toEnd(); // not where one steps between branches
  }, [chat.path.length]);
  useEffect(() => {
    const observer = new ResizeObserver(() => {
      if (follows.current) toEnd();
    });
    const thread = scroller.current as HTMLDivElement;
    for (const each of [thread, column.current as HTMLDivElement]) observer.observe(each);
    thread.addEventListener("toggle", scrolled, true); // of details, which does not bubble
    return () => {
      observer.disconnect();
      thread.removeEventListener("toggle", scrolled, true);
    };
  }, []);
  // What the user unfolds or steps to is read from its start: only the event "toggle" tells how long it is.
  const clicked = (event: MouseEvent): void => {
    if ((event.target as HTMLElement).closest("summary, .branches")) follows.current = false;
  };
  const busy = chat.running.length > 0;
  return (
    <div class="thread" ref={scroller} onScroll={scrolled} onClick={clicked} tabIndex={0} role="log" aria-live="off" aria-label={words.messages}>
      <div ref={column} class={`column ${chat.path.at(-1)?.pair ? "wider" : ""}`}>
        {chat.path.length === 0 && <Welcome />}
        {chat.path.map((message, index) => {
          if (message.pair && index === chat.path.length - 1) return <Pair key={message.pair} of={message} busy={busy} />;
          const siblings = chat.tree.siblings(message);
          return (
            <Shown key={message.id} message={message} growing={chat.runs.has(message.id)} busy={busy}
              last={index === chat.path.length - 1} far={index < chat.path.length - LAST} of={siblings.length}
              at={siblings.findIndex((each) => each.id === message.id) + 1} />
          );
        })}
      </div>
      {away && <button class="icon to-end" aria-label={words.toEnd} title={words.toEnd} onClick={toEnd}><Icon name="down" /></button>}
      <Spoken />
    </div>
  );
}

/** What an empty page shows. */
function Welcome() {
  const { served } = useChat();
  return (
    <div class="welcome">
      <Mark size={40} />
      <h1>{words.welcome}</h1>
      {served && <p>{served.id}{served.context > 0 && ` · ${words.contextOf(served.context)}`}</p>}
    </div>
  );
}

/** For screen readers: that an answer begins, and the whole of it when it is there. */
function Spoken() {
  const chat = useChat();
  const [was, setWas] = useState(false);
  const running = chat.running.length > 0;
  useEffect(() => {
    if (running) setWas(true);
  }, [running]);
  const last = chat.path.at(-1);
  const text = running ? words.answering : was && last?.role === "assistant" ? `${words.answered} ${last.text}` : "";
  return <div class="hidden" aria-live="polite">{text}</div>;
}
