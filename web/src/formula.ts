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
  return made.replace(/<(\w+)([^>]*)>/g, withoutStyle);
}

// What inline styles mean, as classes of styles.css.
const CLASSES: [RegExp, string][] = [
  [/border-top:/, "tex-top"],
  [/border-bottom:/, "tex-bottom"],
  [/padding-left:0(?:em|pt)/, "tex-start"],
  [/padding-left:1em/, "tex-far"],
  [/padding-right:0(?:em|pt)/, "tex-end"],
  [/border-left:/, "tex-left"],
  [/border-right:/, "tex-right"],
  [/border:/, "tex-box"],
  [/(?:^|;)width:100%/, "tex-wide"],
  [/(?:^|;)width:50%/, "tex-half"],
];

/** The page's policy permits no inline styles: a tag with classes and attributes instead. */
function withoutStyle(tag: string, name: string, attributes: string): string {
  const style = / style="([^"]*)"/.exec(attributes)?.[1];
  if (style === undefined) return tag;
  const old = / class="([^"]*)"/.exec(attributes)?.[1];
  const classes = [...(old ? [old] : []), ...CLASSES.filter(([found]) => found.test(style)).map(([, each]) => each)];
  const color = /(?:^|;)color:(#?\w+)/.exec(style)?.[1];
  const kept = attributes.replace(/ (?:style|class)="[^"]*"/g, "");
  const given = (classes.length ? ` class="${classes.join(" ")}"` : "") + (color ? ` mathcolor="${color}"` : "");
  return `<${name}${kept}${given}>`;
}
