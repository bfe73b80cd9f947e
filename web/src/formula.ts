/** TeX as MathML. */

import temml from "temml";

export function formula(tex: string, display: boolean): string {
  const made = temml.renderToString(tex, {
    displayMode: display,
    throwOnError: false,
    trust: false,
    maxSize: [20, 200],
    maxExpand: 200,
  });
  return made.replace(/ style="[^"]*"/g, ""); // the page's policy permits no inline styles
}
