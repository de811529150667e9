"""A stand-in for the API and the file addresses of the Hugging Face Hub.

Answers what huggingface_hub 2.4 requests: `dataset_info` of a revision (`sha` and `siblings`),
HEAD of a file (commit, ETag, X-Linked-Etag, X-Linked-Size, a redirect to the store of large files),
GET with Range, and refusals by X-Error-Code. Like the Hub, it also offers the protocol xet, which
clients that request a file's own address need not use.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pytest

TOKEN = "hf_" + "a" * 34  # made up for this stand-in
STRANGER = "hf_" + "b" * 34  # its account has not accepted the terms of gated datasets
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def ask_only(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes huggingface_hub use another server, as HF_ENDPOINT does for a new process."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)


@dataclass
class Repository:
    """One dataset repository at one commit."""

    files: dict[str, bytes]
    commit: str = COMMIT
    stated: str | None = None  # commit in its answers, if not the real one
    gated: bool = False
    # Files in git itself instead of the store of large files: these have another kind of checksum.
    in_git: frozenset[str] = frozenset()


@dataclass
class Hub:
    """The server's repositories, its planned failures, and the requests that it received."""

    url: str
    repositories: dict[str, Repository]
    # File name -> bytes after which a transfer breaks off, and how many transfers do.
    breaks: dict[str, tuple[int, int]] = field(default_factory=dict)
    # File name -> wrong content that is sent, although the checksum belongs to the right content.
    corrupt: dict[str, bytes] = field(default_factory=dict)
    # HTTP statuses of the next answers, before any real answer.
    failures: list[int] = field(default_factory=list)
    served: dict[str, int] = field(default_factory=dict)
    ranges: list[str] = field(default_factory=list)
    # True if the store of large files, which is another host, received a token.
    store_saw_token: bool = False
    requests: list[str] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: Any) -> None:
        """Logs nothing."""

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        if self.hub.failures:
            self._send(self.hub.failures.pop(0), b"later")
            return
        patterns = (
            (r"/api/datasets/([^/]+/[^/]+)/revision/([^/]+)", self._info),
            (r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self._file),
            (r"/store/([^/]+/[^/]+)/(.+)", self._stored),
        )
        self._route(path, patterns)

    do_HEAD = do_GET

    def _route(self, path: str, patterns: Sequence[tuple[str, Callable[..., None]]]) -> None:
        for pattern, answer in patterns:
            match = re.fullmatch(pattern, path)
            if match:
                answer(*match.groups())
                return
        self._send(404, b"no such page")

    def _info(self, name: str, revision: str) -> None:
        repository = self._find(name, revision)
        if repository is None:
            return
        siblings = [{"rfilename": path} for path in sorted(repository.files)]
        sha = repository.commit if repository.stated is None else repository.stated
        body = {"id": name, "sha": sha, "siblings": siblings, "private": False}
        self._send(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _file(self, name: str, revision: str, path: str) -> None:
        repository = self._find(name, revision)
        if repository is None:
            return
        if repository.gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            status = 403 if self._known() else 401
            self._refuse(status, "GatedRepo", f"Access to dataset {name} is restricted.")
            return
        if path not in repository.files:
            self._refuse(404, "EntryNotFound", "Entry not found")
            return
        data = repository.files[path]
        commit = {"X-Repo-Commit": repository.commit}
        if path in repository.in_git:
            blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            self._content(path, data, {**commit, "ETag": f'"{blob}"'})
            return
        # Another host name is another origin, like the real store.
        store = self.hub.url.replace("127.0.0.1", "localhost")
        headers = {
            **commit,
            "X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"',
            "X-Linked-Size": str(len(data)),
            "X-Xet-Hash": hashlib.sha256(data[::-1]).hexdigest(),
            "Link": f"<{self.hub.url}/api/datasets/{name}/xet-read-token/{revision}>; "
            'rel="xet-auth"',
            "Location": f"{store}/store/{name}/{quote(path)}",
        }
        self._send(302, b"", headers)

    def _stored(self, name: str, path: str) -> None:
        self.hub.store_saw_token |= "Authorization" in self.headers
        self._content(path, self.hub.repositories[name].files[path], {})

    def _content(self, path: str, data: bytes, headers: Mapping[str, str]) -> None:
        data = self.hub.corrupt.get(path, data)
        start, status = 0, 200
        wanted = self.headers.get("Range")
        if wanted is not None:
            self.hub.ranges.append(wanted)
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(data):
                self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
                return
            status = 206
            headers = {**headers, "Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
        part = data[start:]
        limit, times = self.hub.breaks.get(path, (len(part), 0))
        broken = self.command == "GET" and times > 0
        self.send_response(status)
        for key, value in {"Accept-Ranges": "bytes", **headers}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if self.command == "HEAD":
            return
        sent = part[:limit] if broken else part
        self.wfile.write(sent)
        self.hub.served[path] = self.hub.served.get(path, 0) + len(sent)
        if broken:
            self.hub.breaks[path] = (limit, times - 1)
            self.close_connection = True

    def _find(self, name: str, revision: str) -> Repository | None:
        if "Authorization" in self.headers and not self._known():
            message = "Invalid credentials in Authorization header"
            self._send(401, b"", {"X-Error-Message": message})
            return None
        repository = self.hub.repositories.get(name)
        if repository is None:
            self._refuse(401, "RepoNotFound", "Repository not found")
            return None
        if revision != repository.commit:
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return None
        return repository

    def _known(self) -> bool:
        return self.headers.get("Authorization") in {f"Bearer {TOKEN}", f"Bearer {STRANGER}"}

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._send(
            status,
            json.dumps({"error": message}).encode(),
            {"X-Error-Code": code, "X-Error-Message": message, "Content-Type": "application/json"},
        )

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def serve(repositories: Mapping[str, Repository]) -> Iterator[Hub]:
    """Runs the stand-in on a free port of this machine."""

    class Handler(_Handler):
        """The handler of this server."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub = Hub(f"http://127.0.0.1:{server.server_address[1]}", dict(repositories))
    Handler.hub = hub
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
