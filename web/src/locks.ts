/** Takes a lock that no other tab has, if it is free. Browsers have locks on secure origins only. */
export async function hold(name: string): Promise<(() => void) | null> {
  if (!navigator.locks) return () => {};
  return new Promise((taken) => {
    void navigator.locks.request(name, { ifAvailable: true }, (lock) => {
      if (lock) return new Promise<void>((release) => taken(release));
      return taken(null);
    });
  });
}

/** Whether a tab has the lock. */
export async function held(name: string): Promise<boolean> {
  const locks = await navigator.locks?.query();
  return locks?.held?.some((lock) => lock.name === name) ?? false;
}
