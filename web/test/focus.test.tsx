// @vitest-environment jsdom
import "fake-indexeddb/auto";
import { render } from "preact";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { Rename } from "../src/components/Rename";
import { Shown } from "../src/components/Message";
import { step } from "../src/messages";
import type { Message } from "../src/tree";
import { words } from "../src/words";

vi.mock("../src/messages", () => ({ edit: vi.fn(), goOn: vi.fn(), regenerate: vi.fn(), step: vi.fn() }));

const message: Message = { id: "m", conversation: "", parent: null, role: "assistant", text: "old", created: 1, finish: "stop" };
const button = (name: string): HTMLButtonElement =>
  [...document.querySelectorAll("button")].find(({ textContent }) => textContent === name) as HTMLButtonElement;
const press = (key: string): boolean =>
  (document.activeElement as HTMLElement).dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
const focused = (find: () => Element | null): Promise<void> => vi.waitFor(() => expect(document.activeElement).toBe(find()));

beforeEach(() => {
  vi.stubGlobal("requestAnimationFrame", (act: () => void) => setTimeout(act, 20));
  vi.stubGlobal("matchMedia", () => ({ matches: false }));
});

afterEach(() => render(null, document.body));

it("the editor gives the focus back: to its button, or to the message field where it was saved", async () => {
  const shown = <Shown message={message} growing={false} busy={false} last at={1} of={1} />;
  render(<div><textarea id="message" />{shown}</div>, document.body);
  for (const leave of [() => press("Escape"), () => button(words.cancel).click()]) {
    button(words.edit).click();
    await focused(() => document.querySelector(".editor textarea"));
    leave();
    await focused(() => button(words.edit));
  }
  button(words.edit).click();
  await focused(() => document.querySelector(".editor textarea"));
  press("Enter");
  await focused(() => document.querySelector("#message"));
  button(words.regenerate).focus();
  button(words.regenerate).click();
  await focused(() => document.querySelector("#message"));
});

it("stepping between branches keeps the focus: where there is none further, the way back has it", async () => {
  const branches = [1, 2, 3].map((at) => ({ ...message, id: `b${at}` }));
  const draw = (at: number): void =>
    render(<Shown key={at} message={branches[at - 1]!} growing={false} busy={false} last at={at} of={3} />, document.body);
  let at = 1;
  vi.mocked(step).mockImplementation((_, by) => (draw((at += by)), branches[at - 1]));
  const labelled = (name: string): HTMLButtonElement => document.querySelector(`[aria-label="${name}"]`)!;
  draw(at);
  labelled(words.nextBranch).focus();
  labelled(words.nextBranch).click();
  expect(document.activeElement).toBe(document.body);
  await focused(() => labelled(words.nextBranch));
  labelled(words.nextBranch).click();
  await focused(() => labelled(words.previousBranch));
  labelled(words.previousBranch).click();
  await focused(() => labelled(words.previousBranch));
});

it("a name gives the focus back to what it names", async () => {
  const named = (renaming: boolean) => (
    <ul><li>{renaming ? <Rename name="old" done={() => render(named(false), document.body)} /> : <button class="title">old</button>}</li></ul>
  );
  render(named(true), document.body);
  await focused(() => document.querySelector("input"));
  press("Enter");
  await focused(() => document.querySelector(".title"));
});
