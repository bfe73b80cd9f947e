import { describe, expect, it } from "vitest";
import { Tree, type Message } from "../src/tree";

const message = (id: string, parent: string | null, created: number): Message => ({
  id, parent, created, conversation: "c", role: created % 2 ? "user" : "assistant", text: id,
});

const TREE = new Tree([
  message("a", null, 1), message("b", "a", 2), message("b2", "a", 4), message("c", "b", 5), message("a2", null, 3),
]);
const ids = (messages: Message[]): string[] => messages.map((each) => each.id);

describe("Tree", () => {
  it("follows a branch from the first message", () => {
    expect(ids(TREE.path("c"))).toEqual(["a", "b", "c"]);
    expect(ids(TREE.path("b2"))).toEqual(["a", "b2"]);
    expect(TREE.path(null)).toEqual([]);
  });

  it("knows siblings in the order in which they were made", () => {
    expect(ids(TREE.siblings(TREE.get("b2") as Message))).toEqual(["b", "b2"]);
    expect(ids(TREE.siblings(TREE.get("a") as Message))).toEqual(["a", "a2"]);
  });

  it("goes to the newest end of a branch", () => {
    expect(TREE.leaf("a")).toBe("b2");
    expect(TREE.leaf("b")).toBe("c");
    expect(TREE.newest()).toBe("a2");
    expect(new Tree([]).newest()).toBe(null);
  });

  it("shows a message whose parent is gone as a first one", () => {
    const tree = new Tree([message("x", "gone", 1), message("y", "x", 2)]);
    expect(ids(tree.path("y"))).toEqual(["x", "y"]);
    expect(tree.newest()).toBe("y");
  });

  it("ends where an import has made a cycle", () => {
    const tree = new Tree([message("x", "y", 1), message("y", "x", 2)]);
    expect(tree.path("x").length).toBe(2);
    expect(["x", "y"]).toContain(tree.leaf("x"));
  });
});
