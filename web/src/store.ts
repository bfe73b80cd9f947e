/**
 * Conversations in the browser (IndexedDB).
 *
 * Each message is a record of its own under a random id, and a conversation's header is changed field by field in one
 * transaction: two tabs that write at the same time never overwrite each other's messages.
 */

import { createStore, del, get, promisifyRequest, set, values, type UseStore } from "idb-keyval";
import type { Message } from "./tree";

export interface Sampling {
  temperature?: number;
  top_p?: number;
  top_k?: number;
  min_p?: number;
  repetition_penalty?: number;
  presence_penalty?: number;
  frequency_penalty?: number;
  max_tokens?: number;
  seed?: number;
}

/** What an answer is asked for with. */
export interface Asked {
  model?: string;
  system: string;
  sampling: Sampling;
  effort: string; // of thinking; "" is the model's own
}

export interface Conversation extends Asked {
  id: string;
  title: string;
  created: number;
  updated: number;
  pinned: boolean;
  folder?: string;
  leaf: string | null; // the end of the branch that is shown
  tools?: string; // functions that the model may call: JSON, as the user wrote it
  other?: Asked; // while answers are compared: with what the second is asked for
}

export interface Folder {
  id: string;
  name: string;
  created: number;
}

export const newId = (): string =>
  Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");

/** A conversation that nothing was said in: without an id, and in no store. */
export function blank(): Conversation {
  const now = Date.now();
  return { id: "", title: "", created: now, updated: now, pinned: false, leaf: null, system: "", sampling: {}, effort: "" };
}

export class Store {
  private readonly headers: UseStore;
  private readonly messages: UseStore;
  private readonly kept: UseStore;
  private readonly channel: BroadcastChannel | null;

  constructor(name = "olivine", onChange: (conversation: string) => void = () => {}) {
    this.headers = createStore(`${name}-conversations`, "conversations");
    this.messages = createStore(`${name}-messages`, "messages");
    this.kept = createStore(`${name}-folders`, "folders");
    this.channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel(name);
    if (this.channel) this.channel.onmessage = (event) => onChange(String(event.data));
  }

  /** Pinned ones first, then the newest. */
  async list(): Promise<Conversation[]> {
    const found = await values<Conversation>(this.headers);
    return found.sort((a, b) => Number(b.pinned) - Number(a.pinned) || b.updated - a.updated);
  }

  async create(given: Partial<Conversation> = {}): Promise<Conversation> {
    const made = { ...blank(), id: newId(), ...given };
    await set(made.id, made, this.headers);
    this.tell(made.id);
    return made;
  }

  get(id: string): Promise<Conversation | undefined> {
    return get<Conversation>(id, this.headers);
  }

  /** Changes fields of a header and leaves the others as they are in the database. One that another tab has deleted
   * stays deleted. */
  async change(id: string, fields: Partial<Conversation>): Promise<void> {
    await this.headers("readwrite", async (store) => {
      const old = await promisifyRequest<Conversation | undefined>(store.get(id));
      if (old) await promisifyRequest(store.put({ ...old, ...fields }, id));
    });
    this.tell(id);
  }

  async messagesOf(conversation: string): Promise<Message[]> {
    const range = IDBKeyRange.bound(`${conversation}/`, `${conversation}/\uffff`);
    return this.messages("readonly", (store) => promisifyRequest<Message[]>(store.getAll(range)));
  }

  async save(message: Message, quiet = false): Promise<void> {
    await set(`${message.conversation}/${message.id}`, message, this.messages);
    if (!quiet) this.tell(message.conversation);
  }

  /** Removes a conversation, and gives what `restore` needs to bring it back. */
  async remove(id: string): Promise<Bundle | null> {
    const conversation = await this.get(id);
    if (!conversation) return null;
    const messages = await this.messagesOf(id);
    await this.messages("readwrite", (store) => {
      for (const message of messages) store.delete(`${id}/${message.id}`);
      return promisifyRequest(store.transaction);
    });
    await del(id, this.headers);
    this.tell(id);
    return { conversation, messages };
  }

  async restore({ conversation, messages }: Bundle): Promise<void> {
    await this.messages("readwrite", (store) => {
      for (const message of messages) store.put(message, `${conversation.id}/${message.id}`);
      return promisifyRequest(store.transaction);
    });
    await set(conversation.id, conversation, this.headers);
    this.tell(conversation.id);
  }

  /** By name. */
  async folders(): Promise<Folder[]> {
    return (await values<Folder>(this.kept)).sort((a, b) => a.name.localeCompare(b.name) || a.created - b.created);
  }

  async saveFolder(folder: Folder): Promise<void> {
    await set(folder.id, folder, this.kept);
    this.tell("");
  }

  /** Conversations in it stay, without a folder. */
  async removeFolder(id: string): Promise<void> {
    await del(id, this.kept);
    this.tell("");
  }

  /** The ids of conversations with this text in the title or in a message. */
  async search(text: string): Promise<Set<string>> {
    const wanted = text.toLocaleLowerCase();
    const has = (given: string | undefined): boolean => (given ?? "").toLocaleLowerCase().includes(wanted);
    const found = new Set<string>();
    for (const each of await values<Conversation>(this.headers)) if (has(each.title)) found.add(each.id);
    for (const each of await values<Message>(this.messages)) if (has(each.text)) found.add(each.conversation);
    return found;
  }

  private tell(conversation: string): void {
    this.channel?.postMessage(conversation);
  }
}

export interface Bundle {
  folder?: string; // its name, where it may have another id
  conversation: Conversation;
  messages: Message[];
}
