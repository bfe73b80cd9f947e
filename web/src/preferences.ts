/** Small choices of this browser. Where storage is forbidden they last as long as the page. */

const memory = new Map<string, string>();

export type Preference = "theme" | "model" | "key" | "sidebar" | `draft:${string}` | `folder:${string}`;

export function preference(name: Preference): string {
  try {
    return localStorage.getItem(`olivine:${name}`) ?? "";
  } catch {
    return memory.get(name) ?? "";
  }
}

export function setPreference(name: Preference, value: string): void {
  memory.set(name, value);
  try {
    if (value) localStorage.setItem(`olivine:${name}`, value);
    else localStorage.removeItem(`olivine:${name}`);
  } catch {
    // Storage is forbidden or full: the page goes on without.
  }
}

export function applyTheme(): void {
  document.documentElement.dataset.theme = preference("theme") || "system";
}
