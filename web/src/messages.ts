/** What the user does with messages: send, edit, regenerate, step between branches. */

import { receive } from "./answers";
import { pairFor } from "./compare";
import { change, ensure, keep, show } from "./conversations";
import type { Attached } from "./drafts";
import { chat, forgive } from "./state";
import { newId } from "./store";
import type { Message } from "./tree";

const TITLE = 60; // characters of the first message that name a conversation

/** Opens a conversation, and takes up an answer that the server went on with while the page was reloaded. */
export async function open(id: string | null): Promise<void> {
  await show(id);
  const last = chat.path.at(-1);
  for (const each of last ? chat.tree.siblings(last) : []) {
    const shown = each.id === last?.id || (each.pair !== undefined && each.pair === last?.pair);
    if (shown && each.finish === "" && each.stream) void receive(each);
  }
}

async function add(
  message: Omit<Message, "id" | "conversation" | "created">,
  begin: (made: Message) => void = () => {}, // before it is shown
): Promise<Message> {
  const title = message.text.trim().slice(0, TITLE);
  const { id } = await ensure(title);
  // Never before its parent, even where two follow each other within a millisecond.
  const created = Math.max(Date.now(), (chat.tree.get(message.parent)?.created ?? 0) + 1);
  const made: Message = { ...message, id: newId(), conversation: id, created };
  chat.messages.set(made.id, made);
  begin(made);
  if (chat.current && !chat.current.title) chat.current.title = title;
  await keep(made);
  await change({ leaf: made.id, updated: Date.now(), title: chat.current?.title ?? "" });
  return made;
}

export async function send(text: string, { files, media }: Attached): Promise<void> {
  const parent = chat.path.at(-1)?.id ?? null;
  const message = await add({ role: "user", parent, text, ...(files.length ? { files } : {}), ...(media.length ? { media } : {}) });
  await answer(message.id);
}

/** Another answer beside this one. */
export function regenerate(message: Message): Promise<void> {
  return answer(message.parent);
}

/** Another version of a message beside it; one of the user's is answered. */
export async function edit(message: Message, text: string): Promise<void> {
  const { role, parent, files, media, thinking, model } = message;
  const made = await add({ role, parent, text, files, media, thinking, model, ...(role === "assistant" ? { finish: "stop" } : {}) });
  if (role === "user") await answer(made.id);
}

export function step(message: Message, by: number): void {
  const all = chat.tree.siblings(message);
  const next = all[all.findIndex((each) => each.id === message.id) + by];
  if (next) void change({ leaf: chat.tree.leaf(next.id) });
}

/** Asks for an answer, or for two where they are compared. */
async function answer(parent: string | null): Promise<void> {
  if (chat.running.length) return;
  forgive();
  // It shows as an answer that is being made from the first frame on.
  const begin = (made: Message): void =>
    void chat.runs.set(made.id, { message: made, controller: new AbortController() });
  const other = chat.current?.other;
  const made: Message[] = [];
  for (const fields of other ? pairFor(other) : [{ asked: undefined }]) {
    made.push(await add({ role: "assistant", parent, text: "", model: fields.asked?.model ?? chat.model, finish: "", ...fields }, begin));
  }
  for (const { id } of made) chat.runs.delete(id);
  await Promise.all(made.map((message) => receive(message)));
}

/** The results of the functions that an answer called; then the model goes on. */
export async function sendResults(message: Message, results: string[]): Promise<void> {
  let parent = message.id;
  for (const [index, call] of (message.toolCalls ?? []).entries()) {
    const made = await add({ role: "tool", parent, text: results[index] ?? "", toolCallId: call.id });
    parent = made.id;
  }
  await answer(parent);
}

/** Goes on with an answer that ended early. */
export function goOn(message: Message): Promise<void> {
  return receive({ ...message, stream: undefined });
}
