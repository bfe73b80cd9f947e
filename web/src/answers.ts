/** Answers as they come from the server: stored as they grow, taken up again where a connection broke. */

import * as api from "./api";
import { ServerError } from "./api";
import { own } from "./compare";
import { keep, refresh, store } from "./conversations";
import { hold } from "./locks";
import { readModels, retryAfter } from "./server";
import { arrange, branchTo, chat, draw, fail, forgive, type Branch, type Run } from "./state";
import { toolsOf } from "./tools";
import type { Message } from "./tree";

const SAVE_EVERY = 1000; // ms between writes of an answer that grows

/** Receives an answer to a branch into a message, after what that has already. */
export async function receive(message: Message, branch: Branch, attempt = 0): Promise<void> {
  if (!chat.runs.has(message.id)) await follow(begin(message), branch, attempt);
}

/** From now on the message is an answer that is being made. */
export function begin(message: Message): Run {
  const run: Run = { message, controller: new AbortController(), id: message.stream?.answer };
  chat.runs.set(message.id, run);
  return run;
}

/** What the tab that receives an answer holds. */
export const lockOf = ({ id }: Message): string => `olivine-answer:${id}`;

/** Receives the answer of a run. */
export async function follow(run: Run, branch: Branch, attempt = 0): Promise<void> {
  const { message } = run;
  const release = await hold(lockOf(message));
  if (!release) {
    chat.runs.delete(message.id); // another tab receives it
    return draw();
  }
  forgive(message.id);
  put(run, { finish: "" });
  let told = (): void => {};
  try {
    await takeAll(run, branch);
    put(run, { stream: undefined });
  } catch (error) {
    told = end(run, error, attempt);
  } finally {
    // All this before it is no run any more: whoever opens the conversation now shows it whole, and what one clicks on
    // once it is complete is not drawn again. Where it cannot be stored, `keep` tells it.
    await keep(run.message);
    await store.change(message.conversation, { updated: Date.now() }).then(refresh).catch(() => {});
    chat.runs.delete(message.id);
    arrange(); // the tree has the message as it was at the start
    release();
    // After all this: whoever tries it again now starts a run of its own. Who has stopped it meanwhile wants no more.
    if (!run.controller.signal.aborted) told();
  }
}

export function stop(): void {
  for (const run of chat.running) run.controller.abort();
}

/** Ends the thoughts of an answer: it goes on with what it would say. */
export async function endThinking({ id, conversation }: Message): Promise<void> {
  const sent = chat.runs.get(id)?.id;
  if (sent) await api.endThinking(sent).catch((error) => fail(error, conversation));
}

async function takeAll(run: Run, branch: Branch): Promise<void> {
  const { message, controller: { signal } } = run;
  const messages = message.text || message.thinking ? [...branch.path, message] : branch.path;
  const served = chat.models.some((each) => each.id === message.model);
  const begun = messages !== branch.path && served ? message.model : undefined; // what it began with goes on
  const { system, sampling, effort } = message.asked ?? own(branch);
  const model = message.asked?.model ?? begun ?? branch.model;
  const takes = takesOf(chat.models.find((each) => each.id === model));
  const tools = toolsOf(branch.conversation.tools ?? "");
  const deltas = message.stream
    ? api.resume(message.stream, message.toolCalls ?? [], signal)
    : api.chat({ model, takes, system, messages, sampling, effort, tools }, signal);
  if (!message.stream) put(run, { model });
  let saved = 0;
  for await (const delta of deltas) {
    take(run, delta);
    if (Date.now() - saved > SAVE_EVERY) {
      saved = Date.now();
      void keep(run.message);
    }
  }
}

const takesOf = (model?: api.Model): api.Takes => ({ image: model?.vision === true, audio: model?.audio === true });

/** An answer ended early: the user stopped it, or something is wrong. Gives what tells the user of it. */
function end(run: Run, error: unknown, attempt: number): () => void {
  const { stream } = run.message;
  if (run.controller.signal.aborted) {
    if (stream) void api.endStream(stream.id).catch(() => {});
    put(run, { finish: "stopped", stream: undefined });
    return () => {};
  }
  const { code } = error instanceof ServerError ? error : new ServerError(String(error), "");
  if (stream && (code === "not_found" || code === "gone")) {
    put(run, { finish: "broken", stream: undefined }); // it can be continued
    return () => {};
  }
  put(run, { finish: "broken", ...(code === "unreachable" ? {} : { stream: undefined }) });
  return () => tellFailure(run, error, code, attempt);
}

function tellFailure(run: Run, error: unknown, code: string, attempt: number): void {
  const { conversation, stream, text } = run.message;
  const again = (next = 0): void => void receiveIn(conversation, run.message, next);
  fail(error, conversation, again, run.message.id);
  if (code === "model_not_found") void readModels(); // the list was an old one
  if (code === "unreachable" && (stream || !text)) {
    setTimeout(() => {
      if (chat.failure?.again.get(run.message.id) === again) again(attempt + 1);
    }, 1000 * retryAfter(attempt));
  }
}

/** Once more, if the conversation is still the one that is shown. */
async function receiveIn(conversation: string, message: Message, attempt = 0): Promise<void> {
  if (chat.current.id === conversation) await receive(message, branchTo(message.parent), attempt);
}

function take(run: Run, delta: api.Delta): void {
  const { text, thinking = "", thinkingSeconds } = run.message;
  const fields: Partial<Message> = {};
  if (delta.id) run.id = delta.id;
  if (delta.thinking) {
    run.thinkingSince ??= performance.now() - 1000 * (thinkingSeconds ?? 0);
    fields.thinking = thinking + delta.thinking;
  }
  if (delta.text) fields.text = text + delta.text;
  if (run.thinkingSince !== undefined && (delta.thinking || (delta.text && !text))) {
    fields.thinkingSeconds = (performance.now() - run.thinkingSince) / 1000;
  }
  if (delta.stream) fields.stream = delta.stream;
  if (delta.toolCalls) fields.toolCalls = delta.toolCalls;
  if (delta.finish) fields.finish = delta.finish;
  if (delta.speed) fields.speed = delta.speed;
  put(run, fields);
}

/** The message of a run with new fields, shown if its conversation is. */
function put(run: Run, fields: Partial<Message>): void {
  run.message = { ...run.message, ...fields };
  if (chat.current.id !== run.message.conversation) return;
  chat.messages.set(run.message.id, run.message);
  const at = chat.path.findLastIndex((each) => each.id === run.message.id);
  if (at >= 0) chat.path = chat.path.with(at, run.message);
  draw();
}
