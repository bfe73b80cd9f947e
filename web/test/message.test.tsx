// @vitest-environment jsdom
import { render } from "preact";
import { expect, it, vi } from "vitest";
import { Shown } from "../src/components/Message";

vi.mock("../src/components/Markdown", () => ({
  Markdown: () => {
    throw new Error("cannot be drawn");
  },
}));

it("a message that cannot be drawn shows as typed, and leaves the others alone", async () => {
  const root = document.createElement("div");
  const message = (id: string, role: "user" | "assistant", text: string) =>
    ({ id, conversation: "c", parent: null, role, text, created: 1, finish: "stop" }) as const;
  const state = { growing: false, busy: false, last: false, at: 1, of: 1 };
  render(
    <>
      <Shown message={message("a", "user", "one")} {...state} />
      <Shown message={message("b", "assistant", "two **bold**")} {...state} />
    </>,
    root,
  );
  await vi.waitFor(() => expect(root.textContent).toContain("two **bold**"));
  expect(root.querySelectorAll("article")).toHaveLength(2);
});
