import { useEffect, useState } from "preact/hooks";
import { takeDrops } from "../drafts";
import { listen } from "../keyboard";
import { preference, setPreference } from "../preferences";
import { dismiss, useChat } from "../state";
import { words } from "../words";
import { ComparePanel } from "./Compare";
import { Composer } from "./Composer";
import { Failure } from "./Failure";
import { Header } from "./Header";
import { ContextWarning } from "./Meter";
import { Settings } from "./Settings";
import { Shortcuts } from "./Shortcuts";
import { Sidebar } from "./Sidebar";
import { Thread } from "./Thread";

export type Panel = "settings" | "shortcuts" | "compare" | null;

export function App() {
  const chat = useChat(({ current }) => [current.id]);
  const [panel, show] = useState<Panel>(null);
  const narrow = matchMedia("(max-width: 45rem)").matches;
  const [listed, setListed] = useState(!narrow && preference("sidebar") !== "closed");
  const list = (open: boolean): void => {
    setListed(open);
    if (!matchMedia("(max-width: 45rem)").matches) setPreference("sidebar", open ? "" : "closed");
  };
  useEffect(() => listen({ panel, show, list }), [panel]);
  useEffect(takeDrops, []);
  const leave = (): void => {
    if (matchMedia("(max-width: 45rem)").matches) setListed(false);
  };
  return (
    <div class={`app ${listed ? "with-list" : ""}`}>
      {listed && <Sidebar close={() => list(false)} leave={leave} />}
      <main>
        <Header listed={listed} list={() => list(!listed)} show={show} />
        <Thread />
        <div class="below">
          <Notices />
          <ContextWarning />
          <Failure />
          <Composer key={chat.current.id} compare={() => show("compare")} />
        </div>
      </main>
      {panel === "settings" && <Settings close={() => show(null)} />}
      {panel === "compare" && <ComparePanel close={() => show(null)} />}
      {panel === "shortcuts" && <Shortcuts close={() => show(null)} />}
    </div>
  );
}

function Notices() {
  const { notice } = useChat();
  return (
    <div class="notices" role="status">
      {notice && (
        <p class="notice">
          {notice.text}
          {notice.undo && <button onClick={notice.undo}>{words.undo}</button>}
          <button class="quiet" aria-label={words.dismiss} onClick={dismiss}>×</button>
        </p>
      )}
    </div>
  );
}
