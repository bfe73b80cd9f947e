/** Folders of conversations. A conversation whose folder is gone is one without a folder. */

import { alter, store, written } from "./conversations";
import { chat, tell } from "./state";
import { newId, type Folder } from "./store";
import { words } from "./words";

export const DRAGGED = "application/x-olivine-conversation";

/** A folder that has no name yet: the list asks for it. */
export async function createFolder(name = ""): Promise<Folder> {
  const made: Folder = { id: newId(), name, created: Date.now() };
  await written(store.saveFolder(made));
  return made;
}

export async function renameFolder(id: string, name: string): Promise<void> {
  const old = chat.folders.find((each) => each.id === id);
  if (old) await written(store.saveFolder({ ...old, name }));
}

/** Its conversations stay. */
export async function removeFolder(id: string): Promise<void> {
  const old = chat.folders.find((each) => each.id === id);
  await written(store.removeFolder(id));
  if (!old) return;
  tell(words.folderDeleted(old.name), () => {
    chat.notice = null;
    void written(store.saveFolder(old));
  });
}

/** Whether a conversation is dragged here. */
export function over(event: DragEvent): boolean {
  const ours = event.dataTransfer?.types.includes(DRAGGED) ?? false;
  if (ours) event.preventDefault();
  return ours;
}

export function dropped(event: DragEvent, folder: string | undefined): void {
  const id = event.dataTransfer?.getData(DRAGGED);
  if (!id) return;
  event.preventDefault();
  event.stopPropagation();
  void alter(id, { folder });
}
