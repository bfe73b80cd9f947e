/** Functions that the model may call, as the user writes them down. The user types their results. */

import { ServerError } from "./api";
import { words } from "./words";

/** In OpenAI's form, from a JSON list of that form or of bare functions. Throws words that say what is wrong. */
export function toolsOf(text: string): object[] {
  if (!text.trim()) return [];
  let given: unknown;
  try {
    given = JSON.parse(text);
  } catch (error) {
    throw new ServerError(words.toolsNotJson((error as Error).message), "");
  }
  return (Array.isArray(given) ? given : [given]).map((each, index) => {
    const found = each?.function ?? each;
    if (typeof found?.name !== "string" || !found.name) throw new ServerError(words.toolWithoutName(index + 1), "");
    return { type: "function", function: found };
  });
}

/** JSON with lines; what is none stays as it is. */
export function pretty(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
