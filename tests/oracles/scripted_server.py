"""A stand-in for the server: it sends the real chat page and answers as it is told, piece by piece."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from olivine.server.page import HEADERS, page_file

Delta = dict[str, Any]
END = object()
MODEL = {
    "id": "stand-in",
    "object": "model",
    "max_model_len": 32768,
    "capabilities": {"vision": False, "tools": True, "reasoning": True},
    "state": "loaded",
}


class ScriptedServer:
    """`feed` and `end` make the answer of the newest request; a `script` makes all answers by itself."""

    def __init__(self) -> None:
        self.url = ""
        self.models: list[dict[str, Any]] = [dict(MODEL)]
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.script: Callable[[dict[str, Any]], Iterator[Delta]] | None = None
        self.refusals: list[tuple[int, dict[str, str]]] = []
        self._pieces: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def feed(self, content: str = "", **delta: Any) -> None:
        self._pieces.put({**({"content": content} if content else {}), **delta})

    def end(self, reason: str = "stop") -> None:
        self._pieces.put({"finish_reason": reason})

    def cut(self) -> None:
        """Ends the connection in the middle of an answer."""
        self._pieces.put(END)

    def refuse(self, status: int, code: str, message: str) -> None:
        """The next request for an answer gets this error."""
        self.refusals.append((status, {"code": code, "message": message}))

    def answer(self, body: dict[str, Any]) -> Iterator[Delta]:
        if self.script is not None:
            yield from self.script(body)
            return
        last = False
        while not last and (piece := self._pieces.get(timeout=240)) is not END:
            last = "finish_reason" in piece  # what comes after it is of the next request
            yield piece


@contextmanager
def scripted() -> Iterator[ScriptedServer]:
    state = ScriptedServer()
    http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"state": state}))
    http.daemon_threads = True
    state.url = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        http.shutdown()
        http.server_close()
        thread.join(10)


class _Handler(BaseHTTPRequestHandler):
    state: ScriptedServer

    def do_GET(self) -> None:
        name = self.path.split("?")[0].lstrip("/")
        found = page_file(name or "index.html")
        if found is not None:
            self._send(
                200, found.packed, **HEADERS, **{"Content-Type": found.media_type, "Content-Encoding": "gzip"}
            )
        elif name == "v1/models":
            self._json(200, {"object": "list", "data": self.state.models})
        elif name == "props":
            params = {"temperature": 1.0, "top_p": 0.95, "top_k": 64, "min_p": 0.0}
            self._json(200, {"default_generation_settings": {"params": params}})
        else:
            self._json(404, {"error": {"code": "not_found", "message": f"there is no {name}"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"{}")
        self.state.paths.append(self.path)
        if self.path != "/v1/chat/completions":
            self._json(200, {"id": "x"})
            return
        self.state.requests.append(body)
        if self.state.refusals:
            status, error = self.state.refusals.pop(0)
            self._json(status, {"error": error})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        with suppress(BrokenPipeError, ConnectionResetError):  # the user stopped it
            self._stream(body)
        self.close_connection = True

    def _stream(self, body: dict[str, Any]) -> None:
        tokens = 0
        for delta in self.state.answer(body):
            reason = delta.pop("finish_reason", None)
            tokens += not reason
            self._event(
                {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
            )
            if reason:
                usage = {
                    "prompt_tokens": 20,
                    "completion_tokens": tokens,
                    "prompt_tokens_details": {"cached_tokens": 8},
                }
                self._event({"choices": [], "usage": usage, "timings": {"predicted_per_second": 123.4}})
                self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, data: Any) -> None:
        self.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")

    def _json(self, status: int, body: Any) -> None:
        self._send(status, json.dumps(body).encode(), **{"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass
