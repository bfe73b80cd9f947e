// @vitest-environment jsdom
import "fake-indexeddb/auto";
import { render } from "preact";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { Thread } from "../src/components/Thread";
import { arrange, chat } from "../src/state";
import type { Message } from "../src/tree";

const VIEW = 100; // pixels
const place = { height: 1000, top: 0 };
let grown = (): void => {};
const frame = (): Promise<void> => new Promise((done) => setTimeout(done, 50));
const thread = (): HTMLElement => document.querySelector(".thread") as HTMLElement;

function scroll(top: number): void {
  place.top = Math.max(0, Math.min(top, place.height - VIEW));
  thread().dispatchEvent(new Event("scroll"));
}

function grow(by: number): void {
  place.height += by;
  grown();
}

function add(id: string, parent: string | null, created: number): void {
  const message: Message = { id, conversation: "", parent, role: "user", text: id, created };
  chat.messages.set(id, message);
}

beforeEach(() => {
  vi.stubGlobal("requestAnimationFrame", (act: () => void) => setTimeout(act, 0));
  vi.stubGlobal("ResizeObserver", class {
    constructor(act: () => void) { grown = act; }
    observe() {}
    disconnect() {}
  });
  Object.defineProperties(Element.prototype, {
    scrollHeight: { configurable: true, get: () => place.height },
    clientHeight: { configurable: true, get: () => VIEW },
    scrollTop: { configurable: true, get: () => place.top },
    scrollTo: { configurable: true, value: ({ top }: { top: number }) => scroll(top) },
  });
  render(<Thread />, document.body);
});

afterEach(() => {
  render(null, document.body);
  chat.messages.clear();
  chat.current = { ...chat.current, leaf: null };
});

it("the page follows an answer until one scrolls up, by however little, and from near the end on when one scrolls down", async () => {
  await frame();
  grow(50);
  expect(place.top).toBe(950);
  scroll(945);
  grow(200);
  expect(place.top).toBe(945);
  scroll(950);
  grow(10);
  expect(place.top).toBe(950); // still far
  scroll(1100);
  grow(10);
  expect(place.top).toBe(1170);
  place.height -= 200; // something is folded
  scroll(place.top);
  grow(10);
  expect(place.top).toBe(980);
});

it("stepping between branches does not go to the end", async () => {
  for (const [at, id] of ["a", "b", "c", "d"].entries()) add(id, at ? "abc"[at - 1] ?? null : null, at);
  add("b2", "a", 9);
  chat.current = { ...chat.current, leaf: "d" };
  arrange();
  await frame();
  scroll(0);
  chat.current = { ...chat.current, leaf: "b2" };
  arrange();
  await frame();
  expect(document.querySelectorAll("article")).toHaveLength(2);
  expect(place.top).toBe(0);
});
