// @vitest-environment jsdom
import "fake-indexeddb/auto";
import { render } from "preact";
import { afterEach, beforeAll, expect, it, vi } from "vitest";
import { App } from "../src/components/App";
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
