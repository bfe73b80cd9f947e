/** The focus, where what had it goes. */

/** Gives it to what the next frames draw. */
export function focusSoon(find: () => HTMLElement | null | undefined): void {
  requestAnimationFrame(() => requestAnimationFrame(() => find()?.focus()));
}

/** To the message field, but on touch screens, where the keyboard would come up. */
export function focusMessage(): void {
  if (!matchMedia("(pointer: coarse)").matches) focusSoon(() => document.querySelector<HTMLElement>("#message"));
}
