/** Server-sent events, from text that arrives in pieces of any size. */

export interface ServerEvent {
  data: string;
  id: string; // the last that was sent; "" if none was
}

export class EventReader {
  private line = "";
  private id = "";
  private data: string[] = [];
  private afterReturn = false;

  /** The events that this piece completes. */
  feed(piece: string): ServerEvent[] {
    const found: ServerEvent[] = [];
    for (let start = 0; start < piece.length; ) {
      if (this.afterReturn && piece[start] === "\n") start += 1; // the second half of a CRLF
      this.afterReturn = false;
      const end = lineEnd(piece, start);
      if (end < 0) {
        this.line += piece.slice(start);
        break;
      }
      this.take(this.line + piece.slice(start, end), found);
      this.line = "";
      this.afterReturn = piece[end] === "\r";
      start = end + 1;
    }
    return found;
  }

  private take(line: string, found: ServerEvent[]): void {
    if (line === "") {
      if (this.data.length > 0) found.push({ data: this.data.join("\n"), id: this.id });
      this.data = [];
    } else if (line === "data" || line.startsWith("data:")) {
      this.data.push(line.slice(5).replace(/^ /, ""));
    } else if (line.startsWith("id:")) {
      this.id = line.slice(3).replace(/^ /, "");
    } // comments (pings) and other fields say nothing here
  }
}

function lineEnd(text: string, start: number): number {
  for (let index = start; index < text.length; index += 1) {
    if (text[index] === "\n" || text[index] === "\r") return index;
  }
  return -1;
}
