/** Conversations as files: JSONL with every branch, and Markdown of the branch that is shown. */

import { base64Of, blobOf, isMedia, kindOf } from "./media";
import { newId, type Bundle, type Conversation } from "./store";
import { Tree, type Media, type Message } from "./tree";
import { words } from "./words";

/** One line for each conversation: its header and all its messages. Media are Base64. */
export async function toJsonl(bundles: Bundle[]): Promise<string> {
  const lines = bundles.map(async ({ folder, conversation, messages }) => {
    const written = await Promise.all(messages.map(withBase64));
    return JSON.stringify({ format: "olivine-chat-1", folder, conversation, messages: written }) + "\n";
  });
  return (await Promise.all(lines)).join("");
}

async function withBase64({ media, ...message }: Message): Promise<object> {
  if (!media) return message;
  const encoded = media.map(async ({ kind, name, data }) => ({ kind, name, type: data.type, data: await base64Of(data) }));
  return { ...message, media: await Promise.all(encoded) };
}

/** Media of a file; what is none is left out. */
function mediaOf(given: unknown): Media[] {
  return objects(given).flatMap(({ name, type, data }) => {
    const kind = kindOf(text(type));
    try {
      return kind && isMedia(text(type)) ? [{ kind, name: text(name), data: blobOf(text(data), text(type)) }] : [];
    } catch {
      return [];
    }
  });
}

/** Reads what `toJsonl` writes. Ids are new, so that an import never overwrites what is there. */
export function fromJsonl(file: string): Bundle[] {
  return file.split("\n").flatMap((line, index) => {
    if (!line.trim()) return [];
    let given: unknown;
    try {
      given = JSON.parse(line);
    } catch {
      throw new Error(`line ${index + 1} is no JSON`);
    }
    const { folder, conversation, messages } = (given ?? {}) as Partial<Bundle>;
    if (typeof conversation !== "object" || !conversation || !Array.isArray(messages)) {
      throw new Error(`line ${index + 1} is no conversation`);
    }
    return [{ folder: text(folder) || undefined, ...renamed(conversation, messages, index + 1) }];
  });
}

const ROLES = new Set(["user", "assistant", "tool"]);
const text = (value: unknown): string => (typeof value === "string" ? value : "");
const objects = (value: unknown): Record<string, unknown>[] =>
  Array.isArray(value) ? value.filter((each) => typeof each === "object" && each) : [];
const number = (value: unknown, otherwise: number): number =>
  typeof value === "number" && Number.isFinite(value) ? value : otherwise;

function textsOf<Name extends string>(given: Record<string, unknown>, ...names: Name[]): Record<Name, string> {
  return Object.fromEntries(names.map((name) => [name, text(given[name])])) as Record<Name, string>;
}

function numbersOf<Name extends string>(given: object, ...names: Name[]): Record<Name, number> {
  return Object.fromEntries(names.map((name) => [name, number(given[name as never], 0)])) as Record<Name, number>;
}

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
        Object.entries(conversation.sampling ?? {}).filter(([name, value]) => Object.hasOwn(words.parameters, name) && typeof value === "number"),
      ),
      effort: text(conversation.effort),
      tools: text(conversation.tools) || undefined,
    },
    messages: messages.map((message) => {
      if (!message || !ROLES.has(message.role)) throw new Error(`line ${line} has a message without a role`);
      const { model, thinking, thinkingSeconds, toolCalls, toolCallId, files, media, finish, speed } = message;
      return {
        id: known(message.id) as string,
        conversation: id,
        parent: known(message.parent),
        role: message.role,
        text: text(message.text),
        created: number(message.created, now),
        model: text(model) || undefined,
        thinking: typeof thinking === "string" ? thinking : undefined,
        thinkingSeconds: number(thinkingSeconds, 0),
        toolCalls: toolCalls && objects(toolCalls).map((call) => textsOf(call, "id", "name", "arguments")),
        toolCallId: text(toolCallId) || undefined,
        files: files && objects(files).map((file) => textsOf(file, "name", "text")),
        media: media && mediaOf(media),
        finish: typeof finish === "string" ? finish : undefined,
        speed: speed && numbersOf(speed, "promptTokens", "cachedTokens", "tokens", "perSecond"),
      };
    }),
  };
}

export function toMarkdown({ conversation, messages }: Bundle, names: Record<Message["role"], string>): string {
  const parts = [`# ${conversation.title || names.assistant}`];
  for (const message of new Tree(messages).path(conversation.leaf)) {
    parts.push(`## ${names[message.role]}`);
    if (message.thinking) parts.push(message.thinking.trim().replace(/^/gm, "> "));
    for (const { name } of message.media ?? []) parts.push(`\`${name}\``);
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
