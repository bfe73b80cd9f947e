import { render } from "preact";
import { App } from "./components/App";
import { refresh } from "./conversations";
import { open } from "./messages";
import { applyTheme } from "./preferences";
import { connect } from "./server";
import { tell } from "./state";
import { words } from "./words";

applyTheme();
const app = document.getElementById("app") as HTMLElement;
app.replaceChildren();
render(<App />, app);
const wanted = location.hash.slice(1);
void refresh()
  .then(() => (wanted ? open(wanted) : undefined))
  .catch(() => tell(words.notStored)) // browsers can forbid it: one may chat nevertheless
  .then(() => connect());
