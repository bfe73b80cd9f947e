import { focusSoon } from "../focus";
import { words } from "../words";

interface Props {
  name: string;
  done: (name: string) => void; // "" keeps the old one
}

/** A name as a field: Enter or leaving it takes it, Esc does not. The page may draw while one types: it gives the name
 * that the field starts with, never its text. */
export function Rename({ name, done }: Props) {
  return (
    <input aria-label={words.rename} defaultValue={name} ref={(input) => {
      if (!input || input.dataset.seen) return;
      input.dataset.seen = "1";
      input.focus();
      input.select();
    }}
      onBlur={(event) => done(event.currentTarget.value.trim())}
      onKeyDown={(event) => {
        if (event.key !== "Enter" && event.key !== "Escape") return;
        const item = event.currentTarget.closest("li");
        focusSoon(() => item?.querySelector<HTMLElement>(".title"));
        if (event.key === "Escape") {
          event.stopPropagation();
          event.currentTarget.value = "";
        }
        event.currentTarget.blur();
      }} />
  );
}
