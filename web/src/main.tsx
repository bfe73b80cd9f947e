import { render } from "preact";
import { chat } from "./chat";
import { App } from "./components/App";
import { applyTheme } from "./preferences";

applyTheme();
render(<App />, document.getElementById("app") as HTMLElement);
void chat.start();
