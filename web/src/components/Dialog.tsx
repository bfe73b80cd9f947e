import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { words } from "../words";

interface Props {
  title: string;
  close: () => void;
  wide?: boolean;
  children: ComponentChildren;
}

/** A modal dialog: the browser keeps the focus inside of it, and gives it back. */
export function Dialog({ title, close, wide, children }: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    dialog.current?.showModal();
    return () => dialog.current?.close();
  }, []);
  return (
    <dialog ref={dialog} class={wide ? "wide-dialog" : ""} aria-label={title} onClose={close}
      onClick={(event) => { if (event.target === dialog.current) close(); }}>
      <div class="dialog">
        <h2>{title}<button class="quiet" aria-label={words.close} onClick={close}>×</button></h2>
        {children}
      </div>
    </dialog>
  );
}
