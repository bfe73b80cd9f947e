import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";
import { Icon } from "./Icon";

interface Props {
  label: string;
  closed?: () => void;
  children: ComponentChildren;
}

/** Buttons behind three dots. It closes when one is pressed, but for those with `data-stay`, which show others instead. */
export function Menu({ label, closed, children }: Props) {
  const menu = useRef<HTMLDetailsElement>(null);
  const close = (): void => void (menu.current && (menu.current.open = false));
  const step = (by: number): void => {
    const buttons = [...(menu.current?.querySelectorAll<HTMLElement>(".items button") ?? [])];
    const at = buttons.indexOf(document.activeElement as HTMLElement);
    buttons.at((at + by + (at < 0 && by < 0 ? 1 : 0)) % buttons.length)?.focus();
  };
  return (
    <details class="menu" ref={menu}
      onToggle={(event) => {
        if (event.currentTarget.open) menu.current?.querySelector(".items")?.scrollIntoView({ block: "nearest" });
        else closed?.();
      }}
      onClick={(event) => { if ((event.target as HTMLElement).matches(".items button:not([data-stay])")) close(); }}
      onFocusOut={() => setTimeout(() => { if (!menu.current?.contains(document.activeElement)) close(); })}
      onKeyDown={(event) => {
        if (!menu.current?.open) return;
        if (event.key === "Escape") {
          event.stopPropagation();
          close();
          menu.current.querySelector("summary")?.focus();
        } else if (event.key === "ArrowDown") step(1);
        else if (event.key === "ArrowUp") step(-1);
        else return;
        event.preventDefault();
      }}>
      <summary aria-label={label}><Icon name="more" /></summary>
      <div class="items">{children}</div>
    </details>
  );
}
