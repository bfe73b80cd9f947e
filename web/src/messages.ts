/** What the user does with messages: send, edit, regenerate, step between branches. */

import { begin, follow, receive } from "./answers";
import { answersFor } from "./compare";
import { alter, bringBack, change, ensure, keep, show } from "./conversations";
import type { Attached } from "./drafts";
import { branchTo, chat, forgive, type Branch, type Run } from "./state";
import { newId } from "./store";
import type { Message } from "./tree";

const TITLE = 60; // characters of the first message that name a conversation

/** Opens a conversation, and takes up an answer that the server went on with while the page was reloaded. */
export async function open(id: string | null): Promise<void> {
  await show(id);
  const last = chat.path.at(-1);
  for (const each of last ? chat.tree.siblings(last) : []) {
    const shown = each.id === last?.id || (each.pair !== undefined && each.pair === last?.pair);
    if (shown && each.finish === "" && each.stream) void receive(each, branchTo(each.parent));
  }
}

/** A message at the end of a branch. */
async function add(
  { conversation, path }: Branch,
  fields: Omit<Message, "id" | "conversation" | "parent" | "created">,
  begin: (made: Message) => void = () => {}, // before it is shown
): Promise<Message> {
  const parent = path.at(-1);
  // Never before its parent, even where two follow each other within a millisecond.
  const created = Math.max(Date.now(), (parent?.created ?? 0) + 1);
  const made: Message = { ...fields, id: newId(), conversation: conversation.id, parent: parent?.id ?? null, created };
  begin(made);
  if (chat.current.id === conversation.id) {
    chat.messages.set(made.id, made);
    void bringBack().catch(() => {}); // where it cannot be stored, `keep` tells it
  }
  const stored = keep(made);
  const title = made.role === "user" && !conversation.title ? { title: titleOf(made.text) } : {};
  await alter(conversation.id, { leaf: made.id, updated: Date.now(), ...title });
  await stored;
  return made;
}

const titleOf = (text: string): string => text.trim().slice(0, TITLE);
const extended = (branch: Branch, by: Message): Branch => ({ ...branch, path: [...branch.path, by] });

export async function send(text: string, { files, media }: Attached): Promise<void> {
  ensure(titleOf(text));
  const branch = branchTo(chat.path.at(-1)?.id ?? null);
  const message = await add(branch, { role: "user", text, ...(files.length ? { files } : {}), ...(media.length ? { media } : {}) });
  await answer(extended(branch, message));
}

/** Another answer beside this one. */
export function regenerate(message: Message): Promise<void> {
  return answer(branchTo(message.parent));
}

/** Another version of a message beside it; one of the user's is answered. */
export async function edit(message: Message, text: string): Promise<void> {
  const { role, parent, files, media, thinking, model } = message;
  const branch = branchTo(parent);
  const made = await add(branch, { role, text, files, media, thinking, model, ...(role === "assistant" ? { finish: "stop" } : {}) });
  if (role === "user") await answer(extended(branch, made));
}

export function step(message: Message, by: number): Message | undefined {
  const all = chat.tree.siblings(message);
  const next = all[all.findIndex((each) => each.id === message.id) + by];
  if (next) void change({ leaf: chat.tree.leaf(next.id) });
  return next;
}

/** Asks for an answer, or for two where they are compared. */
async function answer(branch: Branch): Promise<void> {
  const { id } = branch.conversation;
  if ([...chat.runs.values()].some(({ message }) => message.conversation === id)) return;
  forgive();
  // It shows as an answer that is being made, and can be stopped, from the first frame on.
  const begun: Run[] = [];
  for (const fields of answersFor(branch)) {
    await add(branch, { role: "assistant", text: "", model: fields.asked?.model ?? branch.model, finish: "", ...fields },
      (made) => begun.push(begin(made)));
  }
  if (begun.some(({ controller }) => controller.signal.aborted)) for (const { controller } of begun) controller.abort();
  await Promise.all(begun.map((run) => follow(run, branch)));
}

/** The results of the functions that an answer called; then the model goes on. */
export async function sendResults(message: Message, results: string[]): Promise<void> {
  let branch = branchTo(message.id);
  for (const [index, call] of (message.toolCalls ?? []).entries()) {
    const made = await add(branch, { role: "tool", text: results[index] ?? "", toolCallId: call.id });
    branch = extended(branch, made);
  }
  await answer(branch);
}

/** Goes on with an answer that ended early. */
export function goOn(message: Message): Promise<void> {
  return receive({ ...message, stream: undefined }, branchTo(message.parent));
}
