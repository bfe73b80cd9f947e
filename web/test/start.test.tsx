// @vitest-environment jsdom
import "fake-indexeddb/auto";
import { expect, it, vi } from "vitest";
import { chat } from "../src/state";
import { Store } from "../src/store";
import { words } from "../src/words";

it("the page connects where the browser stores nothing", async () => {
  vi.stubGlobal("matchMedia", () => ({ matches: false }));
  vi.stubGlobal("ResizeObserver", class { observe() {} disconnect() {} });
  Element.prototype.scrollTo = () => {};
  vi.stubGlobal("fetch", async (path: string) => Response.json(path === "v1/models" ? { data: [{ id: "A" }] } : {}));
  vi.spyOn(Store.prototype, "list").mockRejectedValue(new DOMException("denied", "SecurityError"));
  document.body.innerHTML = '<div id="app"></div>';
  await import("../src/main");
  await vi.waitFor(() => expect(chat.model).toBe("A"), { timeout: 10_000 });
  expect(chat.notice?.text).toBe(words.notStored);
});
