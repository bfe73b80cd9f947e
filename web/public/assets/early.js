// Before the first paint: the theme and the list of conversations as they were left.
try {
  for (const name of ["theme", "sidebar"]) {
    const kept = localStorage.getItem(`olivine:${name}`);
    if (kept) document.documentElement.dataset[name] = kept;
  }
} catch {
  // Storage is forbidden: the page shows as the system says.
}
