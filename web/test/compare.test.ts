// @vitest-environment jsdom
import "fake-indexeddb/auto";
import { beforeEach, describe, expect, it } from "vitest";
import { ServerError } from "../src/api";
import { answersFor, differences, keep, pairOf } from "../src/compare";
import { change, ensure, store } from "../src/conversations";
import { arrange, branchTo, chat, fail, forgive } from "../src/state";
import type { Asked } from "../src/store";
import { pretty, toolsOf } from "../src/tools";
import type { Message } from "../src/tree";

const asked = (fields: Partial<Asked> = {}): Asked => ({ system: "", sampling: {}, effort: "", ...fields });

describe("two answers", () => {
  it("are told apart by what differs", () => {
    const one = asked({ sampling: { temperature: 0, top_k: 5 }, effort: "low", system: "Be kind" });
    const two = asked({ sampling: { temperature: 1, top_k: 5 } });
    expect(differences(one, two)).toEqual(["Temperature 0", "Thinking: low", "another system prompt"]);
    expect(differences(two, one)).toEqual(["Temperature 1", "Thinking: default", "no system prompt"]);
    expect(differences(asked({ sampling: { seed: 1 } }), asked())).toEqual(["Seed 1"]);
    expect(differences(asked(), asked({ sampling: { seed: 1 } }))).toEqual(["Seed default"]);
    expect(differences(two, two)).toEqual([]);
  });

  it("stand side by side until one is kept, and both stay", async () => {
    ensure("t");
    await change({ other: asked() });
    const { id } = chat.current;
    const made: Message[] = answersFor(branchTo(null)).map((fields, at) => ({
      id: `m${at}`, conversation: id, parent: null, role: "assistant", text: `${at}`, created: at, ...fields,
    }));
    for (const each of made) {
      chat.messages.set(each.id, each);
      await store.save(each);
    }
    await change({ leaf: "m1" });
    expect(pairOf(chat.path.at(-1) as Message).map((each) => each.id)).toEqual(["m0", "m1"]);
    await keep(made[0] as Message);
    expect(chat.path.map((each) => [each.id, each.pair])).toEqual([["m0", undefined]]);
    expect(chat.tree.siblings(chat.path[0] as Message)).toHaveLength(2);
    expect((await store.messagesOf(id)).map((each) => each.pair)).toEqual([undefined, undefined]);
  });
});

describe("failures", () => {
  beforeEach(() => {
    chat.failure = null;
    arrange();
  });

  it("of two answers are tried again together", () => {
    const tried: string[] = [];
    for (const name of ["a", "b"]) fail(new ServerError("x", "unreachable"), "c", () => tried.push(name), name);
    chat.failure?.again.forEach((again) => again());
    expect(tried).toEqual(["a", "b"]);
    forgive("a");
    expect([...(chat.failure?.again.keys() ?? [])]).toEqual(["b"]);
    forgive("b");
    expect(chat.failure).toBe(null);
  });

  it("of another kind or place replace the last one", () => {
    fail(new ServerError("x", "unreachable"), "c", () => {}, "a");
    fail(new ServerError("y", "overloaded"), "c", () => {}, "b");
    expect([...(chat.failure?.again.keys() ?? [])]).toEqual(["b"]);
    forgive();
    expect(chat.failure).toBe(null);
  });
});

describe("tools", () => {
  it("are read in OpenAI's form and as bare functions", () => {
    const made = { type: "function", function: { name: "f", parameters: {} } };
    expect(toolsOf('[{"name":"f","parameters":{}}]')).toEqual([made]);
    expect(toolsOf('{"type":"function","function":{"name":"f","parameters":{}}}')).toEqual([made]);
    expect(toolsOf(" ")).toEqual([]);
  });

  it.each([["[", /JSON/], ["[{}]", /1 has no name/], ["[null]", /1/], ['[{"name":"f"}, 3]', /2/], ['[{"name":""}]', /1/]])(
    "that are none are refused in words: %s",
    (text, words) => expect(() => toolsOf(text)).toThrow(words),
  );

  it("have their arguments with lines", () => {
    expect(pretty('{"a":1}')).toBe('{\n  "a": 1\n}');
    expect(pretty('{"a":')).toBe('{"a":');
  });
});
