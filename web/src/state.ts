/**
 * What the page shows. Components read `chat`; what changes it is in server.ts, conversations.ts, messages.ts and
 * answers.ts.
 */

import { useEffect, useRef, useState } from "preact/hooks";
import { ServerError, type Model } from "./api";
import { preference } from "./preferences";
import { blank, type Conversation, type Folder, type Sampling } from "./store";
import { Tree, type Message } from "./tree";

const NOTICE = 10_000; // ms that a notice is shown; no other timer has this very length, by which tests hold it

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
  conversation: string; // "" is any
  again: Map<string, () => void>; // what is to be tried once more, by message
}

class Chat {
  conversations: Conversation[] = [];
  folders: Folder[] = [];
  current = blank(); // stored, and with an id, from its first message on
  messages = new Map<string, Message>(); // of the current conversation
  tree = new Tree([]);
  path: Message[] = [];
  models: Model[] = [];
  model = preference("model");
  defaults: Sampling = {};
  loading: number | null = null; // how far a load is
  notice: Notice | null = null;
  failure: Failure | null = null;
  readonly runs = new Map<string, Run>(); // by message

  /** The answers that are being received in the conversation that is shown. */
  get running(): Run[] {
    return [...this.runs.values()].filter(({ message }) => message.conversation === this.current.id);
  }

  get served(): Model | undefined {
    return this.models.find((each) => each.id === this.model);
  }

  /** The models that answer the next message: one, or two that are compared. */
  get asked(): Model[] {
    const other = this.current.other?.model;
    return [this.served, this.models.find((each) => each.id === other)].filter((each) => each !== undefined);
  }
}

export const chat = new Chat();

const listeners = new Set<() => void>();
let drawing = false;

/** Draws once in a frame, however many tokens have come. */
export function draw(): void {
  if (drawing) return;
  drawing = true;
  const now = (): void => {
    drawing = false;
    listeners.forEach((listener) => listener());
  };
  if (document.hidden) setTimeout(now, 100); // frames are not counted in a hidden tab
  else requestAnimationFrame(now);
}

/** Draws the component again when anything has changed, or, given what it shows, when something of that has. */
export function useChat(shown?: (chat: Chat) => unknown[]): Chat {
  const [, count] = useState(0);
  const last = useRef(shown?.(chat));
  useEffect(() => {
    const listener = (): void => {
      const now = shown?.(chat);
      if (now?.every((each, index) => each === last.current?.[index])) return;
      last.current = now;
      count((old) => old + 1);
    };
    listeners.add(listener);
    listener(); // what has changed since the first drawing
    return () => void listeners.delete(listener);
  }, []);
  return chat;
}

/** What the user acted on: a conversation, the messages up to some point of it, and the model that was chosen. Another
 * conversation may be shown by the time that all is stored. */
export interface Branch {
  conversation: Conversation;
  path: Message[];
  model: string;
}

/** The branch of the conversation that is shown which ends with this message. */
export const branchTo = (message: string | null): Branch => ({
  conversation: chat.current, path: chat.tree.path(message), model: chat.model,
});

/** The tree and the branch that is shown, from the messages. */
export function arrange(): void {
  chat.tree = new Tree(chat.messages.values());
  const { leaf } = chat.current;
  chat.path = chat.tree.path(chat.tree.get(leaf) ? leaf : chat.tree.newest());
  draw();
}

export function tell(text: string, undo?: () => void): void {
  const notice: Notice = { text, undo };
  chat.notice = notice;
  draw();
  setTimeout(() => {
    if (chat.notice === notice) dismiss();
  }, NOTICE);
}

export function dismiss(): void {
  chat.notice = null;
  draw();
}

/** Of several answers that fail in the same way, all are tried again. */
export function fail(given: unknown, conversation: string, again?: () => void, message = ""): void {
  const error = given instanceof ServerError ? given : new ServerError(String(given), "");
  const old = chat.failure;
  const same = old?.conversation === conversation && old.error.code === error.code;
  chat.failure = { error, conversation, again: new Map([...(same ? old.again : []), ...(again ? [[message, again] as const] : [])]) };
  draw();
}

/** Forgets what failed, or what failed of a message. */
export function forgive(message?: string): void {
  if (message !== undefined) chat.failure?.again.delete(message);
  if (message === undefined || !chat.failure?.again.size) chat.failure = null;
  draw();
}
