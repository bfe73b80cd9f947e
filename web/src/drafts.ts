/** What is attached to messages that are not sent yet, by conversation. What is typed is a preference. */

import { audioOf, imageOf, kindOf } from "./media";
import { chat, draw, tell } from "./state";
import type { Model } from "./api";
import type { Media, TextFile } from "./tree";
import { words } from "./words";

const TEXT_BYTES = 1_000_000;

export interface Attached {
  files: TextFile[];
  media: Media[];
}

const NONE: Attached = { files: [], media: [] };
const drafts = new Map<string, Attached>();
const here = (): string => chat.current.id;

export const attached = (): Attached => drafts.get(here()) ?? NONE;

export function detach(item?: TextFile | Media): void {
  const { files, media } = attached();
  if (!item) drafts.delete(here());
  else drafts.set(here(), { files: files.filter((each) => each !== item), media: media.filter((each) => each !== item) });
  draw();
}

export async function attach(given: Iterable<File>): Promise<void> {
  const to = here();
  const refused: string[] = [];
  for (const file of given) {
    const read = await readFile(file);
    if (typeof read === "string") {
      refused.push(read);
      continue;
    }
    const { files, media } = drafts.get(to) ?? NONE;
    drafts.set(to, "kind" in read ? { files, media: [...media, read] } : { files: [...files, read], media });
    draw();
  }
  if (refused.length) tell(refused.join(" "));
}

/** An attachment, or why there is none. */
async function readFile(file: File): Promise<TextFile | Media | string> {
  const { name } = file;
  const kind = kindOf(file.type);
  try {
    if (kind === "image") return { kind, name, data: await imageOf(file) };
    if (kind === "audio") {
      const data = await audioOf(file);
      return data ? { kind, name, data } : words.tooLong(name);
    }
  } catch {
    return words.notMedia(name);
  }
  if (file.size > TEXT_BYTES) return words.tooLarge(name);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    return text.includes("\0") ? words.notText(name) : { name, text };
  } catch {
    return words.notText(name);
  }
}

/** Which of these the models cannot take, in words; "" if they take all. */
export function refusal(media: Media[], models: Pick<Model, "id" | "vision" | "audio">[]): string {
  const has = (kind: Media["kind"]): boolean => media.some((each) => each.kind === kind);
  const blind = has("image") ? models.find((each) => !each.vision) : undefined;
  const deaf = has("audio") ? models.find((each) => !each.audio) : undefined;
  return blind ? words.cannotSee(blind.id) : deaf ? words.cannotHear(deaf.id) : "";
}

/** Takes files that are dropped anywhere on the page. A browser would leave the page for them. */
export function takeDrops(): () => void {
  const over = (event: DragEvent): void => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    document.body.classList.add("dropping");
  };
  const leave = (event: DragEvent): void => {
    if (!event.relatedTarget) document.body.classList.remove("dropping"); // it left the window
  };
  const drop = (event: DragEvent): void => {
    document.body.classList.remove("dropping");
    if (!event.dataTransfer?.files.length) return;
    event.preventDefault();
    void attach(Array.from(event.dataTransfer.files));
  };
  document.addEventListener("dragover", over);
  document.addEventListener("dragleave", leave);
  document.addEventListener("drop", drop);
  return () => {
    document.removeEventListener("dragover", over);
    document.removeEventListener("dragleave", leave);
    document.removeEventListener("drop", drop);
  };
}
