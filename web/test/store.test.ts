import "fake-indexeddb/auto";
import { beforeEach, describe, expect, it } from "vitest";
import { fromJsonl, toJsonl, toMarkdown } from "../src/exchange";
import { newId, Store } from "../src/store";
import type { Message } from "../src/tree";

let name = "";
let store: Store;
beforeEach(() => {
  name = newId();
  store = new Store(name);
});

const message = (conversation: string, text: string, parent: string | null = null): Message => ({
  id: newId(), conversation, parent, role: "user", text, created: Date.now(),
});

describe("Store", () => {
  it("lists pinned conversations first, then the newest", async () => {
    await store.create({ title: "old", updated: 1 });
    await store.create({ title: "new", updated: 3 });
    await store.create({ title: "pinned", updated: 2, pinned: true });
    expect((await store.list()).map((each) => each.title)).toEqual(["pinned", "new", "old"]);
  });

  it("loses nothing when two tabs write at the same time", async () => {
    const other = new Store(name);
    const { id } = await store.create();
    await Promise.all([
      ...Array.from({ length: 20 }, (_, at) => store.save(message(id, `one ${at}`))),
      ...Array.from({ length: 20 }, (_, at) => other.save(message(id, `two ${at}`))),
      store.change(id, { title: "title" }),
      other.change(id, { pinned: true }),
    ]);
    expect(await store.messagesOf(id)).toHaveLength(40);
    expect(await other.get(id)).toMatchObject({ title: "title", pinned: true });
  });

  it("keeps the messages of conversations apart", async () => {
    const [a, b] = [await store.create(), await store.create()];
    await store.save(message(a.id, "in a"));
    await store.save(message(b.id, "in b"));
    expect((await store.messagesOf(a.id)).map((each) => each.text)).toEqual(["in a"]);
  });

  it("brings back what was removed", async () => {
    const { id } = await store.create({ title: "kept" });
    await store.save(message(id, "hello"));
    const bundle = await store.remove(id);
    expect(await store.list()).toEqual([]);
    expect(await store.messagesOf(id)).toEqual([]);
    if (bundle) await store.restore(bundle);
    expect((await store.get(id))?.title).toBe("kept");
    expect(await store.messagesOf(id)).toHaveLength(1);
  });

  it("does not bring back half of a conversation that another tab has deleted", async () => {
    const { id } = await store.create();
    await store.remove(id);
    await store.change(id, { pinned: true });
    expect(await store.list()).toEqual([]);
  });

  it("keeps the conversations of a folder that is deleted", async () => {
    await store.saveFolder({ id: "b", name: "b", created: 1 });
    await store.saveFolder({ id: "a", name: "a", created: 2 });
    const { id } = await store.create({ folder: "b" });
    expect((await store.folders()).map((each) => each.name)).toEqual(["a", "b"]);
    await store.removeFolder("b");
    expect((await store.folders()).map((each) => each.name)).toEqual(["a"]);
    expect((await store.list()).map((each) => each.id)).toEqual([id]);
  });

  it("searches titles and messages", async () => {
    const a = await store.create({ title: "About Foxes" });
    const b = await store.create({ title: "other" });
    await store.save(message(b.id, "A FOX in a boat"));
    await store.create({ title: "neither" });
    expect(await store.search("fox")).toEqual(new Set([a.id, b.id]));
  });
});

describe("files", () => {
  it("hold every branch, and never overwrite", async () => {
    const { id } = await store.create({ title: "t", sampling: { top_k: 4 } });
    const first = message(id, "one");
    const second = { ...message(id, "two", first.id), role: "assistant" as const };
    await store.change(id, { leaf: second.id });
    const conversation = (await store.get(id))!;
    const [read] = fromJsonl(await toJsonl([{ folder: "tales", conversation, messages: [first, second] }]));
    expect(read?.conversation.id).not.toBe(id);
    expect(read?.folder).toBe("tales");
    expect(read?.conversation.sampling).toEqual({ top_k: 4 });
    expect(read?.messages[1]?.parent).toBe(read?.messages[0]?.id);
    expect(read?.conversation.leaf).toBe(read?.messages[1]?.id);
    expect(toMarkdown(read!, { user: "You", assistant: "Model", tool: "Tool" })).toBe("# t\n\n## You\n\none\n\n## Model\n\ntwo\n");
  });

  it("with fields of other types do no harm", () => {
    const odd = { role: "assistant", text: 7, files: "x", toolCalls: [null, { name: 3 }], speed: "fast", thinking: {}, finish: 1, html: "<b>" };
    const sampling = { top_k: 4, stream: 0, model: 7, seed: null };
    expect(fromJsonl(JSON.stringify({ conversation: { sampling }, messages: [] }))[0]?.conversation.sampling).toEqual({ top_k: 4 });
    const [read] = fromJsonl(JSON.stringify({ conversation: { title: [], sampling: "hot" }, messages: [odd] }));
    expect(read?.conversation).toMatchObject({ title: "", sampling: {} });
    expect(read?.messages[0]).toMatchObject({ text: "", files: [], toolCalls: [{ id: "", name: "", arguments: "" }] });
    expect(read?.messages[0]?.speed).toEqual({ promptTokens: 0, cachedTokens: 0, tokens: 0, perSecond: 0 });
    expect([read?.messages[0]?.thinking, read?.messages[0]?.finish]).toEqual([undefined, undefined]);
    expect(read?.messages[0]).not.toHaveProperty("html");
  });

  it.each(["{", "[]", '"x"', "null", '{"conversation":{},"messages":[{"role":"root"}]}', '{"conversation":{},"messages":[null]}'])(
    "that are none are refused with the line: %s",
    (line) => expect(() => fromJsonl(line)).toThrow(/line 1/),
  );
});
