/** The same question to two models or settings: two answers side by side, until one of them is kept. */

import { alter, change, store } from "./conversations";
import { branchTo, chat, type Branch } from "./state";
import { newId, type Asked, type Sampling } from "./store";
import type { Message } from "./tree";
import { words } from "./words";

/** What a conversation asks with. */
export function own({ conversation, model }: Branch = branchTo(null)): Asked {
  const { system, sampling, effort } = conversation;
  return { model, system, sampling, effort };
}

/** A second one, which starts with another model where there is one. */
export async function startComparing(): Promise<void> {
  if (chat.current.other) return;
  const another = chat.models.find((each) => each.id !== chat.model && each.problem === undefined);
  await change({ other: { ...own(), model: another?.id ?? chat.model } });
}

export const stopComparing = (): Promise<void> => change({ other: undefined });

/** The answers beside this one that wait for a choice, itself among them. */
export function pairOf(message: Message): Message[] {
  if (!message.pair) return [];
  return chat.tree.siblings(message).filter((each) => each.pair === message.pair).map((each) => chat.messages.get(each.id) ?? each);
}

/** Goes on with this answer; the other one is a branch beside it. */
export async function keep(message: Message): Promise<void> {
  const both = pairOf(message).map(({ pair: _, ...each }) => each);
  for (const each of both) chat.messages.set(each.id, each);
  await Promise.all(both.map((each) => store.save(each)));
  await alter(message.conversation, { leaf: message.id });
}

/** Fields for two answers that belong together, or for the one that is asked for. */
export function answersFor(branch: Branch): { pair?: string; asked?: Asked }[] {
  const { other } = branch.conversation;
  if (!other) return [{}];
  const pair = newId();
  return [own(branch), other].map((asked) => ({ pair, asked }));
}

/** How one differs from the other, in words. */
export function differences(one: Asked, other: Asked): string[] {
  const names = Object.keys(words.parameters) as (keyof Sampling)[];
  const changed = names.filter((name) => one.sampling[name] !== other.sampling[name]);
  return [
    ...changed.map((name) => `${words.parameters[name]} ${one.sampling[name] ?? words.ownChoice}`),
    ...(one.effort === other.effort ? [] : [`${words.effort}: ${words.efforts[one.effort as keyof typeof words.efforts] ?? one.effort}`]),
    ...(one.system.trim() === other.system.trim() ? [] : [one.system.trim() ? words.otherSystem : words.noSystem]),
  ];
}
