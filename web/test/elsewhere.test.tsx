// @vitest-environment jsdom
import { render } from "preact";
import { expect, it, vi } from "vitest";
import { Shown } from "../src/components/Message";
import type { Message } from "../src/tree";
import { words } from "../src/words";

it("an answer that another tab receives is being written; one that no tab receives can be continued", async () => {
  let held = [{ name: "olivine-answer:m" }];
  vi.stubGlobal("navigator", { locks: { query: async () => ({ held }) } });
  const message: Message = { id: "m", conversation: "c", parent: null, role: "assistant", text: "Half", created: 1, finish: "" };
  const root = document.createElement("div");
  render(<Shown message={message} growing={false} busy={false} last at={1} of={1} />, root);
  await vi.waitFor(() => expect(root.textContent).toContain(words.answering));
  expect(root.textContent).not.toContain(words.continue);
  held = []; // that tab is closed
  await vi.waitFor(() => expect(root.textContent).toContain(words.continue), { timeout: 10_000 });
  expect(root.textContent).toContain(words.broken);
});
