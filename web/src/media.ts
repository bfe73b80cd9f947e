/** Images and audio, made small enough to send with every turn of a conversation. */

import type { Media } from "./tree";

const LONGEST = 2048; // pixels of an image's longer side: models see no more
const IMAGE_BYTES = 1_500_000;
const AUDIO_BYTES = 4_000_000;
const RATE = 16_000; // Hz of audio that is converted: two minutes fit

const IMAGES = new Set(["image/png", "image/jpeg", "image/webp", "image/gif"]);
const AUDIO: Record<string, string> = {
  "audio/wav": "audio/wav", "audio/x-wav": "audio/wav", "audio/wave": "audio/wav", "audio/vnd.wave": "audio/wav",
  "audio/mpeg": "audio/mpeg", "audio/mp3": "audio/mpeg",
};

/** SVG is text, and read as such. */
export const kindOf = (type: string): Media["kind"] | null =>
  type.startsWith("audio/") ? "audio" : type.startsWith("image/") && !type.includes("svg") ? "image" : null;

/** The type of stored media that is one of those that this file makes. */
export const isMedia = (type: string): boolean => IMAGES.has(type) || Object.values(AUDIO).includes(type);

/** The size of an image that is no longer than permitted. */
export function fitted(width: number, height: number): { width: number; height: number } {
  const part = Math.min(1, LONGEST / Math.max(width, height));
  return { width: Math.max(1, Math.round(width * part)), height: Math.max(1, Math.round(height * part)) };
}

/** The image as it is, or one that is smaller. Throws where the browser cannot read it. */
export async function imageOf(file: Blob): Promise<Blob> {
  const bitmap = await createImageBitmap(file);
  const { width, height } = fitted(bitmap.width, bitmap.height);
  if (IMAGES.has(file.type) && width === bitmap.width && file.size <= IMAGE_BYTES) return file.slice(0, file.size, file.type);
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d") as OffscreenCanvasRenderingContext2D;
  context.drawImage(bitmap, 0, 0, width, height);
  const exact = file.type === "image/jpeg" ? null : await canvas.convertToBlob({ type: "image/png" });
  if (exact && exact.size <= IMAGE_BYTES) return exact;
  context.globalCompositeOperation = "destination-over"; // JPEG has no transparency
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  return canvas.convertToBlob({ type: "image/jpeg", quality: 0.9 });
}

/** WAV and MP3 as they are; other sounds, and large ones, as mono WAV. Null where that is too long. */
export async function audioOf(file: Blob): Promise<Blob | null> {
  const type = AUDIO[file.type];
  if (type && file.size <= AUDIO_BYTES) return file.slice(0, file.size, type);
  const decoded = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(await file.arrayBuffer());
  if (2 * decoded.length > AUDIO_BYTES) return null;
  const channels = Array.from({ length: decoded.numberOfChannels }, (_, index) => decoded.getChannelData(index));
  return new Blob([wavOf(mixed(channels), RATE)], { type: "audio/wav" });
}

export function mixed(channels: Float32Array[]): Float32Array {
  const [first = new Float32Array()] = channels;
  return first.map((_, at) => channels.reduce((sum, each) => sum + (each[at] ?? 0), 0) / channels.length);
}

/** A WAV file of 16-bit samples from those between -1 and 1. */
export function wavOf(samples: Float32Array, rate: number): ArrayBuffer {
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const tag = (at: number, text: string): void => [...text].forEach((each, index) => view.setUint8(at + index, each.charCodeAt(0)));
  tag(0, "RIFF");
  view.setUint32(4, 36 + 2 * samples.length, true);
  tag(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, 1, true); // channels
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  tag(36, "data");
  view.setUint32(40, 2 * samples.length, true);
  samples.forEach((each, index) => view.setInt16(44 + 2 * index, Math.max(-1, Math.min(1, each)) * 0x7fff, true));
  return view.buffer as ArrayBuffer;
}

/** Base64, in pieces that a call's arguments can hold. */
export async function base64Of(blob: Blob): Promise<string> {
  const bytes = new Uint8Array(await blob.arrayBuffer());
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x8000) text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(text);
}

export function blobOf(base64: string, type: string): Blob {
  return new Blob([Uint8Array.from(atob(base64), (each) => each.charCodeAt(0))], { type });
}

/** A part of a message in OpenAI's form. */
export async function partOf({ kind, data }: Media): Promise<Record<string, unknown>> {
  const encoded = await base64Of(data);
  if (kind === "image") return { type: "image_url", image_url: { url: `data:${data.type};base64,${encoded}` } };
  return { type: "input_audio", input_audio: { data: encoded, format: data.type === "audio/mpeg" ? "mp3" : "wav" } };
}
