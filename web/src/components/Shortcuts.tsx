import { words } from "../words";
import { Dialog } from "./Dialog";

export function Shortcuts({ close }: { close: () => void }) {
  return (
    <Dialog title={words.shortcuts} close={close}>
      <dl class="keys">
        {words.keys.map(([keys, what]) => (
          <div key={keys}><dt><kbd>{keys}</kbd></dt><dd>{what}</dd></div>
        ))}
      </dl>
    </Dialog>
  );
}
