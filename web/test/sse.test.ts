import { describe, expect, it } from "vitest";
import { EventReader } from "../src/sse";

const STREAM = 'data: {"a":"é\\n"}\r\n\r\n: ping\n\nid: 7\nevent: x\ndata: one\ndata:two\n\ndata:  three\r\rdata: [DONE]\n\n';
const EVENTS = [
  { data: '{"a":"é\\n"}', id: "" }, { data: "one\ntwo", id: "7" }, { data: " three", id: "7" }, { data: "[DONE]", id: "7" },
];

describe("EventReader", () => {
  it("reads a stream at every split", () => {
    for (let first = 0; first <= STREAM.length; first += 1) {
      for (let second = first; second <= STREAM.length; second += 1) {
        const reader = new EventReader();
        const parts = [STREAM.slice(0, first), STREAM.slice(first, second), STREAM.slice(second)];
        expect(parts.flatMap((part) => reader.feed(part))).toEqual(EVENTS);
      }
    }
  });

  it("keeps an event that is not complete", () => {
    const reader = new EventReader();
    expect(reader.feed("data: half\n")).toEqual([]);
    expect(reader.feed("\n")).toEqual([{ data: "half", id: "" }]);
  });
});
