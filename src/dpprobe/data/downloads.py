"""Fetches files from the web: resumed, retried, and verified before they get their names.

Bytes that have arrived stand beside the file as `.<name>.partial`. The next try, or the next run,
asks the server for the rest only. Every file has a declared checksum, and it decides: if a resumed
file does not match, the server's file may have changed in between, so it is fetched once more from
the start. Whatever still does not match stays in the partial file, for a corrected checksum.

`urllib3.Retry` and tenacity repeat one request. Here each try asks for another range, so the loop
of tries is our own. The lock is on the partial file, so that no lock file stays beside the data.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import math
import os
import random
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Literal, NamedTuple, Self

import requests
import urllib3

from dpprobe import artifacts
from dpprobe.artifacts import format_size
from dpprobe.data.addresses import public_url
from dpprobe.data.download_receipt import Fetched
from dpprobe.errors import DownloadError, WrongDownloadError
from dpprobe.progress import Progress

logger = logging.getLogger("dpprobe")

CHUNK_BYTES = 1 << 20
MEGABYTE = 1_000_000
RETRIED = frozenset({408, 425, 429})
REMEDIES = {
    401: "the server asks for a login; put the host's into ~/.netrc, or fetch the file by hand",
    403: "access is refused; accept the licence or ask for access on its site, and put the login "
    "or token into ~/.netrc or the environment",
    404: "there is no such file; it was moved or removed: correct the address",
    410: "there is no such file any more; correct the address",
}
# Faults of a request that no further try mends.
PERMANENT = {
    requests.exceptions.SSLError: "its certificate is not accepted; correct the clock, the "
    "machine's certificates or the address",
    requests.exceptions.TooManyRedirects: "it redirects without end; correct the address",
    requests.exceptions.InvalidSchema: "it redirects to what is no http address; correct it",
    requests.exceptions.InvalidURL: "not an address; correct it",
}
TRANSIENT = {
    requests.exceptions.ConnectTimeout: "no connection in time",
    urllib3.exceptions.ReadTimeoutError: "the server fell silent",
    TimeoutError: "the server fell silent",
    socket.gaierror: "the host's name is not found",
    urllib3.exceptions.IncompleteRead: "the connection broke in the middle",
}


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The number of tries of a transfer, and the waits between them.

    Attributes:
      first_wait: seconds before the second try; doubled each time, times a random 0.5 to 1.5.
      longest_wait: seconds, the end of that doubling.
      longest_request: seconds that a server may ask for with Retry-After.
      timeout: seconds without a connection, or without a byte.
    """

    attempts: int = 6
    first_wait: float = 1.0
    longest_wait: float = 60.0
    longest_request: float = 600.0
    timeout: float = 60.0


POLICY = Policy()


class Checksum(NamedTuple):
    """A declared checksum in hex; `git` is a git blob's SHA-1, as the Hub states of small files."""

    kind: Literal["sha256", "md5", "git"]
    value: str


def fetch_file(
    url: str,
    path: Path,
    *,
    checksum: Checksum,
    headers: Mapping[str, str] | None = None,
    name: str | None = None,
    revision: str | None = None,
    policy: Policy | None = None,
) -> Fetched:
    """Fetches one file; `path` is whole and verified afterwards, or as it was.

    A file that is there already with the right checksum is kept, without a request.

    Args:
      url: http or https.
      path: the file; its folder is made.
      headers: Authorization among them goes to the first host only.
      name: `Fetched.name`; the last part of `path` if absent.

    Raises:
      DownloadError: naming the file, the address and the remedy. Bytes that arrived are kept for
        the next attempt.
    """
    wanted = _Wanted(url, path, checksum, dict(headers or {}), policy or POLICY)
    sha256 = None
    if path.is_file():
        sha256, fault = _verify(path, checksum)
        if fault is not None:
            sha256 = None
            logger.warning("%s: has another checksum than it should; fetched again", path)
    if sha256 is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with _Partial(path) as partial:
                sha256 = _fetch_verified(wanted, partial)
                partial.move(path)
        except OSError as error:
            if artifacts.is_full(error):
                raise
            raise DownloadError(
                f"{path}: cannot be written ({error.strerror or error}); correct the disk or the "
                "permissions and run again"
            ) from error
    return Fetched(
        name=name or path.name,
        bytes=path.stat().st_size,
        sha256=sha256,
        url=public_url(url),
        revision=revision,
    )


class _Wanted(NamedTuple):
    """The arguments of `fetch_file`."""

    url: str
    path: Path
    checksum: Checksum
    headers: Mapping[str, str]
    policy: Policy

    @property
    def file_and_url(self) -> str:
        return f"{self.path.name}: {public_url(self.url)}"


class _Transient(Exception):
    """A fault that may be gone at the next try; `wait` is in seconds, if the server asked."""

    def __init__(self, text: str, *, wait: float | None = None) -> None:
        super().__init__(text)
        self.wait = wait


class _Partial:
    """The bytes that have arrived; locked, so that no two processes write them."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(f".{path.name}{artifacts.PARTIAL_SUFFIX}")

    def __enter__(self) -> Self:
        self._file = self.path.open("ab", buffering=0)
        self._lock_file()
        # Earlier bytes may be of another version of the file.
        self.resumed = self.size > 0
        return self

    def __exit__(self, *_: object) -> None:
        empty = self.size == 0
        self._file.close()
        if empty:
            self.path.unlink(missing_ok=True)

    @property
    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    @property
    def kept(self) -> str:
        """A sentence's part about the bytes that a further attempt builds on."""
        if self.size == 0:
            return ""
        return f"{format_size(self.size)} are kept and the next attempt goes on from there; "

    def clear(self) -> None:
        self._file.truncate(0)
        self.resumed = False

    def read_start(self) -> bytes:
        with self.path.open("rb") as stream:
            return stream.read(512)

    def write(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            view = view[self._file.write(view) :]

    def move(self, path: Path) -> None:
        """Gives the bytes their name, once they are on the disk."""
        os.fsync(self._file.fileno())
        self.path.replace(path)
        artifacts.flush_to_disk(path.parent)

    def _lock_file(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between opening and locking another process may have renamed the file.
            mine = self.path.exists() and os.path.samestat(
                self.path.stat(), os.fstat(self._file.fileno())
            )
        except BlockingIOError:
            mine = False
        except OSError as error:
            logger.warning("%s: cannot be locked (%s)", self.path, error.strerror)
            mine = True
        if not mine:
            self._file.close()
            raise DownloadError(
                f"{self.path}: another process is fetching this file; wait until it is done"
            )


def _verify(path: Path, checksum: Checksum) -> tuple[str, str | None]:
    """Returns a file's SHA-256, and what is wrong with its checksum, if anything is."""
    digest = hashlib.new("sha1" if checksum.kind == "git" else checksum.kind, usedforsecurity=False)
    if checksum.kind == "git":
        digest.update(b"blob %d\0" % path.stat().st_size)
    sha256 = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            sha256.update(chunk)
            digest.update(chunk)
    if digest.hexdigest() == checksum.value.lower():
        return sha256.hexdigest(), None
    label = {"sha256": "SHA-256", "md5": "MD5", "git": "git checksum"}[checksum.kind]
    fault = f"{label} {digest.hexdigest()} where {checksum.value} was expected"
    return sha256.hexdigest(), fault


def _fetch_verified(wanted: _Wanted, partial: _Partial) -> str:
    """Completes the partial file and returns its SHA-256 once the checksum is right."""
    _transfer_missing(wanted, partial)
    sha256, fault = _verify(partial.path, wanted.checksum)
    if fault is not None and partial.resumed:
        # Once: a connection that always breaks makes parts of each attempt.
        logger.warning("%s: resumed, it has %s; from the start", wanted.file_and_url, fault)
        partial.clear()
        _transfer_missing(wanted, partial)
        sha256, fault = _verify(partial.path, wanted.checksum)
    if fault is None:
        return sha256
    start = partial.read_start().removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html")):
        partial.clear()
        raise WrongDownloadError(
            f"{wanted.file_and_url}: the address gives a web page now, not the file: perhaps a "
            "login, a licence to accept or a notice that the file has moved; open it in a browser "
            "and correct the address"
        )
    raise WrongDownloadError(
        f"{wanted.file_and_url}: {fault}. The file was changed or replaced: compare it with "
        "the checksum on its site, and correct the checksum or the address in the study; if "
        f"the new checksum fits, {partial.path.name} is reused"
    )


def _transfer_missing(wanted: _Wanted, partial: _Partial) -> None:
    """Requests the missing part until all is there, or too many tries failed."""
    policy = wanted.policy
    with requests.Session() as session:
        for failures in range(1, policy.attempts + 1):
            try:
                return _request_missing(session, wanted, partial)
            except _Transient as caught:
                fault = caught
            if failures == policy.attempts:
                break
            wait = fault.wait
            if wait is None:
                wait = min(policy.first_wait * 2 ** (failures - 1), policy.longest_wait)
                wait *= random.uniform(0.5, 1.5)
            logger.warning(
                "%s: %s; try %d of %d in %.1f s",
                wanted.file_and_url, fault, failures + 1, policy.attempts, wait,
            )  # fmt: skip
            time.sleep(wait)
    raise DownloadError(
        f"{wanted.file_and_url}: {fault}, after {policy.attempts} tries; {partial.kept}run again "
        "later, or correct the address"
    )


def _request_missing(session: requests.Session, wanted: _Wanted, partial: _Partial) -> None:
    """Makes one request for the missing part.

    Raises:
      _Transient: if another try may help.
      DownloadError: if none will.
    """
    headers = {"Accept-Encoding": "identity", **wanted.headers}
    if partial.size:
        headers["Range"] = f"bytes={partial.size}-"
    # Without it a login in ~/.netrc would take the place of a given Authorization.
    auth = (lambda request: request) if "Authorization" in headers else None
    timeout = wanted.policy.timeout
    try:
        response = session.get(wanted.url, headers=headers, auth=auth, stream=True, timeout=timeout)
    except requests.RequestException as error:
        for kind, text in PERMANENT.items():
            if isinstance(error, kind):
                raise WrongDownloadError(f"{wanted.file_and_url}: {text}") from None
        raise _Transient(_explain_failure(error)) from None
    with response:
        if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and partial.size:
            return  # all of the file is here, or another file: the checksum decides
        _check_status(response, wanted, partial)
        _receive_body(response, wanted, partial)


def _check_status(response: requests.Response, wanted: _Wanted, partial: _Partial) -> None:
    code = response.status_code
    if code in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
        return
    text = f"{code} {HTTPStatus(code).phrase}" if code in set(HTTPStatus) else str(code)
    place = f"{wanted.path.name}: {public_url(response.url)}"
    if code in RETRIED or code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        asked = response.headers.get("Retry-After", "")
        wait = float(asked) if asked.isdecimal() else None
        if wait is not None and wait > wanted.policy.longest_request:
            raise DownloadError(
                f"{place}: {text}: the server asks to wait for {wait:.0f} s; "
                f"{partial.kept}run again then"
            )
        raise _Transient(text, wait=wait)
    raise WrongDownloadError(f"{place}: {text}: {REMEDIES.get(code, 'correct the address')}")


def _receive_body(response: requests.Response, wanted: _Wanted, partial: _Partial) -> None:
    """Appends an answer's body to the partial file, or begins it again."""
    chunks = _read_chunks(response)
    first = next(chunks, b"")
    if response.status_code == HTTPStatus.PARTIAL_CONTENT:
        partial.resumed = True
    else:
        partial.clear()
    length = response.headers.get("Content-Length", "")
    needed = int(length) if length.isdecimal() else None
    start = partial.size
    # Without a size there is nothing to count towards: only the last line is logged.
    total, interval = (math.ceil(needed / MEGABYTE), 5.0) if needed else (1, math.inf)
    label = f"download {wanted.path.name}"
    with Progress(total, label=label, unit="MB", interval=interval) as progress:
        partial.write(first)
        for chunk in chunks:
            partial.write(chunk)
            progress.advance_by((partial.size - start) // MEGABYTE - progress.done)


def _read_chunks(response: requests.Response) -> Iterator[bytes]:
    """Yields the body as it is sent; the bytes before a break have been given out."""
    while True:
        try:
            chunk = response.raw.read1(CHUNK_BYTES, decode_content=False)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise _Transient(_explain_failure(error)) from error
        if not chunk:
            return
        yield chunk


def _explain_failure(error: BaseException) -> str:
    """Returns why a connection failed, without the address, which a library's text would show."""
    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, ConnectionError) and behind.strerror:
            return f"{behind.strerror[0].lower()}{behind.strerror[1:]}"
        for kind, text in TRANSIENT.items():
            if isinstance(behind, kind):
                return text
        behind = behind.__cause__ or behind.__context__
    return "the connection broke"
