// @vitest-environment jsdom
import "fake-indexeddb/auto";
import { render } from "preact";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { Composer } from "../src/components/Composer";
import { Editor } from "../src/components/Editor";
import { attached } from "../src/drafts";
import { listen } from "../src/keyboard";
import { edit, open, send } from "../src/messages";
import { chat } from "../src/state";
import type { Message } from "../src/tree";

vi.mock("../src/messages", () => ({ edit: vi.fn(), open: vi.fn(async () => {}), send: vi.fn() }));

const field = (): HTMLTextAreaElement => document.querySelector("textarea") as HTMLTextAreaElement;
const key = (target: EventTarget, name: string, more: KeyboardEventInit = {}): boolean =>
  target.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true, ...more }));

function type(text: string): void {
  field().value = text;
  field().dispatchEvent(new Event("input", { bubbles: true }));
}

beforeEach(() => {
  vi.stubGlobal("matchMedia", () => ({ matches: false }));
  chat.model = "A";
});

afterEach(() => {
  render(null, document.body);
  document.body.replaceChildren();
  chat.runs.clear();
  vi.clearAllMocks();
});

describe("the message field", () => {
  it("does not send with the Enter that ends a composed word, which Safari tells by its code only", async () => {
    render(<Composer compare={() => {}} />, document.body);
    type("かんじ");
    await vi.waitFor(() => expect(document.querySelector<HTMLButtonElement>(".send")?.disabled).toBe(false));
    key(field(), "Enter", { keyCode: 229 });
    expect(send).not.toHaveBeenCalled();
    key(field(), "Enter");
    expect(send).toHaveBeenCalledOnce();
  });

  it.each([["a\tb", 0], ["", 1]])("attaches a file that is pasted with the text %j: %i", async (text, count) => {
    render(<Composer compare={() => {}} />, document.body);
    const event = new Event("paste", { bubbles: true, cancelable: true });
    const clipboardData = { files: [new File(["x"], "x.txt")], getData: () => text };
    field().dispatchEvent(Object.assign(event, { clipboardData }));
    expect(event.defaultPrevented).toBe(count > 0);
    if (count) await vi.waitFor(() => expect(attached().files).toHaveLength(count));
    expect(attached().files).toHaveLength(count);
  });
});

describe("the editor", () => {
  const message: Message = { id: "m", conversation: "", parent: null, role: "user", text: "old", created: 1 };
  const shown = (busy: boolean): void => render(<Editor message={message} busy={busy} close={() => {}} />, document.body);
  const save = (): HTMLButtonElement => document.querySelector("form button") as HTMLButtonElement;

  it("saves nothing while an answer comes", async () => {
    shown(true);
    type("new");
    await vi.waitFor(() => expect(field().value).toBe("new"));
    expect(save().disabled).toBe(true);
    key(field(), "Enter");
    expect(edit).not.toHaveBeenCalled();
    shown(false);
    key(field(), "Enter");
    expect(edit).toHaveBeenCalledOnce();
  });

  it("saves no white space", async () => {
    shown(false);
    type("  ");
    await vi.waitFor(() => expect(save().disabled).toBe(true));
    key(field(), "Enter");
    expect(edit).not.toHaveBeenCalled();
  });
});

describe("the keyboard", () => {
  it("types letters with Option, and has the shortcuts elsewhere", () => {
    const end = listen({ panel: null, show: () => {}, list: () => {} });
    document.body.append(document.createElement("textarea"));
    const option = { code: "KeyN", altKey: true };
    expect(key(field(), "ń", option)).toBe(true); // its default is to type it
    expect(key(field(), "Dead", option)).toBe(true);
    expect(open).not.toHaveBeenCalled();
    expect(key(field(), "n", option)).toBe(false);
    expect(key(document.body, "ń", option)).toBe(false);
    expect(open).toHaveBeenCalledTimes(2);
    end();
  });

  it("stops an answer with Esc, but for a field of one line and a dialog, which take it themselves", () => {
    const end = listen({ panel: null, show: () => {}, list: () => {} });
    const controller = new AbortController();
    const message: Message = { id: "m", conversation: "", parent: null, role: "assistant", text: "", created: 1 };
    chat.runs.set("m", { message, controller });
    const [search, dialog] = [document.createElement("input"), document.createElement("dialog")];
    document.body.append(search, dialog);
    expect(key(search, "Escape")).toBe(true);
    dialog.setAttribute("open", "");
    expect(key(dialog, "Escape")).toBe(true);
    expect(controller.signal.aborted).toBe(false);
    dialog.remove();
    key(document.body, "Escape");
    expect(controller.signal.aborted).toBe(true);
    end();
  });
});
