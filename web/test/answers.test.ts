// @vitest-environment jsdom
import "fake-indexeddb/auto";
import { afterEach, describe, expect, it, vi } from "vitest";
import { endThinking, receive, stop } from "../src/answers";
import { chat as ask } from "../src/api";
import { own } from "../src/compare";
import { change, ensure, show, store } from "../src/conversations";
import { send } from "../src/messages";
import { branchTo, chat } from "../src/state";
import { Store } from "../src/store";
import type { Message } from "../src/tree";
import { words } from "../src/words";

const NOTHING = { files: [], media: [] };
const CHUNK = { id: "chatcmpl-1", choices: [{ delta: { reasoning_content: "Hm" }, finish_reason: "stop" }] };

const answer = (): Response =>
  new Response(`id: 1\ndata: ${JSON.stringify(CHUNK)}\n\ndata: [DONE]\n\n`, { headers: { "X-Stream-Id": "s" } });

function serve(respond: (path: string) => Promise<Response>): string[] {
  const paths: string[] = [];
  vi.stubGlobal("fetch", (path: string, { signal }: RequestInit) => {
    if (signal?.aborted) return Promise.reject(signal.reason);
    paths.push(path);
    return respond(path);
  });
  return paths;
}

afterEach(async () => {
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
  chat.runs.clear();
  await show(null);
});

describe("an answer", () => {
  it.each([1, 2])("is not asked for if it is stopped while its message is stored, of %i", async (count) => {
    const asked = serve(async () => answer());
    const stopOnce = vi.fn(stop);
    const save = store.save.bind(store);
    vi.spyOn(store, "save").mockImplementation((message) => {
      if (message.role === "assistant" && !stopOnce.mock.calls.length) stopOnce();
      return save(message);
    });
    if (count === 2) await change({ other: own() });
    await send("Go", NOTHING);
    expect(asked).toEqual([]);
    const answers = [...chat.messages.values()].filter(({ role }) => role === "assistant");
    expect(answers.map(({ text, finish }) => text + finish)).toEqual(Array(count).fill("stopped"));
    expect(chat.runs.size).toBe(0);
  });

  it("is being made until all of it is stored", async () => {
    serve(async () => answer());
    const runs: number[] = [];
    const list = store.list.bind(store);
    vi.spyOn(store, "list").mockImplementation(() => {
      runs.push(chat.runs.size);
      return list();
    });
    await send("Go", NOTHING);
    expect(runs).toEqual([0, 1, 1]); // after the question, the empty answer, the whole one
    expect(chat.runs.size).toBe(0);
  });

  it("has an end where it cannot be stored", async () => {
    serve(async () => answer());
    vi.spyOn(store, "change").mockRejectedValue(new Error("no room"));
    await send("Go", NOTHING);
    expect(chat.runs.size).toBe(0);
    expect(chat.path.at(-1)?.thinking).toBe("Hm");
    expect(chat.notice?.text).toBe(words.notStored);
  });

  it("is not tried again if it is stopped after it failed, while it is stored", async () => {
    serve(() => Promise.reject(new TypeError("unreachable")));
    const write = store.change.bind(store);
    vi.spyOn(store, "change").mockImplementation((id, fields) => {
      if (!("leaf" in fields)) stop();
      return write(id, fields);
    });
    await send("Go", NOTHING);
    expect(chat.path.at(-1)?.finish).toBe("broken");
    expect(chat.failure).toBeNull();
  });

  it("can be told to end its thoughts as soon as it is taken up again", async () => {
    serve(async () => answer());
    const request = { model: "", takes: { image: false, audio: false }, system: "", messages: [], sampling: {}, effort: "", tools: [] };
    let stream: Message["stream"];
    for await (const delta of ask(request, new AbortController().signal)) stream = delta.stream;
    ensure("t");
    const message: Message = {
      id: "m", conversation: chat.current.id, parent: null, role: "assistant", text: "", thinking: "Hm", created: 1, finish: "", stream,
    };
    const asked = serve((path) => (path === "v1/streams/s" ? new Promise(() => {}) : Promise.resolve(answer())));
    void receive(message, branchTo(null));
    await endThinking(message);
    expect(asked).toContain("v1/chat/completions/chatcmpl-1/end_thinking");
  });
});

it("a setting that is chosen while another tab's change is read stays", async () => {
  ensure("t");
  await change({ effort: "low" });
  const { id } = chat.current;
  const get = store.get.bind(store);
  vi.spyOn(store, "get").mockImplementationOnce(async (wanted) => {
    const header = await get(wanted);
    await change({ effort: "high" });
    return header;
  });
  await new Store().change(id, { title: "from there" });
  await vi.waitFor(() => expect(chat.current.title).toBe("from there"), { timeout: 30_000 });
  expect(chat.current.effort).toBe("high");
});
