import { describe, expect, it } from "vitest";
import { bodyOf, deltaOf, toApi } from "../src/api";
import type { Message, ToolCall } from "../src/tree";

const message: Message = { id: "1", conversation: "c", parent: null, role: "user", text: "Hi", created: 1 };

describe("requests", () => {
  it("leave out what the user did not choose", () => {
    const body = bodyOf({ model: "m", system: " ", messages: [message], sampling: { top_k: 4, seed: undefined }, effort: "" });
    expect(body).toEqual({
      model: "m", messages: [{ role: "user", content: "Hi" }], stream: true, stream_options: { include_usage: true }, top_k: 4,
    });
  });

  it("have the system prompt first, thoughts, and files before the text", () => {
    const answer: Message = { ...message, role: "assistant", thinking: "hm", text: "Yes" };
    const body = bodyOf({ model: "m", system: "Be kind", messages: [answer], sampling: {}, effort: "low" });
    expect(body.messages).toEqual([{ role: "system", content: "Be kind" }, { role: "assistant", content: "Yes", reasoning_content: "hm" }]);
    expect(body.reasoning_effort).toBe("low");
    expect(toApi({ ...message, files: [{ name: "a.txt", text: "A" }] }).content).toBe('<file name="a.txt">\nA\n</file>\n\nHi');
  });
});

describe("chunks", () => {
  it("gather tool calls over several", () => {
    const calls: ToolCall[] = [];
    const chunk = (part: object) => ({ id: "x", choices: [{ delta: { tool_calls: [part] }, finish_reason: null }] });
    deltaOf(chunk({ index: 0, id: "call", function: { name: "f", arguments: '{"a"' } }), calls);
    const last = deltaOf(chunk({ index: 0, function: { arguments: ":1}" } }), calls);
    expect(last.toolCalls).toEqual([{ id: "call", name: "f", arguments: '{"a":1}' }]);
  });

  it("have text, thoughts, the end, and figures", () => {
    expect(deltaOf({ id: "x", choices: [{ delta: { content: "a", reasoning_content: "b" }, finish_reason: "stop" }] }, []))
      .toEqual({ id: "x", text: "a", thinking: "b", finish: "stop" });
    const usage = { prompt_tokens: 9, completion_tokens: 3, prompt_tokens_details: { cached_tokens: 4 } };
    expect(deltaOf({ id: "x", choices: [], usage, timings: { predicted_per_second: 7.5 } }, []).speed)
      .toEqual({ promptTokens: 9, cachedTokens: 4, tokens: 3, perSecond: 7.5 });
  });
});
