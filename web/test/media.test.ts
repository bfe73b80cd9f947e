// @vitest-environment node
import "fake-indexeddb/auto";
import { describe, expect, it } from "vitest";
import { refusal } from "../src/drafts";
import { fromJsonl, toJsonl } from "../src/exchange";
import { audioOf, base64Of, blobOf, fitted, isMedia, kindOf, mixed, wavOf } from "../src/media";
import { newId, Store } from "../src/store";
import type { Media, Message } from "../src/tree";

const image: Media = { kind: "image", name: "a.png", data: blobOf("AAEC", "image/png") };
const audio: Media = { kind: "audio", name: "b.wav", data: blobOf("AwQ=", "audio/wav") };
const message: Message = { id: "1", conversation: "c", parent: null, role: "user", text: "Hi", created: 1 };

describe("images and audio", () => {
  it("are told from their types", () => {
    expect(["image/png", "image/heic", "audio/ogg", "image/svg+xml", "text/plain", ""].map(kindOf))
      .toEqual(["image", "image", "audio", null, null, null]);
    expect(["image/png", "audio/mpeg", "image/svg+xml", "text/html"].map(isMedia)).toEqual([true, true, false, false]);
  });

  it("are scaled down, never up", () => {
    expect(fitted(100, 50)).toEqual({ width: 100, height: 50 });
    expect(fitted(4096, 1024)).toEqual({ width: 2048, height: 512 });
    expect(fitted(1, 100_000)).toEqual({ width: 1, height: 2048 });
  });

  it("survive Base64, larger than a call's arguments", async () => {
    const bytes = Uint8Array.from({ length: 100_000 }, (_, at) => at % 251);
    const back = blobOf(await base64Of(new Blob([bytes])), "image/png");
    expect(Buffer.from(await back.arrayBuffer()).equals(bytes)).toBe(true);
    expect(back.type).toBe("image/png");
  });

  it("become WAV of one channel", () => {
    const both = mixed([Float32Array.of(1, 0.5), Float32Array.of(-1, 0.5)]);
    expect([...both]).toEqual([0, 0.5]);
    const view = new DataView(wavOf(Float32Array.of(0, 1, -2), 16_000));
    const text = (at: number): string => String.fromCharCode(...new Uint8Array(view.buffer, at, 4));
    expect([text(0), text(8), text(36)]).toEqual(["RIFF", "WAVE", "data"]);
    expect([view.getUint32(4, true), view.getUint32(24, true), view.getUint32(40, true)]).toEqual([42, 16_000, 6]);
    expect([44, 46, 48].map((at) => view.getInt16(at, true))).toEqual([0, 32767, -32767]);
  });

  it("that are small WAV or MP3 stay as they are, under one name", async () => {
    const kept = await audioOf(new Blob(["abc"], { type: "audio/x-wav" }));
    expect([kept?.type, await kept?.text()]).toEqual(["audio/wav", "abc"]);
  });

  it("are refused before they are sent, by name of the model", () => {
    const model = (id: string, vision: boolean, hears: boolean) => ({ id, vision, audio: hears });
    expect(refusal([image, audio], [model("m", true, true)])).toBe("");
    expect(refusal([], [model("m", false, false)])).toBe("");
    expect(refusal([image], [model("m", true, true), model("blind", false, true)])).toMatch(/blind cannot see/);
    expect(refusal([audio], [model("deaf", true, false)])).toMatch(/deaf cannot hear/);
  });
});

describe("stored media", () => {
  it("are kept as blobs, in files as Base64", async () => {
    const store = new Store(newId());
    const { id } = await store.create();
    await store.save({ ...message, conversation: id, media: [image, audio] });
    const messages = await store.messagesOf(id);
    expect(messages[0]?.media?.[0]?.data).toBeInstanceOf(Blob);
    const conversation = (await store.get(id))!;
    const [read] = fromJsonl(await toJsonl([{ conversation, messages }]));
    expect(read?.messages[0]?.media?.map(({ kind, name, data }) => [kind, name, data.type]))
      .toEqual([["image", "a.png", "image/png"], ["audio", "b.wav", "audio/wav"]]);
    expect(await base64Of(read!.messages[0]!.media![0]!.data)).toBe("AAEC");
  });

  it.each([[{ name: "x", type: "image/svg+xml", data: "AA==" }], [{ type: "image/png", data: "?" }], "x", [null]].map((each) => [each]))(
    "of another kind are left out: %j",
    (media) => {
      const line = JSON.stringify({ conversation: {}, messages: [{ role: "user", text: "t", media }] });
      expect(fromJsonl(line)[0]?.messages[0]?.media).toEqual([]);
    },
  );
});
