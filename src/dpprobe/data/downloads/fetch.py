"""Downloads files with resumption and retries; a file gets its name only once verified.

Received bytes are kept in the same folder as `.<name>.partial`. The next attempt, or the next run,
requests only the missing bytes. A file is accepted if it matches its declared checksum. A resumed
file with a wrong checksum is fetched once more from the start, because the server's file may have
changed between attempts. Content with a wrong checksum stays in the partial file, in case the
checksum in the study is corrected.

The partial file itself is locked, so no lock file remains in the data folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import math
import os
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Literal, NamedTuple, Self

import requests
import urllib3
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt
from tenacity.wait import wait_exponential_jitter

from dpprobe.data.downloads.addresses import public_url
from dpprobe.data.downloads.download_receipt import Fetched
from dpprobe.errors import DownloadError, WrongDownloadError
from dpprobe.files import atomic_writes, disk_errors
from dpprobe.files.disk_errors import format_size
from dpprobe.options import resolve_path
from dpprobe.progress import Progress

logger = logging.getLogger("dpprobe")

CHUNK_BYTES = 1 << 20
MEGABYTE = 1_000_000
RETRIED = frozenset({408, 425, 429})
REMEDIES = {
    401: "the server asks for a login; write the login for this host into ~/.netrc, or download "
    "the file by hand",
    403: "access is refused; accept the licence or ask for access on the dataset's site, and put "
    "the login or token into ~/.netrc or the environment",
    404: "there is no such file; it was moved or removed: correct the address",
}
# Errors of a request that no retry can solve.
PERMANENT = {
    requests.exceptions.SSLError: "its certificate is not accepted; correct the clock, the "
    "machine's certificates or the address",
    requests.exceptions.TooManyRedirects: "it redirects endlessly; correct the address",
    requests.exceptions.InvalidSchema: "it redirects to a non-http address; correct the address",
}
ATTEMPTS = 6
WAIT = wait_exponential_jitter(max=60)
LONGEST_REQUEST = 600.0  # the longest wait, in seconds, that a server may request by Retry-After
MOST_UNSTATED = 10**11  # the most bytes accepted if a server does not state the size
TIMEOUT = 60.0  # seconds to wait for a connection, or for the next byte


class Checksum(NamedTuple):
    """A declared checksum in hex; `git` is the SHA-1 of a git blob, as on Hugging Face."""

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
    folder: str | None = None,
) -> Fetched:
    """Downloads one file; afterwards `path` is complete and verified, or unchanged.

    An existing file with the right checksum is reused without a request.

    Raises DownloadError, with file, address and remedy, on failure; keeps the received bytes.

    Args:
      headers: the request's headers; Authorization is not sent after a redirect to another host.
      name: the file's name in the receipt; the last part of `path` if None.
      folder: a folder that already has the file, which is checked and linked without a request.
    """
    sha256, fault = "", "missing"
    if path.is_file():
        sha256, fault = _verify(path, checksum)
        if fault:
            logger.warning("%s: has a wrong checksum; downloading it again", path)
    if fault:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            wanted = _Wanted(url, path, checksum, headers or {})
            if folder is not None:
                sha256 = _link_verified(wanted, resolve_path(folder) / path.name)
            else:
                with PartialFile(path) as partial:
                    sha256 = _fetch_verified(wanted, partial)
                    partial.move(path)
        except OSError as error:
            if disk_errors.is_full(error):
                raise
            raise DownloadError(
                f"{path}: cannot be written ({error.strerror or error}); check the disk and the "
                "permissions, and run again"
            ) from error
    return Fetched(
        name=name or path.name,
        bytes=path.stat().st_size,
        sha256=sha256,
        url=public_url(url),
        revision=revision,
    )


class _Wanted(NamedTuple):
    url: str
    path: Path
    checksum: Checksum
    headers: Mapping[str, str]

    @property
    def file_and_url(self) -> str:
        return f"{self.path.name}: {public_url(self.url)}"


class _TransientError(Exception):
    """An error that a retry may solve; `wait` is the number of seconds the server asked for."""

    def __init__(self, text: str, *, wait: float | None = None) -> None:
        super().__init__(text)
        self.wait = wait


class PartialFile:
    """The file of received bytes; a lock protects the file from other processes."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(f".{path.name}{atomic_writes.PARTIAL_SUFFIX}")

    def __enter__(self) -> Self:
        self._file = self.path.open("ab", buffering=0)
        self._lock_file()
        # Bytes from an earlier run may be of another version of the file.
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
        """The part of an error message that states how many bytes the next attempt will reuse."""
        if self.size == 0:
            return ""
        return (
            f"{format_size(self.size)} were downloaded, and the next attempt continues from there; "
        )

    def clear(self) -> None:
        self._file.truncate(0)
        self.resumed = False

    def holds_web_page(self) -> bool:
        with self.path.open("rb") as stream:
            start = stream.read(512).removeprefix(b"\xef\xbb\xbf").lstrip().lower()
        return start.startswith((b"<!doctype html", b"<html"))

    def write(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            view = view[self._file.write(view) :]

    def move(self, path: Path) -> None:
        os.fsync(self._file.fileno())
        self.path.replace(path)
        atomic_writes.flush_to_disk(path.parent)

    def _lock_file(self) -> None:
        taken = False
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between opening and locking another process may have renamed the file.
            mine = os.fstat(self._file.fileno())
            taken = not self.path.exists() or not os.path.samestat(self.path.stat(), mine)
        except BlockingIOError:
            taken = True
        except OSError:
            pass  # a file system without locks
        if taken:
            self._file.close()
            raise DownloadError(
                f"{self.path}: another process is fetching this file; wait until it is done"
            )


def _verify(path: Path, checksum: Checksum) -> tuple[str, str]:
    """Returns a file's SHA-256, and an error text if the checksum is wrong (else empty)."""
    digest = hashlib.new("sha1" if checksum.kind == "git" else checksum.kind, usedforsecurity=False)
    if checksum.kind == "git":
        digest.update(b"blob %d\0" % path.stat().st_size)
    sha256 = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            sha256.update(chunk)
            digest.update(chunk)
    fault = ""
    if digest.hexdigest() != checksum.value.lower():
        label = {"sha256": "SHA-256", "md5": "MD5", "git": "git checksum"}[checksum.kind]
        fault = f"{label} {digest.hexdigest()} instead of {checksum.value}"
    return sha256.hexdigest(), fault


def _link_verified(wanted: _Wanted, copy: Path) -> str:
    """Links to this machine's copy of a file; returns its SHA-256 if the checksum is right."""
    if not copy.is_file():
        raise WrongDownloadError(
            f"downloads: no file {copy}; put it there (from {public_url(wanted.url)}), or remove "
            "`downloads`"
        )
    sha256, fault = _verify(copy, wanted.checksum)
    if fault:
        raise WrongDownloadError(
            f"downloads: {copy}: {fault}; replace it by the file at {public_url(wanted.url)}"
        )
    wanted.path.unlink(missing_ok=True)
    wanted.path.symlink_to(copy.resolve())
    return sha256


def _fetch_verified(wanted: _Wanted, partial: PartialFile) -> str:
    """Completes the partial file and returns its SHA-256 once the checksum is right."""
    _transfer_missing(wanted, partial)
    sha256, fault = _verify(partial.path, wanted.checksum)
    if fault and partial.resumed:
        # Starts again only once: on a connection that always breaks, every attempt resumes.
        logger.warning(
            "%s: the resumed file has %s; downloading it again from the start",
            wanted.file_and_url,
            fault,
        )
        partial.clear()
        _transfer_missing(wanted, partial)
        sha256, fault = _verify(partial.path, wanted.checksum)
    if not fault:
        return sha256
    if partial.holds_web_page():
        partial.clear()
        raise WrongDownloadError(
            f"{wanted.file_and_url}: the address returns a web page instead of the file, perhaps "
            "a login, a licence to accept or a notice that the file has moved; open the address "
            "in a browser and correct it"
        )
    raise WrongDownloadError(
        f"{wanted.file_and_url}: {fault}. The file was changed or replaced: compare it with the "
        "checksum on its site, and correct the checksum or the address in the study; if the "
        f"corrected checksum matches, {partial.path.name} is reused"
    )


def _transfer_missing(wanted: _Wanted, partial: PartialFile) -> None:
    """Requests the missing bytes until the file is complete or too many attempts failed."""

    def choose_wait(state: RetryCallState) -> float:
        fault = state.outcome.exception() if state.outcome else None
        asked = fault.wait if isinstance(fault, _TransientError) else None
        return WAIT(state) if asked is None else asked

    def log_retry(state: RetryCallState) -> None:
        fault = state.outcome.exception() if state.outcome else None
        logger.warning("%s: %s; retry in %.1f s", wanted.file_and_url, fault, state.upcoming_sleep)

    retrying = Retrying(
        retry=retry_if_exception_type(_TransientError),
        wait=choose_wait,
        stop=stop_after_attempt(ATTEMPTS),
        before_sleep=log_retry,
        reraise=True,
    )
    try:
        with requests.Session() as session:
            retrying(_request_missing, session, wanted, partial)
    except _TransientError as fault:
        raise DownloadError(
            f"{wanted.file_and_url}: {fault}, after {ATTEMPTS} tries; {partial.kept}run again "
            "later, or correct the address"
        ) from None


def _request_missing(session: requests.Session, wanted: _Wanted, partial: PartialFile) -> None:
    """Makes one request for the missing bytes; raises _TransientError if a retry may help."""
    headers = {"Accept-Encoding": "identity", **wanted.headers}
    if partial.size:
        headers["Range"] = f"bytes={partial.size}-"
    # By default, `requests` replaces a given Authorization header by a login from ~/.netrc.
    auth = (lambda request: request) if "Authorization" in headers else None
    try:
        response = session.get(wanted.url, headers=headers, auth=auth, stream=True, timeout=TIMEOUT)
    except requests.RequestException as error:
        for kind, text in PERMANENT.items():
            if isinstance(error, kind):
                raise WrongDownloadError(f"{wanted.file_and_url}: {text}") from None
        raise _TransientError(_explain_failure(error)) from None
    with response:
        if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and partial.size:
            return  # The file is complete, or the server's file changed: the checksum decides.
        _check_status(response, wanted, partial)
        _receive_body(response, wanted, partial)


def _check_status(response: requests.Response, wanted: _Wanted, partial: PartialFile) -> None:
    code = response.status_code
    if code in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
        return
    text = f"{code} {HTTPStatus(code).phrase}" if code in set(HTTPStatus) else str(code)
    place = f"{wanted.path.name}: {public_url(response.url)}"
    if code in RETRIED or code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        asked = response.headers.get("Retry-After", "")
        wait = float(asked) if asked.isdecimal() else None
        if wait is not None and wait > LONGEST_REQUEST:
            raise DownloadError(
                f"{place}: {text}: the server asks to wait for {wait:.0f} s; {partial.kept}run "
                "again after that time"
            )
        raise _TransientError(text, wait=wait)
    raise WrongDownloadError(f"{place}: {text}: {REMEDIES.get(code, 'correct the address')}")


def _receive_body(response: requests.Response, wanted: _Wanted, partial: PartialFile) -> None:
    """Appends a response's body to the partial file, or starts the file again."""
    chunks = _read_chunks(response)
    first = next(chunks, b"")
    if response.status_code == HTTPStatus.PARTIAL_CONTENT:
        partial.resumed = True
    else:
        partial.clear()
    length, start = response.headers.get("Content-Length", ""), partial.size
    total = math.ceil(int(length) / MEGABYTE) if length.isdecimal() else 0
    label = f"download {wanted.path.name}"
    # If the size is unknown, no progress can be shown: only the last line is logged.
    with Progress(total, label=label, unit="MB", interval=5.0 if total else math.inf) as progress:
        partial.write(first)
        for chunk in chunks:
            if not total and partial.size > MOST_UNSTATED:
                raise WrongDownloadError(
                    f"{wanted.file_and_url}: more than {format_size(MOST_UNSTATED)}, and the "
                    "server states no size; download it by hand, and name its folder "
                    f"under `downloads`; then delete {partial.path}"
                )
            partial.write(chunk)
            progress.advance_by((partial.size - start) // MEGABYTE - progress.done)


def _read_chunks(response: requests.Response) -> Iterator[bytes]:
    """Yields a response's body as it arrives, so that an interruption loses no received byte."""
    while True:
        try:
            chunk = response.raw.read1(CHUNK_BYTES, decode_content=False)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise _TransientError(_explain_failure(error)) from error
        if not chunk:
            return
        yield chunk


def _explain_failure(error: BaseException) -> str:
    """Explains a failed connection, without the address that a library's message contains."""
    while (behind := error.__cause__ or error.__context__) is not None:
        error = behind
    if isinstance(error, TimeoutError | urllib3.exceptions.TimeoutError):
        return "the server stopped responding"
    reason = error.strerror if isinstance(error, OSError) else None
    return f"{reason[0].lower()}{reason[1:]}" if reason else "the connection broke"
