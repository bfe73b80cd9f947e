// @vitest-environment jsdom
import "fake-indexeddb/auto";
import { render } from "preact";
import { afterEach, beforeAll, expect, it, vi } from "vitest";
import { App } from "../src/components/App";
import { store } from "../src/conversations";
import { chat, draw } from "../src/state";
import { blank } from "../src/store";

// Each entry of the list has a menu.
const drawn = vi.hoisted(() => ({ entries: 0 }));
vi.mock("../src/components/Menu", () => ({ Menu: () => void (drawn.entries += 1) }));

const frame = (): Promise<void> => new Promise((done) => setTimeout(done, 50));
const named = (count: number, change = {}) =>
  Array.from({ length: count }, (_, at) => ({ ...blank(), id: `c${at}`, title: `number ${at}`, ...(at ? {} : change) }));

beforeAll(() => {
  vi.stubGlobal("matchMedia", () => ({ matches: false }));
  vi.stubGlobal("requestAnimationFrame", (act: () => void) => setTimeout(act, 0));
  vi.stubGlobal("ResizeObserver", class { observe() {} disconnect() {} });
  Element.prototype.scrollTo = () => {};
});

afterEach(() => {
  render(null, document.body);
});

it("the list is drawn when it has changed, not for every token of an answer", async () => {
  chat.conversations = named(10);
  render(<App />, document.body);
  await frame();
  drawn.entries = 0;
  draw(); // a token
  await frame();
  expect(drawn.entries).toBe(0);
  chat.conversations = named(10, { title: "renamed" }); // as the store gives them: all are new objects
  draw();
  await frame();
  expect(drawn.entries).toBe(1);
  expect(document.body.textContent).toContain("renamed");
  chat.current = { ...chat.current, id: "c3" };
  draw();
  await frame();
  expect(document.querySelector("[aria-current=page]")?.textContent).toBe("number 3");
});

it("what was searched for before does not come back when the search is empty", async () => {
  chat.conversations = named(3);
  let find = (_: Set<string>): void => {};
  const search = vi.spyOn(store, "search").mockImplementation(() => new Promise((found) => (find = found)));
  render(<App />, document.body);
  const field = document.querySelector<HTMLInputElement>("#search") as HTMLInputElement;
  const type = (text: string): void => {
    field.value = text;
    field.dispatchEvent(new Event("input", { bubbles: true }));
  };
  type("one");
  await vi.waitFor(() => expect(search).toHaveBeenCalled());
  type("");
  await frame();
  find(new Set(["c1"]));
  await frame();
  expect(document.querySelectorAll(".entry")).toHaveLength(3);
});
