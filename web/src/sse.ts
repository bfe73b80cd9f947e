/** Server-sent events, from text that arrives in pieces of any size. */

export class EventReader {
  private line = "";
  private data: string[] = [];
  private afterReturn = false;

  /** The data of the events that this piece completes. */
  feed(piece: string): string[] {
    const found: string[] = [];
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

  private take(line: string, found: string[]): void {
    if (line === "") {
      if (this.data.length > 0) found.push(this.data.join("\n"));
      this.data = [];
    } else if (line === "data" || line.startsWith("data:")) {
      this.data.push(line.slice(5).replace(/^ /, ""));
    } // comments (pings) and other fields say nothing here
  }
}

function lineEnd(text: string, start: number): number {
  for (let index = start; index < text.length; index += 1) {
    if (text[index] === "\n" || text[index] === "\r") return index;
  }
  return -1;
}
