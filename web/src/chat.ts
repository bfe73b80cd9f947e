/** What the page shows, and everything that changes it. Components read `chat` and call its methods. */

import { useEffect, useState } from "preact/hooks";
import * as api from "./api";
import { ServerError, type Model } from "./api";
import { hold } from "./locks";
import { preference, setPreference } from "./preferences";
import { newId, Store, type Bundle, type Conversation, type Sampling } from "./store";
import { Tree, type Message } from "./tree";
import { words } from "./words";

const SAVE_EVERY = 1000; // ms between writes of an answer that grows
const RETRY_AFTER = [1, 2, 4, 8, 15]; // seconds, while the server cannot be reached

/** An answer that this tab is receiving. */
export interface Run {
  message: Message;
  controller: AbortController;
  id?: string; // the server's
  thinkingSince?: number;
}

export interface Notice {
  text: string;
  undo?: () => void;
}

export interface Failure {
  error: ServerError;
  conversation: string;
  again?: () => void; // tries the same once more
}

class Chat {
  conversations: Conversation[] = [];
  current: Conversation | null = null;
  tree = new Tree([]);
  path: Message[] = [];
  models: Model[] = [];
  model = preference("model");
  defaults: Sampling = {};
  loading: number | null = null; // how far a load is
  notice: Notice | null = null;
  failure: Failure | null = null;

  private readonly store = new Store("olivine", (id) => void this.changedElsewhere(id));
  private readonly runs = new Map<string, Run>(); // by conversation
  private readonly listeners = new Set<() => void>();
  private messages = new Map<string, Message>();
  private drawing = false;

  // ---- showing

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => void this.listeners.delete(listener);
  }

  /** Draws once in a frame, however many tokens have come. */
  private draw(): void {
    if (this.drawing) return;
    this.drawing = true;
    const now = (): void => {
      this.drawing = false;
      this.listeners.forEach((listener) => listener());
    };
    if (document.hidden) setTimeout(now, 100); // frames are not counted in a hidden tab
    else requestAnimationFrame(now);
  }

  private arrange(): void {
    this.tree = new Tree(this.messages.values());
    const leaf = this.current?.leaf ?? null;
    this.path = this.tree.path(this.tree.get(leaf) ? leaf : this.tree.newest());
    this.draw();
  }

  get run(): Run | undefined {
    return this.current ? this.runs.get(this.current.id) : undefined;
  }

  get served(): Model | undefined {
    return this.models.find((each) => each.id === this.model);
  }

  tell(text: string, undo?: () => void): void {
    const notice: Notice = { text, undo };
    this.notice = notice;
    this.draw();
    setTimeout(() => {
      if (this.notice === notice) this.dismiss();
    }, 8000);
  }

  dismiss(): void {
    this.notice = null;
    this.draw();
  }

  forgive(): void {
    this.failure = null;
    this.draw();
  }

  // ---- the server

  async start(): Promise<void> {
    api.useKey(preference("key"));
    await this.refresh();
    const wanted = location.hash.slice(1);
    if (wanted) await this.open(wanted);
    await this.connect();
  }

  async connect(attempt = 0): Promise<void> {
    try {
      this.models = await api.listModels();
      if (!this.served) this.model = this.models[0]?.id ?? "";
      this.failure = null;
      await this.readDefaults();
    } catch (error) {
      this.fail(error, "", () => void this.connect());
      if ((error as ServerError).code === "unreachable") {
        setTimeout(() => void this.connect(attempt + 1), 1000 * (RETRY_AFTER[attempt] ?? 15));
      }
    }
    this.draw();
  }

  private async readDefaults(): Promise<void> {
    if (this.model) this.defaults = await api.defaultsOf(this.model).catch(() => ({}));
  }

  useKey(key: string): void {
    setPreference("key", key);
    api.useKey(key);
    const again = this.failure?.again;
    this.failure = null;
    void this.connect().then(again);
  }

  async choose(model: string): Promise<void> {
    this.model = model;
    setPreference("model", model);
    if (this.current) await this.change({ model });
    this.draw();
    await this.load();
  }

  /** Loads the chosen model where it is not loaded. */
  private async load(): Promise<void> {
    try {
      if (this.served?.state !== "loaded") {
        this.loading = 0;
        await api.loadModel(this.model, (part) => {
          this.loading = part;
          this.draw();
        });
        this.models = await api.listModels();
      }
      await this.readDefaults();
    } catch (error) {
      this.fail(error, "", () => void this.load());
    }
    this.loading = null;
    this.draw();
  }

  private fail(error: unknown, conversation: string, again?: () => void): void {
    const known = error instanceof ServerError ? error : new ServerError(String(error), "");
    this.failure = { error: known, conversation, again };
    this.draw();
  }

  // ---- conversations

  async refresh(): Promise<void> {
    this.conversations = await this.store.list();
    this.draw();
  }

  async open(id: string | null): Promise<void> {
    this.current = (id && (await this.store.get(id))) || null;
    const found = this.current ? await this.store.messagesOf(this.current.id) : [];
    this.messages = new Map(found.map((message) => [message.id, message]));
    if (this.run) this.messages.set(this.run.message.id, this.run.message);
    const model = this.current?.model;
    if (model && model !== this.model && this.models.some((each) => each.id === model)) {
      this.model = model;
      void this.readDefaults().then(() => this.draw());
    }
    history.replaceState(null, "", this.current ? `#${this.current.id}` : location.pathname + location.search);
    this.arrange();
    const last = this.path.at(-1);
    if (last?.finish === "" && last.stream) void this.receive(last); // the page was reloaded meanwhile
  }

  private async changedElsewhere(id: string): Promise<void> {
    await this.refresh();
    if (id !== this.current?.id) return;
    const leaf = this.current.leaf;
    const header = await this.store.get(id);
    if (!header) return; // deleted there: what is shown here stays until another one is opened
    for (const message of await this.store.messagesOf(id)) {
      if (message.id !== this.run?.message.id) this.messages.set(message.id, message);
    }
    this.current = { ...header, leaf };
    this.arrange();
  }

  /** The conversation that is shown; the first message or setting makes one. */
  private async ensure(title = ""): Promise<Conversation> {
    if (!this.current) {
      this.current = await this.store.create({ title, model: this.model });
      history.replaceState(null, "", `#${this.current.id}`);
    }
    return this.current;
  }

  /** Changes fields of the conversation that is shown. */
  async change(fields: Partial<Conversation>): Promise<void> {
    const { id } = await this.ensure();
    if (this.current?.id === id) this.current = { ...this.current, ...fields };
    this.arrange();
    await this.store.change(id, fields);
    await this.refresh();
  }

  async alter(id: string, fields: Partial<Conversation>): Promise<void> {
    if (id === this.current?.id) return this.change(fields);
    await this.store.change(id, fields);
    await this.refresh();
  }

  async remove(id: string): Promise<void> {
    this.runs.get(id)?.controller.abort();
    const bundle = await this.store.remove(id);
    if (id === this.current?.id) await this.open(null);
    await this.refresh();
    if (!bundle) return;
    this.tell(words.deleted(bundle.conversation.title || words.untitled), () => void this.restore([bundle]));
  }

  async restore(bundles: Bundle[]): Promise<void> {
    for (const bundle of bundles) await this.store.restore(bundle);
    this.notice = null;
    await this.refresh();
  }

  search(text: string): Promise<Set<string>> {
    return this.store.search(text);
  }

  async bundle(id: string): Promise<Bundle[]> {
    const conversation = await this.store.get(id);
    return conversation ? [{ conversation, messages: await this.store.messagesOf(id) }] : [];
  }

  // ---- messages

  private async add(
    message: Omit<Message, "id" | "conversation" | "created">,
    begin: (made: Message) => void = () => {}, // before it is shown
  ): Promise<Message> {
    const { id } = await this.ensure(message.text.trim().slice(0, 60));
    // Never before its parent, even where two follow each other within a millisecond.
    const created = Math.max(Date.now(), (this.tree.get(message.parent)?.created ?? 0) + 1);
    const made: Message = { ...message, id: newId(), conversation: id, created };
    this.messages.set(made.id, made);
    begin(made);
    if (this.current && !this.current.title) this.current.title = made.text.trim().slice(0, 60);
    await this.store.save(made);
    await this.change({ leaf: made.id, updated: Date.now(), title: this.current?.title ?? "" });
    return made;
  }

  async send(text: string, files: Message["files"] = []): Promise<void> {
    const parent = this.path.at(-1)?.id ?? null;
    const message = await this.add({ role: "user", parent, text, ...(files.length ? { files } : {}) });
    await this.answer(message.id);
  }

  /** Another answer beside this one. */
  regenerate(message: Message): Promise<void> {
    return this.answer(message.parent);
  }

  /** Another version of a message beside it; one of the user's is answered. */
  async edit(message: Message, text: string): Promise<void> {
    const { role, parent, files, thinking, model } = message;
    const made = await this.add({ role, parent, text, files, thinking, model, ...(role === "assistant" ? { finish: "stop" } : {}) });
    if (role === "user") await this.answer(made.id);
  }

  step(message: Message, by: number): void {
    const all = this.tree.siblings(message);
    const next = all[all.findIndex((each) => each.id === message.id) + by];
    if (next) void this.change({ leaf: this.tree.leaf(next.id) });
  }

  private async answer(parent: string | null): Promise<void> {
    if (this.run) return;
    // It shows as an answer that is being made from the first frame on.
    const begin = (made: Message): void =>
      void this.runs.set(made.conversation, { message: made, controller: new AbortController() });
    const message = await this.add({ role: "assistant", parent, text: "", model: this.model, finish: "" }, begin);
    this.runs.delete(message.conversation);
    await this.receive(message);
  }

  continue(message: Message): Promise<void> {
    return this.receive({ ...message, stream: undefined });
  }

  stop(): void {
    this.run?.controller.abort();
  }

  async endThinking(): Promise<void> {
    if (this.run?.id) await api.endThinking(this.run.id).catch((error) => this.fail(error, this.run?.message.conversation ?? ""));
  }

  /** Receives an answer into a message, after what that has already. */
  private async receive(message: Message, attempt = 0): Promise<void> {
    const conversation = this.current;
    if (!conversation || this.runs.has(conversation.id)) return;
    const run: Run = { message, controller: new AbortController() };
    this.runs.set(conversation.id, run);
    const release = await hold(`olivine-answer:${message.id}`);
    if (!release) {
      this.runs.delete(conversation.id); // another tab receives it
      return this.draw();
    }
    this.failure = null;
    this.put(run, { finish: "" });
    try {
      await this.follow(run, conversation);
      this.put(run, { stream: undefined });
    } catch (error) {
      this.end(run, error, attempt);
    } finally {
      this.runs.delete(conversation.id);
      this.arrange(); // the tree has the message as it was at the start
      await this.store.save(run.message);
      release();
      await this.store.change(conversation.id, { updated: Date.now() });
      await this.refresh();
    }
  }

  private async follow(run: Run, { system, sampling, effort }: Conversation): Promise<void> {
    const { message, controller: { signal } } = run;
    const before = this.tree.path(message.parent);
    const messages = message.text || message.thinking ? [...before, message] : before;
    const deltas = message.stream
      ? api.resume(message.stream, message.toolCalls ?? [], signal)
      : api.chat({ model: this.model, system, messages, sampling, effort }, signal);
    let saved = 0;
    for await (const delta of deltas) {
      this.take(run, delta);
      if (Date.now() - saved > SAVE_EVERY) {
        saved = Date.now();
        void this.store.save(run.message);
      }
    }
  }

  /** An answer ended early: the user stopped it, or something is wrong. */
  private end(run: Run, error: unknown, attempt: number): void {
    const { conversation, stream, text } = run.message;
    if (run.controller.signal.aborted) {
      if (stream) void api.endStream(stream.id).catch(() => {});
      return this.put(run, { finish: "stopped", stream: undefined });
    }
    const { code } = error instanceof ServerError ? error : new ServerError(String(error), "");
    if (stream && (code === "not_found" || code === "gone")) {
      return this.put(run, { finish: "broken", stream: undefined }); // it can be continued
    }
    const unreachable = code === "unreachable";
    this.put(run, { finish: "broken", ...(unreachable ? {} : { stream: undefined }) });
    const again = (next = 0): void => void this.receiveIn(conversation, run.message, next);
    this.fail(error, conversation, again);
    const pause = RETRY_AFTER[attempt];
    if (unreachable && (stream || !text) && pause) {
      setTimeout(() => {
        if (this.failure?.again === again) again(attempt + 1);
      }, 1000 * pause);
    }
  }

  /** Once more, if the conversation is still the one that is shown. */
  private async receiveIn(conversation: string, message: Message, attempt = 0): Promise<void> {
    if (this.current?.id === conversation) await this.receive(message, attempt);
  }

  private take(run: Run, delta: api.Delta): void {
    const { text, thinking = "", thinkingSeconds } = run.message;
    const fields: Partial<Message> = {};
    if (delta.id) run.id = delta.id;
    if (delta.thinking) {
      run.thinkingSince ??= performance.now() - 1000 * (thinkingSeconds ?? 0);
      fields.thinking = thinking + delta.thinking;
    }
    if (delta.text) fields.text = text + delta.text;
    if (run.thinkingSince !== undefined && (delta.thinking || thinkingSeconds === undefined)) {
      fields.thinkingSeconds = (performance.now() - run.thinkingSince) / 1000;
    }
    if (delta.stream) fields.stream = delta.stream;
    if (delta.toolCalls) fields.toolCalls = delta.toolCalls;
    if (delta.finish) fields.finish = delta.finish;
    if (delta.speed) fields.speed = delta.speed;
    this.put(run, fields);
  }

  /** The message of a run with new fields, shown if its conversation is. */
  private put(run: Run, fields: Partial<Message>): void {
    run.message = { ...run.message, ...fields };
    if (this.current?.id !== run.message.conversation) return;
    this.messages.set(run.message.id, run.message);
    const at = this.path.findIndex((each) => each.id === run.message.id);
    if (at >= 0) this.path = this.path.with(at, run.message);
    this.draw();
  }
}

export const chat = new Chat();

/** Draws the component again when anything has changed. */
export function useChat(): Chat {
  const [, count] = useState(0);
  useEffect(() => chat.subscribe(() => count((old) => old + 1)), []);
  return chat;
}
