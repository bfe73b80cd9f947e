/** The only way from a string to HTML. The page's Trusted Types policy permits no other. */

import DOMPurify from "dompurify";

const HTML =
  "a b blockquote br button caption code col colgroup dd del div dl dt em figcaption figure h1 h2 h3 h4 h5 h6 hr i " +
  "input kbd li mark ol p pre s small span strong sub sup table tbody td tfoot th thead tr u ul";
const MATH =
  "math menclose merror mfrac mi mmultiscripts mn mo mover mpadded mphantom mprescripts mroot mrow ms mspace msqrt " +
  "mstyle msub msubsup msup mtable mtd mtext mtr munder munderover none semantics";
const ATTRIBUTES =
  "align checked class colspan dir disabled href lang rel rowspan start target title type " +
  "accent accentunder columnalign columnlines columnspacing depth display displaystyle encoding fence form height " +
  "largeop linethickness lspace mathbackground mathcolor mathvariant maxsize minsize movablelimits notation rowalign rowlines rowspacing " +
  "rspace scriptlevel separator stretchy symmetric voffset width";

// Set once: DOMPurify would read the lists again for every block of every answer.
DOMPurify.setConfig({
  ALLOWED_TAGS: [...HTML.split(" "), ...MATH.split(" ")],
  ALLOWED_ATTR: ATTRIBUTES.split(" "),
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ADD_URI_SAFE_ATTR: ATTRIBUTES.split(" ").filter((name) => name !== "href"), // the others are no addresses
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  RETURN_TRUSTED_TYPE: "trustedTypes" in globalThis,
});

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer nofollow");
  } else if (node.tagName === "INPUT") {
    node.setAttribute("type", "checkbox"); // of a task list
    node.setAttribute("disabled", "");
  } else if (node.tagName === "BUTTON") {
    node.setAttribute("type", "button");
  }
});

/** A TrustedHTML where browsers have it, and else a string. */
export function sanitize(html: string): string {
  return DOMPurify.sanitize(html);
}
