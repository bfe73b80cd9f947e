// @vitest-environment node
import { describe, expect, it } from "vitest";
import { bodyOf, deltaOf, toApi } from "../src/api";
import { blobOf } from "../src/media";
import type { Media, Message, ToolCall } from "../src/tree";

const message: Message = { id: "1", conversation: "c", parent: null, role: "user", text: "Hi", created: 1 };

const TEXT = { image: false, audio: false };
const MEDIA: Media[] = [
  { kind: "image", name: "a.png", data: blobOf("AAEC", "image/png") },
  { kind: "audio", name: "b.mp3", data: blobOf("AwQ=", "audio/mpeg") },
];

describe("requests", () => {
  it("have images and audio as parts before the text", async () => {
    const sent = await toApi({ ...message, media: MEDIA }, { image: true, audio: true });
    expect(sent.content).toEqual([
      { type: "image_url", image_url: { url: "data:image/png;base64,AAEC" } },
      { type: "input_audio", input_audio: { data: "AwQ=", format: "mp3" } },
      { type: "text", text: "Hi" },
    ]);
    const [, , typed] = (await toApi({ ...message, text: "", media: MEDIA }, { image: true, audio: true })).content as unknown[];
    expect(typed).toBeUndefined();
  });

  it("have the names of media that the model cannot take", async () => {
    expect((await toApi({ ...message, media: MEDIA }, TEXT)).content).toBe("[image: a.png]\n\n[audio: b.mp3]\n\nHi");
    const [, typed] = (await toApi({ ...message, media: MEDIA }, { image: true, audio: false })).content as { text: string }[];
    expect(typed?.text).toBe("[audio: b.mp3]\n\nHi");
  });

  it("leave out what the user did not choose", async () => {
    const body = await bodyOf({ model: "m", takes: TEXT, system: " ", messages: [message], sampling: { top_k: 4, seed: undefined }, effort: "", tools: [] });
    expect(body).toEqual({
      model: "m", messages: [{ role: "user", content: "Hi" }], stream: true, stream_options: { include_usage: true }, top_k: 4,
    });
  });

  it("have the system prompt first, thoughts, and files before the text", async () => {
    const answer: Message = { ...message, role: "assistant", thinking: "hm", text: "Yes" };
    const body = await bodyOf({ model: "m", takes: TEXT, system: "Be kind", messages: [answer], sampling: {}, effort: "low", tools: [{ type: "function" }] });
    expect(body.messages).toEqual([{ role: "system", content: "Be kind" }, { role: "assistant", content: "Yes", reasoning_content: "hm" }]);
    expect(body.reasoning_effort).toBe("low");
    expect(body.tools).toEqual([{ type: "function" }]);
    const sent = await toApi({ ...message, files: [{ name: "a.txt", text: "A" }] }, TEXT);
    expect(sent.content).toBe('<file name="a.txt">\nA\n</file>\n\nHi');
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
