// @vitest-environment jsdom
import "fake-indexeddb/auto";
import { afterEach, expect, it, vi } from "vitest";
import { show, store } from "../src/conversations";
import { goOn } from "../src/messages";
import { connect } from "../src/server";
import { chat } from "../src/state";
import type { Message } from "../src/tree";

const CHUNK = { id: "chatcmpl-1", choices: [{ delta: { content: " more" }, finish_reason: "stop" }] };

/** A server with these models; gives the bodies of requests for answers. */
function serve(...models: { id: string; problem?: string }[]): any[] {
  const bodies: any[] = [];
  vi.stubGlobal("fetch", async (path: string, { body }: RequestInit) => {
    if (path === "v1/models") return Response.json({ data: models });
    if (path.startsWith("props")) return Response.json({});
    bodies.push(JSON.parse(String(body)));
    return new Response(`data: ${JSON.stringify(CHUNK)}\n\ndata: [DONE]\n\n`);
  });
  return bodies;
}

afterEach(async () => {
  vi.unstubAllGlobals();
  localStorage.clear();
  chat.models = [];
  chat.model = "";
  chat.failure = null;
  await show(null);
});

it("a conversation that was opened before the models were known has its own", async () => {
  const { id } = await store.create({ model: "B" });
  await show(id);
  serve({ id: "A" }, { id: "B" });
  await connect();
  expect(chat.model).toBe("B");
});

it("a model that has a problem is not the one that is used at first", async () => {
  serve({ id: "A", problem: "no such file" }, { id: "B" });
  await connect();
  expect(chat.model).toBe("B");
});

it.each([
  ["its own model", ["A", "B"], "A"],
  ["the chosen one, whose name it then has, if its own is gone", ["B"], "B"],
])("an answer is continued by %s", async (_, models, expected) => {
  const bodies = serve(...models.map((id) => ({ id })));
  const { id } = await store.create({ model: "B" });
  const message: Message = { id: "m", conversation: id, parent: null, role: "assistant", text: "Half", created: 1, model: "A", finish: "stopped" };
  await store.save(message);
  await show(id);
  await connect();
  expect(chat.model).toBe("B");
  await goOn(message);
  expect(bodies.map(({ model }) => model)).toEqual([expected]);
  expect(chat.path.at(-1)).toMatchObject({ text: "Half more", model: expected });
});
