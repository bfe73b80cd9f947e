// @vitest-environment jsdom
import { beforeAll, describe, expect, it } from "vitest";
import { extras, want } from "../src/extras";
import { blocksOf, GrowingMarkdown, hideHalfMarkers } from "../src/markdown";
import { sanitize } from "../src/sanitize";
import { ATTACKS } from "./attacks";

const html = (text: string): string => blocksOf(text).map((block) => block.html).join("");

function dom(markup: string): HTMLElement {
  const root = document.createElement("div");
  root.innerHTML = markup;
  return root;
}

const TAGS = /^(a|b|blockquote|br|button|caption|code|del|div|em|figcaption|figure|h[1-6]|hr|i|input|kbd|li|mark|math|m[a-z]+|none|ol|p|pre|s|semantics|small|span|strong|sub|sup|table|tbody|td|th|thead|tr|u|ul)$/;

/** Nothing that runs, loads, submits, restyles, or leads to anything but a web page. */
function harmless(markup: string): void {
  for (const element of dom(markup).querySelectorAll("*")) {
    expect(element.localName, markup).toMatch(TAGS);
    for (const { name, value } of element.attributes) {
      expect(name, markup).not.toMatch(/^on|^style$|^src|^srcset$|^action|^formaction|^xlink|^id$|^name$|^data-/);
      if (name === "href") expect(value, markup).toMatch(/^(https?:\/\/|mailto:)/i);
      if (name === "href") expect(element.localName).toBe("a");
      expect(value, markup).not.toMatch(/^\s*(javascript|data|vbscript):/i);
    }
    if (element.localName === "a" && element.hasAttribute("href")) expect(element.getAttribute("rel")).toContain("noopener");
    if (element.localName === "input") expect(element.hasAttribute("disabled")).toBe(true);
  }
}

beforeAll(async () => {
  want("formula");
  want("highlight");
  while (!extras.formula || !extras.highlight) await new Promise((done) => setTimeout(done, 10));
});

describe("what a model writes can do nothing", () => {
  it.each(ATTACKS)("%s", (attack) => {
    for (const text of [attack, `- ${attack}`, `| a |\n|---|\n| ${attack} |`, `\`\`\`html\n${attack}\n\`\`\``, `> ${attack}`]) harmless(html(text));
    harmless(html(`$${attack}$`));
    harmless(html(`$$\n${attack}\n$$`));
    harmless(String(sanitize(attack))); // the second wall, alone
  });

  it("HTML shows as it was typed", () => {
    expect(dom(html("a <img src=x> b")).textContent).toContain("a <img src=x> b");
    expect(dom(html("<script>alert(1)</script>")).textContent).toContain("<script>alert(1)</script>");
  });

  it("images are links, and load nothing", () => {
    expect(html("![a cat](https://example.org/cat.png)")).toContain('<a href="https://example.org/cat.png"');
  });
});

describe("Markdown", () => {
  it("has tables, lists, task lists, emphasis and a few tags", () => {
    const root = dom(html("| a | b |\n|--|-:|\n| 1 | 2<br>3 |\n\n- [x] done\n\nH<sub>2</sub>O **bold**"));
    for (const tag of ["table", "td[align=right] br", "li input[checked]", "sub", "strong"]) expect(root.querySelector(tag), tag).toBeTruthy();
  });

  it("highlights code, and has a button to copy it", () => {
    const root = dom(html("```python\ndef f(): return '<b>'\n```"));
    expect(root.querySelector(".hljs-keyword")?.textContent).toBe("def");
    expect(root.querySelector("code")?.textContent).toBe("def f(): return '<b>'");
    expect(root.querySelector("button.copy")).toBeTruthy();
  });

  it("sets mathematics in the four spellings, and leaves prices alone", () => {
    for (const text of ["$x^2$", "\\(x^2\\)", "$$x^2$$", "\\[x^2\\]", "$$\nx^2\n$$", "\\[\nx^2\n\\]"]) expect(dom(html(text)).querySelector("math msup"), text).toBeTruthy();
    expect(dom(html("It costs $5 or $10 in all.")).querySelector("math")).toBeNull();
  });

  it("sets a formula of several lines that text follows", () => {
    for (const text of ["$$\nx^2 = 1\n$$.", "So\n\\[\nx^2 = 1\n\\], and on"]) {
      const root = dom(html(text));
      expect(root.querySelector("math msup"), text).toBeTruthy();
      expect(root.textContent, text).not.toMatch(/\$|\\/);
    }
    expect(dom(html("\\[a \\\\[2pt] b\\]")).querySelector("math")).toBeTruthy(); // a row's space is no marker
  });

  it("keeps what the inline styles of a formula mean: colours, lines, boxes, spaces", () => {
    const root = dom(html(String.raw`$$\color{red}x \colorbox{yellow}{y} \boxed{42} \begin{array}{r|l} a & b \\ \hline c & d\end{array}$$`));
    expect(root.querySelector("[mathcolor]")?.getAttribute("mathcolor")).toBe("#ff0000");
    expect(root.querySelector("[mathbackground]")?.textContent).toBe("y");
    expect(root.querySelector(".tex-box")?.textContent).toBe("42");
    expect([...root.querySelectorAll("mtd")].map((cell) => cell.className)).toEqual([
      "tml-right tex-bottom tex-start tex-right", "tml-left tex-bottom tex-end", "tml-right tex-start tex-right", "tml-left tex-end",
    ]);
    expect(root.querySelector("[style]")).toBeNull();
  });

  it("shows as typed what nests too deeply for the parser", () => {
    for (const text of [">".repeat(8000), "1. ".repeat(8000), `$$${"\\frac{1}{".repeat(20_000)}x${"}".repeat(20_000)}$$`]) {
      expect(dom(html(text)).textContent).toContain(text.slice(2, -2));
      const growing = new GrowingMarkdown(() => 0);
      for (const end of [text.length / 2, text.length]) growing.update(text.slice(0, end));
      expect(dom(growing.finish(text).map((each) => each.html).join("")).textContent).toContain(text.slice(2, -2));
    }
  });

  it("does not read on from a marker of a formula that is only opened", () => {
    const root = dom(html("\\[x\n\\[y^2\\]"));
    expect(root.querySelector("math msup")).toBeTruthy();
    expect(root.querySelector("math")?.textContent).not.toContain("x");
  });

  it("pretty-prints JSON", () => {
    expect(dom(html('```json\n{"a":1}\n```')).querySelector("code")?.textContent).toBe('{\n  "a": 1\n}');
  });
});

const LONG = `# Title

A paragraph with **bold** text
and \`code\`.

- one
- two

  still two
- three

1. first
2. second

\`\`\`js
const a = 1;

# no heading
\`\`\`

| a | b |
|---|---|
| 1 | 2 |

> quoted

$$
x^2
$$

The end.
`;

describe("GrowingMarkdown", () => {
  it("ends as the whole text does, however it grew", () => {
    for (const size of [1, 7, 50]) {
      const growing = new GrowingMarkdown(() => 0);
      for (let end = size; end < LONG.length; end += size) growing.update(LONG.slice(0, end));
      const whole = blocksOf(LONG).map((each) => String(each.html));
      expect(growing.update(LONG).map((each) => String(each.html))).toEqual(whole);
      expect(growing.finish(LONG).map((each) => String(each.html))).toEqual(whole);
    }
  }, 30_000);

  it("keeps the blocks that are complete as they are", () => {
    const growing = new GrowingMarkdown();
    const before = growing.update("# One\n\nTwo\n\nThr");
    const after = growing.update("# One\n\nTwo\n\nThree");
    expect(after[0]).toBe(before[0]);
    expect(after[1]).toBe(before[1]);
  });

  it("gives its blocks to the whole text, unless a definition changes their links", () => {
    const growing = new GrowingMarkdown();
    const before = growing.update("See [x].\n\nTwo");
    expect(growing.finish("See [x].\n\nTwo")[0]).toBe(before[0]);
    const whole = growing.finish("See [x].\n\nTwo\n\n[x]: https://example.org");
    expect(dom(String(whole[0]?.html)).querySelector("a")).toBeTruthy();
  });

  it("makes a last block that takes long less often, and the whole of it at the end", () => {
    let clock = 0;
    const growing = new GrowingMarkdown(() => (clock += 20)); // each call takes that long
    const before = growing.update("| a |\n|---|\n| 1 |");
    const more = "| a |\n|---|\n| 1 |\n| 2 |";
    expect(growing.update(more)).toBe(before);
    expect(growing.wait(more)).toBeGreaterThan(0);
    clock += 200;
    expect(growing.update(more)).not.toBe(before);
    expect(growing.wait(more)).toBe(0);
    expect(growing.finish(`${more}\n| 3 |`).map((each) => String(each.html))).toEqual(
      blocksOf(`${more}\n| 3 |`).map((each) => String(each.html)),
    );
  });

  it("shows half a marker once nothing follows it", () => {
    const growing = new GrowingMarkdown();
    expect(dom(String(growing.update("see [")[0]?.html)).textContent?.trim()).toBe("see");
    expect(dom(String(growing.finish("see [")[0]?.html)).textContent?.trim()).toBe("see [");
  });

  it("begins again for another text", () => {
    const growing = new GrowingMarkdown();
    growing.update("# One\n\nTwo\n\nThree");
    expect(dom(growing.update("Other").map((each) => each.html).join("")).textContent?.trim()).toBe("Other");
  });
});

describe("hideHalfMarkers", () => {
  it.each([
    ["text\n``", "text\n"], ["text\n```py", "text\n"], ["```py\n", "```py\n"], ["a\n```\ncode\n``", "a\n```\ncode\n"],
    ["some **", "some "], ["see [", "see "], ["`code`", "`code`"], ["**bold**", "**bold**"], ["5 * 3", "5 * 3"], ["~~~", ""],
  ])("%j", (text, shown) => expect(hideHalfMarkers(text)).toBe(shown));
});
