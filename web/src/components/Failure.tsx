import { useState } from "preact/hooks";
import { useKey } from "../server";
import { forgive, useChat } from "../state";
import { words } from "../words";

/** What went wrong: our words, then the server's. */
export function Failure() {
  const chat = useChat();
  const [key, setKey] = useState("");
  const failure = chat.failure;
  if (!failure || (failure.conversation && failure.conversation !== chat.current.id)) return null;
  const { error, again } = failure;
  const known = words.errors[error.code];
  const said = error.code === "unreachable" || error.message === known ? "" : error.message;
  return (
    <div class="failure" role="alert">
      <div>
        <strong>{known ?? said}</strong>
        {known && said && <p>{said}</p>}
        {error.code === "invalid_api_key" && (
          <form onSubmit={(event) => { event.preventDefault(); useKey(key); }}>
            <input type="password" autocomplete="off" aria-label={words.apiKey} placeholder={words.apiKey} value={key}
              onInput={(event) => setKey(event.currentTarget.value)} />
            <button>{words.useKey}</button>
            <p>{words.keyHint}</p>
          </form>
        )}
      </div>
      {again.size > 0 && error.code !== "invalid_api_key" && <button onClick={() => [...again.values()].forEach((each) => each())}>{words.retry}</button>}
      <button class="quiet" aria-label={words.dismiss} onClick={() => forgive()}>×</button>
    </div>
  );
}
