import { Component } from "preact";
import { useEffect, useState } from "preact/hooks";
import { endThinking, lockOf } from "../answers";
import { copyText } from "../clipboard";
import { fenced } from "../exchange";
import { focusMessage, focusSoon } from "../focus";
import { held } from "../locks";
import { goOn, regenerate, step } from "../messages";
import { tell } from "../state";
import type { Message } from "../tree";
import { words } from "../words";
import { Shown as Attached } from "./Attachments";
import { Editor } from "./Editor";
import { Markdown } from "./Markdown";
import { Call, Result, Results } from "./Tools";

interface Props {
  message: Message;
  growing: boolean;
  busy: boolean; // an answer is being made in this conversation
  last: boolean;
  far?: boolean; // from the end of the conversation, where it opens
  at: number; // which of the siblings, and of how many
  of: number;
}

/** Messages never change but for the one that grows: the others are not drawn again. One that cannot be drawn shows as
 * typed: the others stay. */
export class Shown extends Component<Props, { failed: boolean }> {
  override state = { failed: false };

  override shouldComponentUpdate(next: Props, { failed }: { failed: boolean }): boolean {
    return failed !== this.state.failed || (Object.keys(next) as (keyof Props)[]).some((name) => next[name] !== this.props[name]);
  }

  override componentDidCatch(): void {
    this.setState({ failed: true });
  }

  override render(props: Props, { failed }: { failed: boolean }) {
    if (!failed) return <Article {...props} />;
    return <article class={props.message.role}><p class="as-typed" dir="auto">{props.message.text}</p></article>;
  }
}

function Article({ message, growing, busy, last, far, at, of }: Props) {
  const [editing, setEditing] = useState(false);
  const names = { user: words.you, assistant: message.model ?? words.assistant, tool: words.tool };
  const { role, text } = message;
  const editable = role !== "tool" && !message.pair;
  return (
    <article class={role} aria-busy={growing} aria-label={names[role]}>
      {role === "assistant" && <h3 class="author">{names[role]}</h3>}
      {message.thinking !== undefined && <Thinking message={message} growing={growing} />}
      {message.media && <div class="media">{message.media.map((each, index) => <Attached key={index} media={each} />)}</div>}
      {message.files?.map((file, index) => (
        <details class="file" key={index}><summary>{file.name}</summary><pre>{file.text}</pre></details>
      ))}
      {editing ? (
        <Editor message={message} busy={busy} close={() => setEditing(false)} />
      ) : role === "user" ? (
        text && <p class="typed" dir="auto">{text}</p>
      ) : role === "tool" ? (
        <Result message={message} />
      ) : (
        <Markdown text={asAnswer(text, growing)} growing={growing} far={far} />
      )}
      {growing && !text && !message.thinking && <span class="dots" aria-hidden="true"><i /><i /><i /></span>}
      {message.toolCalls?.map((call, index) => <Call key={index} call={call} />)}
      {last && !busy && message.toolCalls && <Results message={message} />}
      {!growing && role === "assistant" && <Ending message={message} last={last && !busy} />}
      {!editing && !growing && (
        <footer>
          {of > 1 && (
            <span class="branches" id={branchesOf(message)}>
              <button class="quiet" aria-label={words.previousBranch} disabled={busy || at === 1} onClick={() => toBranch(message, -1)}>‹</button>
              <span title={words.branch(at, of)}>{at}/{of}</span>
              <button class="quiet" aria-label={words.nextBranch} disabled={busy || at === of} onClick={() => toBranch(message, 1)}>›</button>
            </span>
          )}
          {!isEmpty(message) && <button class="quiet" onClick={() => void copyText(text).then(() => tell(words.copied))}>{words.copy}</button>}
          {editable && !isEmpty(message) && <button class="quiet edit" disabled={busy} onClick={() => setEditing(true)}>{words.edit}</button>}
          {role === "assistant" && editable && <button class="quiet" disabled={busy} onClick={() => { focusMessage(); void regenerate(message); }}>{words.regenerate}</button>}
          {message.speed && <Figures message={message} />}
        </footer>
      )}
    </article>
  );
}

const branchesOf = (message: Message): string => `branches-${message.id}`;

/** Shows another branch, whose button gets the focus: the next key goes on, or back at the last one. */
function toBranch(message: Message, by: number): void {
  const next = step(message, by);
  if (!next) return;
  focusSoon(() => {
    const buttons = [...document.querySelectorAll<HTMLButtonElement>(`#${branchesOf(next)} button`)];
    return (by < 0 ? buttons : buttons.reverse()).find(({ disabled }) => !disabled);
  });
}

/** An answer that is one JSON value, as a `response_format` gives it, shows as code. */
function asAnswer(text: string, growing: boolean): string {
  if (growing || !/^\s*[[{]/.test(text)) return text;
  try {
    return fenced(JSON.stringify(JSON.parse(text), null, 2), "json");
  } catch {
    return text;
  }
}

function Figures({ message: { speed } }: { message: Message }) {
  if (!speed) return null;
  return (
    <span class="figures">
      {words.speed(speed.tokens, speed.perSecond)} · {words.prompt(speed.promptTokens, speed.cachedTokens)}
    </span>
  );
}

function Thinking({ message, growing }: { message: Message; growing: boolean }) {
  const now = growing && !message.text;
  return (
    <div class="thoughts">
      <details class="thinking">
        <summary>{now ? words.thinkingNow : words.thought(message.thinkingSeconds ?? 0)}</summary>
        <Markdown text={message.thinking ?? ""} growing={now} />
      </details>
      {now && <button class="answer-now" onClick={() => void endThinking(message)}>{words.answerNow}</button>}
    </div>
  );
}

/** An answer that failed before it began. */
const isEmpty = ({ role, text, thinking, toolCalls }: Message): boolean => role === "assistant" && !text && !thinking && !toolCalls?.length;

const ENDINGS: Record<string, string> = {
  "": words.broken, length: words.cut, stopped: words.stopped, broken: words.broken,
};

const LOOK_AGAIN = 1000; // ms

/** Whether another tab is receiving the answer; undefined until that is known. */
function useElsewhere(message: Message): boolean | undefined {
  const open = message.finish === "";
  const [elsewhere, setElsewhere] = useState<boolean | undefined>(open ? undefined : false);
  useEffect(() => {
    if (!open) return setElsewhere(false);
    let timer = 0;
    let ended = false;
    const look = async (): Promise<void> => {
      const found = await held(lockOf(message));
      if (ended) return;
      setElsewhere(found);
      if (found) timer = window.setTimeout(() => void look(), LOOK_AGAIN);
    };
    void look();
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, [message.id, open]);
  return elsewhere;
}

function Ending({ message, last }: { message: Message; last: boolean }) {
  const elsewhere = useElsewhere(message);
  if (elsewhere === undefined) return null;
  if (elsewhere) return <p class="ending">{words.answering}</p>;
  const ending = ENDINGS[message.finish ?? "stop"];
  if (isEmpty(message)) return <p class="ending">{words.noAnswer}</p>; // nothing to continue
  if (!ending) return null;
  return (
    <p class="ending">
      {ending} {last && <button onClick={() => void goOn(message)}>{words.continue}</button>}
    </p>
  );
}
