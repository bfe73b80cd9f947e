/** The server's HTTP API: requests, streams, and errors as words. */

import { partOf } from "./media";
import { EventReader, type ServerEvent } from "./sse";
import type { Sampling } from "./store";
import type { Media, Message, Place, Speed, ToolCall } from "./tree";
import { words } from "./words";

export interface Model {
  id: string;
  context: number;
  vision: boolean;
  audio: boolean;
  reasoning: boolean;
  state: string;
  problem?: string;
}

/** `code` is the server's, or "unreachable" where no response came. */
export class ServerError extends Error {
  constructor(
    message: string,
    readonly code: string,
    readonly status = 0,
    readonly retryAfter = 0,
  ) {
    super(message);
  }
}

export interface Delta {
  id?: string;
  text?: string;
  thinking?: string;
  toolCalls?: ToolCall[]; // all so far
  finish?: string;
  speed?: Speed;
  stream?: Place;
}

export type Takes = Record<Media["kind"], boolean>;

export interface Request {
  model: string;
  takes: Takes;
  system: string;
  messages: Message[]; // an answer at the end is continued
  sampling: Sampling;
  effort: string;
  tools: object[];
}

const SENDABLE = /^[\x20-\x7e\xa0-\xff]*$/; // in a header: for others `fetch` throws as if there were no server

let key = "";

export function useKey(given: string): void {
  key = given;
}

interface Options {
  method?: string;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

async function send(path: string, { method = "GET", body, headers, signal }: Options = {}): Promise<Response> {
  if (!SENDABLE.test(key)) throw new ServerError(words.oddKey, "invalid_api_key", 401);
  let response: Response;
  try {
    response = await fetch(path, {
      method,
      headers: { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}), ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      credentials: "omit",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ServerError(String(error), "unreachable");
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

async function errorOf(response: Response): Promise<ServerError> {
  const retryAfter = Number(response.headers.get("Retry-After")) || 0;
  const body = await response.json().catch(() => null);
  const { message, code } = body?.error ?? {};
  return new ServerError(message ?? `HTTP ${response.status}`, code ?? "", response.status, retryAfter);
}

export async function listModels(): Promise<Model[]> {
  const { data } = await (await send("v1/models")).json();
  return data.map((each: any) => ({
    id: each.id,
    context: each.max_model_len ?? 0,
    vision: each.capabilities?.vision === true,
    audio: each.capabilities?.audio === true,
    reasoning: each.capabilities?.reasoning === true,
    state: each.state ?? "",
    problem: each.problem,
  }));
}

/** What the model samples with where a request says nothing; empty while it is not loaded. */
export async function defaultsOf(model: string): Promise<Sampling> {
  const props = await (await send(`props?model=${encodeURIComponent(model)}`)).json();
  return props.default_generation_settings?.params ?? {};
}

/** Loads a model, and tells how far it is, from 0 to 1. */
export async function loadModel(model: string, progress: (part: number) => void): Promise<void> {
  const response = await send("models/load", { method: "POST", body: { model, stream: true } });
  let failed: string | undefined;
  for await (const { data } of events(response)) {
    const event = JSON.parse(data);
    if (event.total) progress(event.bytes / event.total);
    failed = event.state === "loaded" ? undefined : (event.error?.message ?? event.error);
  }
  if (failed) throw new ServerError(failed, "model_not_loaded", 503);
}

export const endThinking = (id: string): Promise<unknown> =>
  send(`v1/chat/completions/${encodeURIComponent(id)}/end_thinking`, { method: "POST" });

async function* events(response: Response, signal?: AbortSignal): AsyncGenerator<ServerEvent> {
  const reader = (response.body as ReadableStream<Uint8Array>).getReader();
  const decoder = new TextDecoder();
  const parser = new EventReader();
  try {
    while (true) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.feed(decoder.decode(value, { stream: true }));
    }
  } catch (error) {
    if (signal?.aborted) throw error;
    throw error instanceof ServerError ? error : new ServerError(String(error), "unreachable");
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** What was attached stands before what was typed. Of media that the model cannot take, the name is sent. */
async function contentOf({ files = [], media = [], text }: Message, takes: Takes): Promise<unknown> {
  const taken = media.filter(({ kind }) => takes[kind]);
  const names = media.filter(({ kind }) => !takes[kind]).map(({ kind, name }) => `[${kind}: ${name}]\n\n`);
  const texts = files.map((file) => `<file name="${file.name}">\n${file.text}\n</file>\n\n`);
  const typed = [...names, ...texts, text].join("");
  if (!taken.length) return typed;
  return [...(await Promise.all(taken.map(partOf))), ...(typed ? [{ type: "text", text: typed }] : [])];
}

/** A message in the API's form. */
export async function toApi(message: Message, takes: Takes): Promise<Record<string, unknown>> {
  const found: Record<string, unknown> = { role: message.role, content: await contentOf(message, takes) };
  if (message.thinking) found.reasoning_content = message.thinking;
  if (message.toolCallId) found.tool_call_id = message.toolCallId;
  if (message.toolCalls?.length) {
    found.tool_calls = message.toolCalls.map(({ id, name, arguments: args }) => ({
      id, type: "function", function: { name, arguments: args },
    }));
  }
  return found;
}

/** The fields that are set; the rest is the model's own choice. */
export async function bodyOf({ model, takes, system, messages, sampling, effort, tools }: Request): Promise<Record<string, unknown>> {
  const before = system.trim() ? [{ role: "system", content: system }] : [];
  const given = Object.entries(sampling).filter(([, value]) => value !== undefined);
  return {
    model,
    messages: [...before, ...(await Promise.all(messages.map((message) => toApi(message, takes))))],
    stream: true,
    stream_options: { include_usage: true },
    ...Object.fromEntries(given),
    ...(tools.length ? { tools } : {}),
    ...(effort ? { reasoning_effort: effort } : {}),
  };
}

/** Asks for an answer and gives it as it comes. */
export async function* chat(request: Request, signal: AbortSignal): AsyncGenerator<Delta> {
  const headers = { "X-Stream-Resume": "true" };
  const response = await send("v1/chat/completions", { method: "POST", body: await bodyOf(request), headers, signal });
  const id = response.headers.get("X-Stream-Id") ?? "";
  if (id) yield { stream: { id, event: "0" } };
  yield* deltas(response, id, [], signal);
}

/** The rest of an answer whose connection broke: the server has made it on. */
export async function* resume(place: Place, calls: ToolCall[], signal: AbortSignal): AsyncGenerator<Delta> {
  const headers = { "Last-Event-ID": place.event };
  const response = await send(`v1/streams/${encodeURIComponent(place.id)}`, { headers, signal });
  yield* deltas(response, place.id, structuredClone(calls), signal);
}

/** Ends a stream that is not to be taken up again. */
export const endStream = (id: string): Promise<unknown> =>
  send(`v1/streams/${encodeURIComponent(id)}`, { method: "DELETE" });

async function* deltas(response: Response, stream: string, calls: ToolCall[], signal: AbortSignal): AsyncGenerator<Delta> {
  let ended = false;
  for await (const { data, id } of events(response, signal)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServerError(chunk.error.message, chunk.error.code ?? "");
    const delta = deltaOf(chunk, calls);
    if (stream) delta.stream = { id: stream, event: id, answer: chunk.id };
    ended ||= delta.finish !== undefined;
    yield delta;
  }
  if (!ended) throw new ServerError("the stream broke off", "unreachable");
}

/** A chunk of a stream; `calls` gathers the tool calls. */
export function deltaOf(chunk: any, calls: ToolCall[]): Delta {
  const found: Delta = { id: chunk.id };
  const choice = chunk.choices?.[0];
  const delta = choice?.delta ?? {};
  if (delta.content) found.text = delta.content;
  if (delta.reasoning_content) found.thinking = delta.reasoning_content;
  for (const part of delta.tool_calls ?? []) {
    const call = (calls[part.index] ??= { id: "", name: "", arguments: "" });
    call.id ||= part.id ?? "";
    call.name ||= part.function?.name ?? "";
    call.arguments += part.function?.arguments ?? "";
    found.toolCalls = calls.map((each) => ({ ...each }));
  }
  if (choice?.finish_reason) found.finish = choice.finish_reason;
  if (chunk.usage) {
    found.speed = {
      promptTokens: chunk.usage.prompt_tokens,
      cachedTokens: chunk.usage.prompt_tokens_details?.cached_tokens ?? 0,
      tokens: chunk.usage.completion_tokens,
      perSecond: chunk.timings?.predicted_per_second ?? 0,
    };
  }
  return found;
}
