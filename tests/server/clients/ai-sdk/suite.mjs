// The Vercel AI SDK against a running server: node suite.mjs URL MODEL
// Prints one line for each test and exits with 1 if one fails.
import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, embedMany, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [url, model] = process.argv.slice(2);
const compatible = createOpenAICompatible({ name: "olivine", baseURL: `${url}/v1`, includeUsage: true, supportsStructuredOutputs: true });
const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const anthropic = createAnthropic({ baseURL: `${url}/v1`, apiKey: "none" });
const providers = {
  "openai-compatible": compatible(model),
  "openai chat": openai.chat(model),
  "openai responses": openai.responses(model),
  anthropic: anthropic(model),
};
const tests = {};

for (const [name, languageModel] of Object.entries(providers)) {
  tests[`${name}: text and usage`] = async () => {
    const { text, usage, finishReason } = await generateText({ model: languageModel, prompt: "Hello!", maxOutputTokens: 12 });
    assert.ok(text.length > 0);
    assert.ok(usage.inputTokens > 0 && usage.outputTokens > 0 && usage.outputTokens <= 12);
    assert.ok(["stop", "length"].includes(finishReason), finishReason);
  };

  tests[`${name}: a stream`] = async () => {
    const result = streamText({ model: languageModel, prompt: "Tell me a story.", maxOutputTokens: 24 });
    const pieces = [];
    for await (const piece of result.textStream) pieces.push(piece);
    assert.ok(pieces.length > 1);
    assert.equal(pieces.join(""), await result.text);
    assert.ok((await result.usage).outputTokens > 0);
  };

  tests[`${name}: tools, there and back`] = async () => {
    const asked = [];
    const weather = tool({
      description: "The weather in a city.",
      inputSchema: z.object({ city: z.enum(["Rome", "Paris"]) }),
      execute: async ({ city }) => {
        asked.push(city);
        return { city, sky: "blue" };
      },
    });
    const { steps } = await generateText({
      model: languageModel,
      prompt: "What is the weather in Rome?",
      tools: { weather },
      prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? { type: "tool", toolName: "weather" } : "none" }),
      stopWhen: stepCountIs(2),
      maxOutputTokens: 48,
    });
    assert.equal(asked.length, 1);
    assert.ok(["Rome", "Paris"].includes(asked[0]));
    assert.equal(steps.length, 2);
    assert.equal(steps[0].finishReason, "tool-calls");
  };

  tests[`${name}: an answer that fits a schema`] = async () => {
    const schema = z.object({ name: z.enum(["Ada", "Alan"]), happy: z.boolean() });
    const { output } = await generateText({
      model: languageModel,
      prompt: "Somebody as JSON.",
      output: Output.object({ schema }),
      maxOutputTokens: 60,
    });
    schema.parse(output);
  };

  tests[`${name}: a cancelled stream ends`] = async () => {
    const control = new AbortController();
    const result = streamText({ model: languageModel, prompt: "Tell me a story.", abortSignal: control.signal, onError: () => {} });
    let count = 0;
    for await (const part of result.fullStream) {
      if (part.type === "text-delta" && ++count === 2) control.abort();
      if (part.type === "abort") break;
    }
    assert.ok(count >= 2);
  };

  tests[`${name}: an error has its status and is not repeated`] = async () => {
    const asked = { model: languageModel, prompt: "word ".repeat(20_000), maxRetries: 2 };
    await assert.rejects(generateText(asked), (error) => {
      assert.ok(APICallError.isInstance(error), String(error));
      assert.equal(error.statusCode, 400);
      assert.equal(error.isRetryable, false);
      return true;
    });
  };
}

tests["openai-compatible: embeddings"] = async () => {
  const { embeddings, usage } = await embedMany({ model: compatible.embeddingModel(model), values: ["a dog", "the sea"] });
  assert.equal(embeddings.length, 2);
  assert.equal(embeddings[0].length, embeddings[1].length);
  assert.ok(usage.tokens > 0);
};

tests["openai-compatible: an unknown model is a 404"] = async () => {
  await assert.rejects(generateText({ model: compatible("no-such-model"), prompt: "x", maxRetries: 0 }), { statusCode: 404 });
};

let failed = 0;
for (const [name, test] of Object.entries(tests)) {
  try {
    await test();
    console.log(`ok      ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED  ${name}\n${error?.stack ?? error}\n${error?.responseBody ?? ""}`);
  }
}
console.log(`${Object.keys(tests).length - failed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
