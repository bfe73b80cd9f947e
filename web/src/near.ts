/** Messages of a long conversation are made into HTML when they come near to what is seen. */

const MARGIN = "1500px 0px"; // above and below

const waiting = new Map<Element, () => void>();
let observer: IntersectionObserver | null = null;
let root: Element | null = null;

/** Calls back once, when the message that an element is in comes near. */
export function onceNear(element: Element, act: () => void): () => void {
  // What browsers leave out of the layout (content-visibility) is in articles; an article itself has its place.
  const article = element.closest("article") ?? element;
  const thread = element.closest(".thread");
  if (!observer || root !== thread) {
    observer?.disconnect();
    root = thread;
    observer = new IntersectionObserver(notice, { root, rootMargin: MARGIN });
    for (const each of waiting.keys()) observer.observe(each);
  }
  waiting.set(article, act);
  observer.observe(article);
  return () => leave(article);
}

function notice(entries: IntersectionObserverEntry[]): void {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    const act = waiting.get(target);
    leave(target);
    act?.();
  }
}

function leave(article: Element): void {
  waiting.delete(article);
  observer?.unobserve(article);
}
