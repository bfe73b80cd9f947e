/** The conversations in the browser, and the one that is shown. */

import { load, readDefaults } from "./server";
import { setPreference } from "./preferences";
import { arrange, chat, draw, tell } from "./state";
import { blank, newId, Store, type Bundle, type Conversation } from "./store";
import { Tree, type Message } from "./tree";
import { words } from "./words";

export const store = new Store("olivine", (id) => void changedElsewhere(id));

export async function refresh(): Promise<void> {
  [chat.conversations, chat.folders] = await Promise.all([store.list(), store.folders()]);
  draw();
}

let turns = 0;

/** Shows a conversation; null is a new one. */
export async function show(id: string | null): Promise<void> {
  const turn = (turns += 1);
  const header = (id && (await store.get(id))) || null;
  const found = header ? await store.messagesOf(header.id) : [];
  if (turn !== turns) return; // another one was chosen meanwhile
  chat.current = header ?? blank();
  chat.messages = new Map(found.map((message) => [message.id, message]));
  for (const { message } of chat.running) {
    chat.messages.set(message.id, message);
    chat.current.leaf = message.id; // an answer that is being made is shown, stored or not
  }
  const { model } = chat.current;
  if (model && model !== chat.model && chat.models.some((each) => each.id === model)) {
    chat.model = model;
    void readDefaults();
  }
  history.replaceState(null, "", header ? `#${header.id}` : location.pathname + location.search);
  arrange();
}

/** Stores a message. Where the browser has no room for it, it lasts as long as the page. */
export const keep = (message: Message): Promise<void> => store.save(message).catch(() => tell(words.notStored));

async function changedElsewhere(id: string): Promise<void> {
  await refresh();
  const shown = chat.current;
  if (id !== shown.id) return;
  const header = await store.get(id);
  const messages = await store.messagesOf(id);
  if (!header) return; // deleted there: what is shown here stays until another one is opened
  if (chat.current !== shown) return changedElsewhere(id); // a setting was chosen, or another one opened, meanwhile
  for (const message of messages) if (!chat.runs.has(message.id)) chat.messages.set(message.id, message);
  // What was added to the branch that is shown is shown too; another branch is not.
  const end = chat.path.at(-1)?.id;
  const goesOn = new Tree(chat.messages.values()).path(header.leaf).some(({ id }) => id === end);
  chat.current = { ...header, leaf: goesOn || !end ? header.leaf : chat.current.leaf };
  arrange();
}

/** Stores the conversation that is shown again, if another tab has deleted it: it goes on here. */
export async function bringBack(): Promise<void> {
  const { id } = chat.current;
  if ((await store.get(id)) || chat.current.id !== id) return;
  await store.restore({ conversation: chat.current, messages: [...chat.messages.values()] });
}

/** Waits for what is written, and tells where the browser has no room for it. */
export async function written(work: Promise<unknown>): Promise<void> {
  await work.then(refresh).catch(() => tell(words.notStored));
}

/** Gives the conversation that is shown an id and a place in the store, if it has none: a message comes. */
export function ensure(title: string): void {
  if (chat.current.id) return;
  chat.current = { ...chat.current, id: newId(), title, model: chat.model, created: Date.now() };
  void store.create(chat.current).catch(() => tell(words.notStored));
  history.replaceState(null, "", `#${chat.current.id}`);
}

type Fields = Partial<Conversation>;

/** Changes fields of the conversation that is shown; new values may depend on the old ones. */
export async function change(given: Fields | ((old: Conversation) => Fields)): Promise<void> {
  const old = chat.current;
  const fields = typeof given === "function" ? given(old) : given;
  chat.current = { ...old, ...fields };
  arrange();
  if (!old.id) return;
  await written(store.change(old.id, fields));
}

/** Changes fields of any conversation. */
export async function alter(id: string, fields: Partial<Conversation>): Promise<void> {
  if (id === chat.current.id) return change(fields);
  await written(store.change(id, fields));
}

export async function chooseModel(model: string): Promise<void> {
  chat.model = model;
  setPreference("model", model);
  await change({ model });
  draw();
  await load();
}

export async function remove(id: string): Promise<void> {
  for (const run of chat.runs.values()) if (run.message.conversation === id) run.controller.abort();
  // Some browsers need room for deleting, too.
  const bundle = await store.remove(id).catch(() => tell(words.notDeleted));
  if (bundle === undefined) return;
  if (id === chat.current.id) await show(null);
  await refresh();
  if (!bundle) return;
  tell(words.deleted(bundle.conversation.title || words.untitled), () => void written(restore([bundle])));
}

export async function restore(bundles: Bundle[]): Promise<void> {
  for (const bundle of bundles) await store.restore(await inFolder(bundle));
  chat.notice = null;
  await refresh();
}

/** In the folder of that name, which is made if there is none. */
async function inFolder(bundle: Bundle): Promise<Bundle> {
  if (!bundle.folder) return bundle;
  const named = (await store.folders()).find((each) => each.name === bundle.folder);
  const folder = named ?? { id: newId(), name: bundle.folder, created: Date.now() };
  if (!named) await store.saveFolder(folder);
  return { ...bundle, conversation: { ...bundle.conversation, folder: folder.id } };
}

export async function bundleOf(id: string): Promise<Bundle[]> {
  const conversation = await store.get(id);
  if (!conversation) return [];
  const folder = chat.folders.find((each) => each.id === conversation.folder)?.name;
  return [{ folder, conversation, messages: await store.messagesOf(id) }];
}
