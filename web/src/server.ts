/** The server that the page is of: its models, which one is used, the key. */

import * as api from "./api";
import type { ServerError } from "./api";
import { preference, setPreference } from "./preferences";
import { chat, draw, fail } from "./state";

/** Seconds until the next attempt, while the server cannot be reached. */
export const retryAfter = (attempt: number): number => Math.min(15, 2 ** attempt);

let next = 0; // the timer of the next attempt

export async function connect(attempt = 0): Promise<void> {
  clearTimeout(next);
  api.useKey(preference("key"));
  try {
    chat.models = await api.listModels();
    chat.model = modelToUse();
    chat.failure = null;
    await readDefaults();
  } catch (error) {
    fail(error, "", () => void connect());
    if ((error as ServerError).code === "unreachable") {
      next = setTimeout(() => void connect(attempt + 1), 1000 * retryAfter(attempt));
    }
  }
  draw();
}

/** The conversation's, or the one that was chosen last, where the server has it without a problem. */
function modelToUse(): string {
  const usable = chat.models.filter((each) => each.problem === undefined);
  const wanted = [chat.current.model, chat.model].find((id) => usable.some((each) => each.id === id));
  return wanted ?? (usable[0] ?? chat.models[0])?.id ?? "";
}

export async function readModels(): Promise<void> {
  chat.models = await api.listModels().catch(() => chat.models);
  draw();
}

/** What the chosen model samples with where the conversation says nothing. */
export async function readDefaults(): Promise<void> {
  if (chat.model) chat.defaults = await api.defaultsOf(chat.model).catch(() => ({}));
  draw();
}

export function useKey(key: string): void {
  setPreference("key", key.trim());
  const again = chat.failure?.again ?? new Map<string, () => void>();
  chat.failure = null;
  void connect().then(() => again.forEach((each) => each()));
}

/** Loads the chosen model where it is not loaded. */
export async function load(): Promise<void> {
  chat.failure = null;
  try {
    if (chat.served?.state !== "loaded") {
      chat.loading = 0;
      await api.loadModel(chat.model, (part) => {
        chat.loading = part;
        draw();
      });
      chat.models = await api.listModels();
    }
    await readDefaults();
  } catch (error) {
    fail(error, "", () => void load());
  }
  chat.loading = null;
  draw();
}
