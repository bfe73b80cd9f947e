import { useEffect, useState } from "preact/hooks";
import { attached, detach, refusal } from "../drafts";
import { useChat } from "../state";
import type { Media, TextFile } from "../tree";
import { words } from "../words";
import { Dialog } from "./Dialog";

/** What will be sent with the message, and whether the model can take it. */
export function Attachments() {
  const chat = useChat();
  const { files, media } = attached();
  const refused = refusal(media, chat.asked);
  const leftOut = refusal(chat.path.flatMap((message) => message.media ?? []), chat.asked);
  return (
    <>
      {(files.length > 0 || media.length > 0) && (
        <ul class="attached" aria-label={words.attached}>
          {media.map((each, index) => <li key={`m${index}`} class={each.kind}><Shown media={each} /><Remove item={each} /></li>)}
          {files.map((each, index) => <li key={`f${index}`}><span class="name">{each.name}</span><Remove item={each} /></li>)}
        </ul>
      )}
      {refused ? <p class="refusal" role="alert">{refused} {words.removeOrChoose}</p>
        : leftOut && <p class="refusal" role="status">{leftOut} {words.leftOut}</p>}
    </>
  );
}

function Remove({ item }: { item: TextFile | Media }) {
  return (
    <button type="button" class="quiet remove" aria-label={words.removeFile(item.name)} title={words.removeFile(item.name)}
      onClick={() => detach(item)}>×</button>
  );
}

/** An image that opens in full, or a player. */
export function Shown({ media: { kind, name, data } }: { media: Media }) {
  const url = useUrl(data);
  const [open, setOpen] = useState(false);
  if (!url) return null;
  if (kind === "audio") return <audio controls preload="metadata" src={url} aria-label={name} />;
  return (
    <>
      <button type="button" class="thumbnail" aria-label={words.openImage(name)} onClick={() => setOpen(true)}>
        <img src={url} alt={name} />
      </button>
      {open && <Dialog title={name} wide close={() => setOpen(false)}><img class="full" src={url} alt={name} /></Dialog>}
    </>
  );
}

/** An address of the blob, for as long as it is shown. */
function useUrl(blob: Blob): string {
  const [url, setUrl] = useState("");
  useEffect(() => {
    const made = URL.createObjectURL(blob);
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [blob]);
  return url;
}
