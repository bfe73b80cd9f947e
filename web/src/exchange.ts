/** Conversations as files: JSONL with every branch, and Markdown of the branch that is shown. */

import { newId, type Bundle, type Conversation } from "./store";
import { Tree, type Message } from "./tree";

/** One line for each conversation: its header and all its messages. */
export function toJsonl(bundles: Bundle[]): string {
  return bundles.map((bundle) => JSON.stringify({ format: "olivine-chat-1", ...bundle }) + "\n").join("");
}

/** Reads what `toJsonl` writes. Ids are new, so that an import never overwrites what is there. */
export function fromJsonl(text: string): Bundle[] {
  return text.split("\n").flatMap((line, index) => {
    if (!line.trim()) return [];
    let given: unknown;
    try {
      given = JSON.parse(line);
    } catch {
      throw new Error(`line ${index + 1} is no JSON`);
    }
    const { conversation, messages } = (given ?? {}) as Partial<Bundle>;
    if (typeof conversation !== "object" || !conversation || !Array.isArray(messages)) {
      throw new Error(`line ${index + 1} is no conversation`);
    }
    return [renamed(conversation, messages, index + 1)];
  });
}

const ROLES = new Set(["user", "assistant", "tool"]);
const text = (value: unknown): string => (typeof value === "string" ? value : "");
const number = (value: unknown, otherwise: number): number =>
  typeof value === "number" && Number.isFinite(value) ? value : otherwise;

function renamed(conversation: Conversation, messages: Message[], line: number): Bundle {
  const id = newId();
  const ids = new Map<unknown, string>(messages.map((message) => [message?.id, newId()]));
  const known = (old: unknown): string | null => ids.get(old) ?? null;
  const now = Date.now();
  return {
    conversation: {
      id,
      title: text(conversation.title),
      created: number(conversation.created, now),
      updated: number(conversation.updated, now),
      pinned: conversation.pinned === true,
      leaf: known(conversation.leaf),
      model: text(conversation.model) || undefined,
      system: text(conversation.system),
      sampling: Object.fromEntries(
        Object.entries(conversation.sampling ?? {}).filter(([, value]) => typeof value === "number"),
      ),
      effort: text(conversation.effort),
    },
    messages: messages.map((message) => {
      if (!message || !ROLES.has(message.role)) throw new Error(`line ${line} has a message without a role`);
      return {
        ...message,
        id: known(message.id) as string,
        conversation: id,
        parent: known(message.parent),
        text: text(message.text),
        created: number(message.created, now),
      };
    }),
  };
}

export function toMarkdown({ conversation, messages }: Bundle, names: Record<Message["role"], string>): string {
  const parts = [`# ${conversation.title || names.assistant}`];
  for (const message of new Tree(messages).path(conversation.leaf)) {
    parts.push(`## ${names[message.role]}`);
    if (message.thinking) parts.push(message.thinking.trim().replace(/^/gm, "> "));
    for (const file of message.files ?? []) parts.push(`\`${file.name}\`\n\n${fenced(file.text)}`);
    for (const call of message.toolCalls ?? []) parts.push(fenced(`${call.name} ${call.arguments}`));
    if (message.text) parts.push(message.text);
  }
  return parts.join("\n\n") + "\n";
}

/** A code block whose fence is longer than any in the text. */
export function fenced(text: string, language = ""): string {
  const longest = Math.max(2, ...Array.from(text.matchAll(/`+/g), (found) => found[0].length));
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${text.replace(/\n$/, "")}\n${fence}`;
}
