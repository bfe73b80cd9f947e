"""A hub on this machine that speaks the protocol of Hugging Face's: repositories, redirects to another host
for large files, ranges, and the ways in which it fails. Nothing in these tests leaves the machine."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote

LARGE = (".gguf", ".safetensors", ".bin")  # stored by their SHA-256, and served by the other host
_RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass
class Repository:
    files: dict[str, bytes]
    commit: str = "1" * 40
    gated: bool = False
    license: str = "apache-2.0"

    def blob(self, path: str) -> str:
        data = self.files[path]
        if path.endswith(LARGE):
            return hashlib.sha256(data).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Hub:
    """What it has, what it was asked for, and what goes wrong from now on."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)  # method, path, headers
    sent: dict[str, int] = field(default_factory=dict)  # bytes of each large file
    cut_after: list[int] = field(default_factory=list)  # the next downloads break off after so many bytes
    altered: bool = False  # large files come with a byte changed
    without_ranges: bool = False
    limited: bool = False  # everything is answered with 429
    pause_after: int | None = None  # a download stands still after so many bytes, until this is None
    url: str = ""

    def add(self, repo: str, files: dict[str, bytes], **attributes: Any) -> Repository:
        self.repositories[repo] = Repository(files, **attributes)
        return self.repositories[repo]

    def downloads(self) -> list[str]:
        """The large files that were asked for."""
        return [path for method, path, _ in self.asked if method == "GET" and path.startswith("/cdn/")]


@contextmanager
def running() -> Iterator[Hub]:
    hub = Hub()

    class Handler(_Handler):
        of = hub

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    of: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(self.path.partition("?")[0])
        self.of.asked.append(
            (self.command, path, {key.lower(): value for key, value in self.headers.items()})
        )
        if self.of.limited:
            self._send(429, b"{}", {"Retry-After": "7"})
        elif path.startswith("/api/models/"):
            self._describe(path.removeprefix("/api/models/").partition("/revision/")[0])
        elif path.startswith("/cdn/"):
            self._serve(path)
        elif found := _RESOLVE.fullmatch(path):
            self._resolve(found[1], found[3])
        else:
            self._send(404, b"{}")

    def _describe(self, name: str) -> None:
        repository = self.of.repositories.get(name)
        if repository is None:
            self._send(401, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "not found"})
            return
        siblings = []
        for path, data in repository.files.items():
            entry: dict[str, Any] = {"rfilename": path, "size": len(data), "blobId": "2" * 40}
            if path.endswith(LARGE):
                entry["lfs"] = {"sha256": repository.blob(path), "size": len(data), "pointerSize": 134}
            else:
                entry["blobId"] = repository.blob(path)
            siblings.append(entry)
        info = {"id": name, "modelId": name, "sha": repository.commit, "siblings": siblings, "tags": []}
        info |= {"gated": "manual" if repository.gated else False, "private": False, "downloads": 0}
        self._send(200, json.dumps(info | {"cardData": {"license": repository.license}}).encode())

    def _resolve(self, name: str, path: str) -> None:
        repository = self.of.repositories.get(name)
        if repository is None or path not in repository.files:
            code = "RepoNotFound" if repository is None else "EntryNotFound"
            self._send(404, b"", {"X-Error-Code": code, "X-Repo-Commit": getattr(repository, "commit", "")})
            return
        if repository.gated and self.headers.get("Authorization") != "Bearer hf_accepted":
            status = 403 if self.headers.get("Authorization") else 401
            self._send(status, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "restricted"})
            return
        data = repository.files[path]
        headers = {"X-Repo-Commit": repository.commit, "ETag": f'"{repository.blob(path)}"'}
        if path.endswith(LARGE):
            port = self.server.server_address[1]
            headers |= {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(len(data))}
            headers |= {"Location": f"http://localhost:{port}/cdn/{name}/{path}"}
            self._send(302, b"", headers)
        else:
            self._send(200, data, headers)

    def _serve(self, path: str) -> None:
        _, _, owner, last, name = path.split("/", 4)
        data = self.of.repositories[f"{owner}/{last}"].files[name]
        if self.of.altered:
            data = bytes([data[0] ^ 1]) + data[1:]
        begin, status, headers = 0, 200, {"Accept-Ranges": "bytes"}
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if wanted and not self.of.without_ranges:
            begin, status = int(wanted[1]), 206
            headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        rest = data[begin:]
        cut = self.of.cut_after.pop(0) if self.of.cut_after and self.command == "GET" else None
        self.of.sent[name] = self.of.sent.get(name, 0) + len(rest if cut is None else rest[:cut])
        self._send(status, rest, headers, cut)

    def _send(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, cut: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            if self.of.pause_after is not None and len(body) > self.of.pause_after:
                self.wfile.write(body[: self.of.pause_after])
                while self.of.pause_after is not None:
                    time.sleep(0.02)
                self.close_connection = True
                return
            self.wfile.write(body if cut is None else body[:cut])
            if cut is not None:
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass
