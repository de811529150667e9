"""A local HTTP server whose answers can have faults: once, several times or always."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest import mock
from urllib.parse import urlsplit

import pytest
from tenacity.wait import wait_none

from dpprobe.data.downloads import fetch as downloads

PAGE = b"<!DOCTYPE html>\n<html><body>Please log in.</body></html>"
FILE = {"Content-Type": "application/octet-stream"}


@dataclass(frozen=True)
class Cut:
    """Announces the whole body, but closes the connection after `after` bytes."""

    after: int


@dataclass(frozen=True)
class Answer:
    """Answers with this status and body instead of the file."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Silent:
    """Accepts the request and sends nothing for `seconds`."""

    seconds: float = 30.0


@dataclass(frozen=True)
class Slow:
    """Sends `chunk` bytes at a time, with a pause after each chunk."""

    chunk: int
    pause: float


@dataclass(frozen=True)
class Unsized:
    """Sends the whole file without a Content-Length."""


Fault = Cut | Answer | Silent | Slow | Unsized


def make_quick(monkeypatch: pytest.MonkeyPatch, *, attempts: int) -> None:
    """Makes downloads give up after `attempts` attempts, without waits."""
    monkeypatch.setattr(downloads, "ATTEMPTS", attempts)
    monkeypatch.setattr(downloads, "WAIT", wait_none())
    monkeypatch.setattr(downloads, "TIMEOUT", 0.5)


def page(status: int = 200) -> Answer:
    """Returns an HTML page that is sent instead of a file."""
    return Answer(status, PAGE, {"Content-Type": "text/html; charset=utf-8"})


@dataclass
class Resource:
    """A file, and the faults of the first requests for it, one per request."""

    content: bytes
    faults: Iterator[Fault]
    ranges: bool


@dataclass
class Visit:
    """A request, and the number of bytes of the body that were sent."""

    path: str
    headers: Mapping[str, str]
    status: int = 0
    sent: int = 0


class Server:
    """A server of files that records its requests."""

    def __init__(self) -> None:
        self.resources: dict[str, Resource] = {}
        self.visits: list[Visit] = []
        self.closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.state = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def put(
        self, path: str, content: bytes, *, faults: Iterable[Fault] = (), ranges: bool = True
    ) -> str:
        """Serves a file from now on; returns its URL."""
        self.resources[path] = Resource(content, iter(faults), ranges)
        return self.url(path)

    def url(self, path: str, *, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self._server.server_address[1]}{path}"

    def visits_of(self, path: str) -> list[Visit]:
        return [visit for visit in self.visits if visit.path == path]

    def sent(self, path: str) -> list[int]:
        """Returns the number of body bytes sent for each request of a file."""
        return [visit.sent for visit in self.visits_of(path)]


@contextlib.contextmanager
def serve() -> Iterator[Server]:
    """Runs a server on a free local port, reached without a proxy."""
    local = "127.0.0.1,localhost"
    with mock.patch.dict(os.environ, NO_PROXY=local, no_proxy=local), Server() as server:
        yield server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ThreadingHTTPServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        state: Server = self.server.state  # type: ignore[attr-defined]
        path = urlsplit(self.path).path
        self.visit = Visit(path, dict(self.headers.items()))
        state.visits.append(self.visit)
        self.close_connection = True
        with contextlib.suppress(ConnectionError):
            resource = state.resources.get(path)
            if resource is None:
                self._reply(404, b"", {})
            else:
                self._serve(resource, next(resource.faults, None), state.closing)

    def _serve(self, resource: Resource, fault: Fault | None, closing: threading.Event) -> None:
        if isinstance(fault, Silent):
            closing.wait(fault.seconds)
        elif isinstance(fault, Answer):
            self._reply(fault.status, fault.body, fault.headers)
        elif isinstance(fault, Unsized):
            self._head(200, FILE)
            self._send(resource.content)
        else:
            self._reply_file(resource, fault)

    def _reply_file(self, resource: Resource, fault: Fault | None) -> None:
        content, headers, status = resource.content, dict(FILE), 200
        start = self._range_start(resource)
        if start is not None and start >= len(content):
            self._reply(416, b"", {"Content-Range": f"bytes */{len(content)}"})
            return
        if start is not None:
            status = 206
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            content = content[start:]
        self._head(status, {**headers, "Content-Length": str(len(content))})
        if isinstance(fault, Cut):
            self._send(content[: fault.after])
        elif isinstance(fault, Slow):
            for first in range(0, len(content), fault.chunk):
                self._send(content[first : first + fault.chunk])
                time.sleep(fault.pause)
        else:
            self._send(content)

    def _range_start(self, resource: Resource) -> int | None:
        written = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        return int(written[1]) if written and resource.ranges else None

    def _reply(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self._head(status, {"Content-Length": str(len(body)), **headers})
        self._send(body)

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        self.visit.status = status
        self.send_response(status)
        for name, value in {**headers, "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, body: bytes) -> None:
        # Counted first: a client that has read the last byte may ask for the number before this
        # thread continues.
        self.visit.sent += len(body)
        try:
            self.wfile.write(body)
            self.wfile.flush()
        except ConnectionError:
            self.visit.sent -= len(body)
            raise
