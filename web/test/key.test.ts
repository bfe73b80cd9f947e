// @vitest-environment jsdom
import "fake-indexeddb/auto";
import { expect, it, vi } from "vitest";
import { useKey } from "../src/server";
import { chat } from "../src/state";

it("a key that no request can carry is asked for again", async () => {
  vi.stubGlobal("fetch", async (path: string, { headers }: RequestInit) => {
    new Headers(headers); // throws where it cannot be sent
    return Response.json(path === "v1/models" ? { data: [{ id: "A" }] } : {});
  });
  useKey("“secret”");
  await vi.waitFor(() => expect(chat.failure?.error.code).toBe("invalid_api_key"));
  useKey(" secret\n");
  await vi.waitFor(() => expect(chat.model).toBe("A"));
  expect(chat.failure).toBeNull();
  expect(localStorage.getItem("olivine:key")).toBe("secret");
});
