// @vitest-environment jsdom
import "fake-indexeddb/auto";
import { afterEach, expect, it, vi } from "vitest";
import { alter, change, ensure, remove, show, store } from "../src/conversations";
import { createFolder } from "../src/folders";
import { send } from "../src/messages";
import { chat } from "../src/state";
import { Store } from "../src/store";
import type { Message } from "../src/tree";
import { words } from "../src/words";

const NOTHING = { files: [], media: [] };
const CHUNK = { id: "chatcmpl-1", choices: [{ delta: { content: "Yes" }, finish_reason: "stop" }] };
const other = new Store(); // of another tab
const seen = (check: () => void): Promise<void> => vi.waitFor(check, { timeout: 30_000 });

afterEach(async () => {
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
  chat.notice = null;
  await show(null);
});

it("a conversation that another tab deleted is whole again when it goes on here", async () => {
  vi.stubGlobal("fetch", async () => new Response(`data: ${JSON.stringify(CHUNK)}\n\ndata: [DONE]\n\n`));
  await send("One", NOTHING);
  const { id } = chat.current;
  await other.remove(id);
  await send("Two", NOTHING);
  expect(await other.get(id)).toMatchObject({ title: "One" });
  expect((await other.messagesOf(id)).map(({ text }) => text).sort()).toEqual(["One", "Two", "Yes", "Yes"]);
});

it("what another tab adds to the branch that is shown is shown, and another branch is not", async () => {
  ensure("t");
  const { id } = chat.current;
  const message = (name: string, parent: string | null, created: number): Message =>
    ({ id: name, conversation: id, parent, role: "user", text: name, created });
  const shown = (): string => chat.path.map(({ text }) => text).join(" ");
  const add = async (given: Message): Promise<void> => {
    await other.save(given);
    await other.change(id, { leaf: given.id });
  };
  await add(message("a", null, 1));
  await seen(() => expect(shown()).toBe("a"));
  await change({ leaf: "a" });
  await add(message("b", "a", 2));
  await seen(() => expect(shown()).toBe("a b"));
  await add(message("c", null, 3));
  await seen(() => expect(chat.messages.has("c")).toBe(true));
  await other.change(id, { title: "read" });
  await seen(() => expect(chat.current.title).toBe("read"));
  expect(shown()).toBe("a b");
});

it("what cannot be deleted is told, and stays", async () => {
  ensure("t");
  await seen(async () => expect(await store.get(chat.current.id)).toBeTruthy());
  const { id } = chat.current;
  vi.spyOn(Store.prototype, "remove").mockRejectedValue(new Error("no room"));
  await remove(id);
  expect(chat.notice?.text).toBe(words.notDeleted);
  expect(chat.current.id).toBe(id);
});

it("what cannot be stored is told", async () => {
  ensure("t");
  await seen(async () => expect(await store.get(chat.current.id)).toBeTruthy());
  const { id } = await store.create();
  vi.spyOn(Store.prototype, "change").mockRejectedValue(new Error("no room"));
  vi.spyOn(Store.prototype, "saveFolder").mockRejectedValue(new Error("no room"));
  for (const act of [() => change({ effort: "low" }), () => alter(id, { pinned: true }), () => createFolder()]) {
    chat.notice = null;
    await act();
    expect(chat.notice).toMatchObject({ text: words.notStored });
  }
});
