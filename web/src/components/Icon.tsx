const PATHS = {
  list: "M4 6h16M4 12h16M4 18h10",
  settings: "M4 7h10M18 7h2M4 17h2M10 17h10M16 5v4M8 15v4",
  help: "M9 9a3 3 0 1 1 4.5 2.6c-1 .6-1.5 1.2-1.5 2.4M12 17.5v.01",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  attach: "M8 12.5V7a4 4 0 0 1 8 0v9a2.5 2.5 0 0 1-5 0V8",
  more: "M6 12h.01M12 12h.01M18 12h.01",
  plus: "M12 5v14M5 12h14",
  down: "M12 5v14M6 13l6 6 6-6",
  folder: "M4 7a2 2 0 0 1 2-2h3l2 2h7a2 2 0 0 1 2 2v8a2 2 0 0 1-2 2H6a2 2 0 0 1-2-2zM12 10.5v5M9.5 13h5",
  open: "M6 9l6 6 6-6",
  closed: "M9 6l6 6-6 6",
  compare: "M4 5h6v14H4zM14 5h6v14h-6z",
  pin: "M12 21v-6M7 15h10l-2-4V4H9v7z",
};

export function Icon({ name }: { name: keyof typeof PATHS }) {
  return (
    <svg viewBox="0 0 24 24" width="20" height="20" aria-hidden="true">
      <path d={PATHS[name]} fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" stroke-linejoin="round" />
    </svg>
  );
}

/** The stone. */
export function Mark({ size }: { size: number }) {
  return (
    <svg viewBox="0 0 32 32" width={size} height={size} aria-hidden="true">
      <path d="M16 2 28 12 16 30 4 12Z" fill="#7a9a2e" /><path d="M16 2 22 12 16 30 10 12Z" fill="#a9c455" />
    </svg>
  );
}
