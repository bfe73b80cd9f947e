/** A conversation is a tree of messages: an edit or another answer is a sibling, and nothing is overwritten. */

import type { Asked } from "./store";

export interface ToolCall {
  id: string;
  name: string;
  arguments: string;
}

export interface Speed {
  promptTokens: number;
  cachedTokens: number;
  tokens: number;
  perSecond: number;
}

export interface TextFile {
  name: string;
  text: string;
}

export interface Media {
  kind: "image" | "audio";
  name: string;
  data: Blob;
}

/** A stream of the server, and the last event of it that a message has. */
export interface Place {
  id: string;
  event: string;
  answer?: string; // the id of the answer that it brings
}

export interface Message {
  id: string;
  conversation: string;
  parent: string | null;
  role: "user" | "assistant" | "tool";
  text: string;
  created: number;
  model?: string;
  thinking?: string;
  thinkingSeconds?: number;
  toolCalls?: ToolCall[];
  toolCallId?: string; // of a tool's result
  files?: TextFile[];
  media?: Media[];
  stream?: Place; // while it is made: where to take it up again
  finish?: string; // why the answer ended; "" while it is made
  speed?: Speed;
  pair?: string; // of two answers that are compared, until one of them is kept
  asked?: Asked; // where it is not what the conversation says
}

export class Tree {
  private readonly byId = new Map<string, Message>();
  private readonly byParent = new Map<string | null, Message[]>();

  constructor(messages: Iterable<Message>) {
    const sorted = [...messages].sort((a, b) => a.created - b.created || (a.id < b.id ? -1 : 1));
    for (const message of sorted) this.byId.set(message.id, message);
    for (const message of sorted) {
      const parent = message.parent !== null && this.byId.has(message.parent) ? message.parent : null;
      this.byParent.set(parent, [...(this.byParent.get(parent) ?? []), message]);
    }
  }

  get(id: string | null): Message | undefined {
    return id === null ? undefined : this.byId.get(id);
  }

  /** From the first message to this one. A cycle, which only a broken import can have, ends it. */
  path(leaf: string | null): Message[] {
    const found: Message[] = [];
    const seen = new Set<string>();
    for (let at = this.get(leaf); at && !seen.has(at.id); at = this.get(at.parent)) {
      seen.add(at.id);
      found.unshift(at);
    }
    return found;
  }

  /** The messages in the same place, oldest first, the message itself among them. */
  siblings(message: Message): Message[] {
    const parent = this.byId.has(message.parent ?? "") ? message.parent : null;
    return this.byParent.get(parent) ?? [message];
  }

  /** The end of the branch of a message: its newest descendants. */
  leaf(id: string): string {
    const seen = new Set<string>();
    let at = id;
    while (!seen.has(at)) {
      seen.add(at);
      const next = this.byParent.get(at)?.at(-1);
      if (!next) break;
      at = next.id;
    }
    return at;
  }

  /** The leaf to show where none is remembered, or where that one is gone. */
  newest(): string | null {
    const roots = this.byParent.get(null);
    const last = roots?.at(-1);
    return last ? this.leaf(last.id) : null;
  }
}
