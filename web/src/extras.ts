/** Highlighting and mathematics are loaded when an answer first has code or formulas; until then it shows as typed. */

type Highlight = (code: string, language: string) => string | null;
type Formula = (tex: string, display: boolean) => string;

export const extras: { highlight?: Highlight; formula?: Formula } = {};

const wanted = new Set<string>();
let loads = 0;

/** How many parts have been loaded. */
export const loaded = (): number => loads;

const listeners = new Set<() => void>();

/** Calls back when a part has been loaded, so that what is shown can be drawn again. */
export function onExtras(listener: () => void): () => void {
  listeners.add(listener);
  return () => void listeners.delete(listener);
}

/** Loads a part, if it is not there. */
export function want(part: "highlight" | "formula"): void {
  if (wanted.has(part)) return;
  wanted.add(part);
  const loading =
    part === "highlight"
      ? import("./highlight").then((found) => void (extras.highlight = found.highlight))
      : import("./formula").then((found) => void (extras.formula = found.formula));
  loading
    .then(() => {
      loads += 1;
      listeners.forEach((listener) => listener());
    })
    .catch(() => wanted.delete(part));
}
