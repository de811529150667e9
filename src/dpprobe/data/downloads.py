"""Files from the web: resumed, retried, verified, and whole or absent under their own names.

The part of a file that has arrived stands beside it as `.<name>.partial`, and its description as
`.<name>.partial.json`. A transfer that broke, in this process or an earlier one, goes on from
there, unless the server's file has changed in between.

The loop of tries stays ours: `urllib3.Retry` and tenacity repeat one request, and here each try
asks for another range with If-Range, and bytes that arrived reset the count. The lock is one on the
partial file itself, so that no lock file is left beside the data.
"""

from __future__ import annotations

import email.utils
import fcntl
import hashlib
import logging
import math
import os
import random
import re
import shutil
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import requests
import urllib3

from dpprobe import artifacts
from dpprobe.artifacts import megabytes
from dpprobe.data.addresses import public_url
from dpprobe.errors import DataError, DownloadError, WrongDownloadError
from dpprobe.progress import Progress

logger = logging.getLogger("dpprobe")

FORMAT = "dpprobe-download"
FORMAT_VERSION = 1
RECEIPT = "receipt.json"
WRONG_SUFFIX = ".wrong-checksum"
CHUNK_BYTES = 1 << 20
MEGABYTE = 1_000_000
# A try that brings so much does not count against the number of tries.
GAIN_BYTES = 1 << 20
PAGE_SUFFIXES = (".html", ".htm", ".xhtml")
PAGE_TYPES = ("text/html", "application/xhtml+xml")
RETRIED = frozenset({408, 425, 429})
REMEDIES = {
    401: "the server asks for a login; put the host's into ~/.netrc, or fetch the file by hand",
    403: "access is refused; accept the licence or ask for access on its site, and put the login "
    "or token into ~/.netrc or the environment",
    404: "there is no such file; it was moved or removed: correct the address",
    410: "there is no such file any more; correct the address",
}


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The number of tries of a transfer, and the waits between them.

    Attributes:
      attempts: tries in a row that bring less than a megabyte.
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


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """One file that was fetched.

    Attributes:
      name: its path relative to the download folder.
      bytes: its size.
      sha256: of its content, hex.
      url: where it came from, without user, password and query.
      revision: the version that was asked for, where the source has versions.
    """

    name: str
    bytes: int
    sha256: str
    url: str
    revision: str | None = None


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """The content of a download folder: `receipt.json`."""

    files: tuple[Fetched, ...]
    params: Mapping[str, Any] | None
    revision: str | None

    def sha256(self, name: str) -> str:
        """Returns the recorded SHA-256 of a file.

        Raises:
          DataError: for a file that was not downloaded.
        """
        for file in self.files:
            if file.name == name:
                return file.sha256
        raise DataError(f"{name}: not in {RECEIPT}; delete {RECEIPT} and run again")


def write_receipt(
    directory: Path, fetched: Iterable[Fetched], *, params: Mapping[str, Any] | None
) -> None:
    """Writes `receipt.json`, which makes the download complete."""
    files = tuple(fetched)
    revisions = {file.revision for file in files}
    artifacts.write_json(
        directory / RECEIPT,
        {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "params": params,
            "revision": revisions.pop() if len(revisions) == 1 else None,
            "files": [asdict(file) for file in files],
        },
    )


def read_receipt(directory: Path) -> Receipt:
    """Reads `receipt.json`.

    Raises:
      DataError: when it is missing or is no receipt.
    """
    path = directory / RECEIPT
    remedy = f"delete {path} and run again"
    try:
        values = artifacts.read_json(path)
        artifacts.check_not_newer(path, values, kind=FORMAT, version=FORMAT_VERSION)
        if values["format"] != FORMAT or values["format_version"] != FORMAT_VERSION:
            raise ValueError(f"format {values['format']} {values['format_version']}")
        files = tuple(Fetched(**file) for file in values["files"])
        return Receipt(files=files, params=values["params"], revision=values["revision"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not a download's receipt ({error}); {remedy}") from error


def check_receipt(directory: Path, *, params: Mapping[str, Any] | None) -> Receipt:
    """Reads `receipt.json` and checks that each file is there with its size.

    Args:
      directory: the download folder.
      params: `DatasetOptions.download_params()` of the study.

    Raises:
      DataError: when a file is not there, or something else was downloaded.
    """
    receipt = read_receipt(directory)
    if artifacts.canonical_json(receipt.params) != artifacts.canonical_json(params):
        raise DataError(
            f"{directory}: was downloaded for other options than the study has now (such as a "
            f"checksum or a revision); delete {directory / RECEIPT} and run again: what has stayed "
            "the same is kept"
        )
    for file in receipt.files:
        path = directory / file.name
        size = path.stat().st_size if path.is_file() else None
        if size != file.bytes:
            state = "missing" if size is None else f"{size} bytes"
            raise DataError(
                f"{path}: {state}, where {file.bytes} bytes were downloaded; "
                f"delete {directory / RECEIPT} and run again"
            )
    return receipt


def fetch(
    url: str,
    path: Path,
    *,
    sha256: str | None = None,
    md5: str | None = None,
    bytes: int | None = None,
    headers: Mapping[str, str] | None = None,
    name: str | None = None,
    revision: str | None = None,
    policy: Policy | None = None,
) -> Fetched:
    """Fetches one file; `path` is whole and verified afterwards, or as it was.

    A file that is there already is kept, without a request, when it has the declared checksum; or,
    where none is declared, when an earlier `fetch` of the same address left it with its size.

    Args:
      url: http or https.
      path: where the file goes; its folder is made.
      sha256, md5: hex, either or both; with neither, the content is recorded but not verified.
      bytes: the size, where it is known.
      headers: for the first host only as far as Authorization is concerned.
      name: `Fetched.name`; the last part of `path` where absent.
      revision: recorded.
      policy: tries and waits; `POLICY` where absent.

    Raises:
      DownloadError: naming the file, the address and the remedy. The part that had arrived is kept
        for the next attempt, except content with a wrong checksum: it becomes
        `<name>.wrong-checksum`.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise WrongDownloadError(f"{path.name}: {public_url(url)} is no http or https address")
    wanted = _Wanted(
        url=url,
        path=path,
        sha256=sha256.lower() if sha256 else None,
        md5=md5.lower() if md5 else None,
        bytes=bytes,
        headers=dict(headers or {}),
        policy=policy or POLICY,
    )
    digests = _kept(wanted)
    if digests is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _Partial(path) as partial:
            digests = _fetch_verified(wanted, partial)
            _finish(wanted, partial, digests)
    return Fetched(
        name=name or path.name,
        bytes=path.stat().st_size,
        sha256=digests["sha256"],
        url=public_url(url),
        revision=revision,
    )


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """The arguments of `fetch`."""

    url: str
    path: Path
    sha256: str | None
    md5: str | None
    bytes: int | None
    headers: Mapping[str, str]
    policy: Policy

    @property
    def where(self) -> str:
        return f"{self.path.name}: {public_url(self.url)}"

    @property
    def url_hash(self) -> str:
        # A hash, since an address may hold a token.
        return hashlib.sha256(self.url.encode()).hexdigest()

    @property
    def checksums(self) -> dict[str, str]:
        declared = {"sha256": self.sha256, "md5": self.md5}
        return {kind: value for kind, value in declared.items() if value is not None}

    @property
    def record(self) -> Path:
        """The record of a fetch without a declared checksum, beside the file."""
        return self.path.with_name(f".{self.path.name}.fetched.json")


@dataclass(frozen=True, kw_only=True)
class _State:
    """The file that a partial file is a part of."""

    url_hash: str
    etag: str | None
    modified: str | None
    total: int | None

    @property
    def validator(self) -> str | None:
        """For If-Range, which takes no weak ETag."""
        if self.etag is not None and not self.etag.startswith("W/"):
            return self.etag
        return self.modified


class _Transient(Exception):
    """A fault that may be gone at the next try."""

    def __init__(self, text: str, *, wait: float | None = None) -> None:
        super().__init__(text)
        self.wait = wait


class _Partial:
    """The partial file and its description; locked, so that no two processes write it."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(f".{path.name}{artifacts.PARTIAL_SUFFIX}")
        self.description = path.with_name(f"{self.path.name}.json")
        self.spliced = False
        self.state: _State | None = None

    def __enter__(self) -> Self:
        try:
            self._file = self.path.open("ab", buffering=0)
        except OSError as error:
            if artifacts.is_full(error):
                raise
            raise DownloadError(
                f"{self.path}: cannot be written ({error.strerror}); correct the permissions"
            ) from error
        self._lock()
        self.state = self._read_state()
        if self.state is None:
            self._file.truncate(0)
        # The bytes of an earlier process may end in another version of the file.
        self.spliced = self.size > 0
        return self

    def __exit__(self, *_: object) -> None:
        empty = self.path.exists() and self.size == 0
        self._file.close()
        if empty:
            self.drop()

    @property
    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def restart(self, state: _State | None) -> None:
        """Empties the file; the order leaves no bytes under another file's description."""
        self._file.truncate(0)
        self.spliced = False
        self.describe(state)

    def describe(self, state: _State | None) -> None:
        self.state = state
        if state is None:
            self.description.unlink(missing_ok=True)
        else:
            artifacts.write_json(self.description, asdict(state))

    def write(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            view = view[self._file.write(view) :]

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def drop(self) -> None:
        self.path.unlink(missing_ok=True)
        self.description.unlink(missing_ok=True)

    def _lock(self) -> None:
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

    def _read_state(self) -> _State | None:
        try:
            return _State(**artifacts.read_json(self.description))
        except (OSError, ValueError, TypeError):
            return None  # without a description the bytes are of nothing known


def _kept(wanted: _Wanted) -> dict[str, str] | None:
    """Returns the digests of the file where it is there already and is the right one."""
    if not wanted.path.is_file():
        return None
    size = wanted.path.stat().st_size
    if wanted.bytes not in (None, size):
        return None
    if not wanted.checksums:
        return _recorded(wanted, size)
    digests = _digests(wanted.path)
    if _mismatch(wanted, digests) is None:
        return digests
    logger.warning("%s: has another checksum than it should; fetched again", wanted.path)
    return None


def _recorded(wanted: _Wanted, size: int) -> dict[str, str] | None:
    try:
        record = artifacts.read_json(wanted.record)
    except (OSError, ValueError):
        return None  # never fetched, or not by us: fetched now
    if record.get("url_hash") != wanted.url_hash or record.get("bytes") != size:
        return None
    return {"sha256": str(record["sha256"])}


def _digests(path: Path) -> dict[str, str]:
    """Computes SHA-256 and MD5, hex, in one pass."""
    hashes = {
        "sha256": hashlib.sha256(),
        "md5": hashlib.md5(usedforsecurity=False),
    }
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            for one in hashes.values():
                one.update(chunk)
    return {kind: one.hexdigest() for kind, one in hashes.items()}


def _mismatch(wanted: _Wanted, digests: Mapping[str, str]) -> str | None:
    for kind, expected in wanted.checksums.items():
        if digests[kind] != expected:
            label = {"sha256": "SHA-256", "md5": "MD5"}[kind]
            return f"{label} {digests[kind]} where {expected} was expected"
    return None


def _fetch_verified(wanted: _Wanted, partial: _Partial) -> dict[str, str]:
    """Completes the partial file and compares it with the declared checksums."""
    restarted = False
    while True:
        _transfer(wanted, partial)
        digests = _digests(partial.path)
        fault = _mismatch(wanted, digests)
        if fault is None:
            return digests
        # Once: a connection that always breaks makes parts of each attempt.
        if restarted or not partial.spliced:
            break
        restarted = True
        logger.warning(
            "%s: put together from parts, it has %s; from the start", wanted.where, fault
        )
        partial.restart(None)
    wrong = wanted.path.with_name(wanted.path.name + WRONG_SUFFIX)
    partial.path.replace(wrong)
    partial.drop()
    raise WrongDownloadError(
        f"{wanted.where}: {fault}; kept as {wrong.name}. The file was changed or replaced: compare "
        "with what its site says, and correct the checksum or the address"
    )


def _finish(wanted: _Wanted, partial: _Partial, digests: Mapping[str, str]) -> None:
    """Gives the verified file its name."""
    partial.sync()
    size = partial.size
    wanted.record.unlink(missing_ok=True)
    partial.path.replace(wanted.path)
    partial.drop()
    artifacts.sync(wanted.path.parent)
    wanted.path.with_name(wanted.path.name + WRONG_SUFFIX).unlink(missing_ok=True)
    if wanted.checksums:
        return
    logger.warning(
        "%s: not verified against anything, no checksum is declared; its SHA-256 is %s",
        wanted.where, digests["sha256"],
    )  # fmt: skip
    artifacts.write_json(
        wanted.record,
        {"url_hash": wanted.url_hash, "bytes": size, "sha256": digests["sha256"]},
    )


def _transfer(wanted: _Wanted, partial: _Partial) -> None:
    """Requests the missing part until all is there, or too many tries brought nothing."""
    policy = wanted.policy
    furthest, failures = partial.size, 0
    with requests.Session() as session:
        while True:
            try:
                return _request(session, wanted, partial)
            except _Transient as caught:
                fault = caught
            if partial.size >= furthest + GAIN_BYTES:
                furthest, failures = partial.size, 0
            failures += 1
            if failures >= policy.attempts:
                break
            wait = fault.wait
            if wait is None:
                wait = min(policy.first_wait * 2 ** (failures - 1), policy.longest_wait)
                wait *= random.uniform(0.5, 1.5)
            logger.warning(
                "%s: %s; try %d of %d in %.1f s",
                wanted.where, fault, failures + 1, policy.attempts, wait,
            )  # fmt: skip
            time.sleep(wait)
    raise DownloadError(
        f"{wanted.where}: {fault}, after {policy.attempts} tries; {_kept_part(partial)}run again "
        "later, or correct the address"
    )


def _kept_part(partial: _Partial) -> str:
    if partial.size == 0:
        return ""
    return f"{megabytes(partial.size)} are kept and the next attempt goes on from there; "


def _request(session: requests.Session, wanted: _Wanted, partial: _Partial) -> None:
    """Makes one request for the missing part.

    Raises:
      _Transient: when another try may help.
      DownloadError: when none will.
    """
    offset = _resumable(wanted, partial)
    if offset and partial.state is not None and offset == partial.state.total:
        return
    headers = {"Accept-Encoding": "identity", **wanted.headers}
    if offset:
        assert partial.state is not None
        headers["Range"] = f"bytes={offset}-"
        if partial.state.validator is not None:
            headers["If-Range"] = partial.state.validator
    try:
        response = session.get(
            wanted.url,
            headers=headers,
            # Without it a login in ~/.netrc would take the place of a given Authorization.
            auth=_as_given if "Authorization" in headers else None,
            stream=True,
            timeout=wanted.policy.timeout,
        )
    except requests.RequestException as error:
        raise _connection_fault(error, wanted) from None
    with response:
        if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and offset:
            if _content_range(response)[1] != offset:
                partial.restart(None)
                raise _Transient("the server has no more of the file than is here already")
            return
        _check_status(response, wanted, partial)
        _receive(response, wanted, partial, offset)


def _as_given(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _resumable(wanted: _Wanted, partial: _Partial) -> int:
    """Returns the number of bytes that can be built on; without any the partial file is emptied."""
    state = partial.state
    if partial.size == 0 or state is None:
        return 0
    same = state.url_hash == wanted.url_hash
    # Without a validator a changed file shows only by its checksum.
    provable = state.validator is not None or bool(wanted.checksums)
    fits = max(partial.size, state.total or 0) <= (wanted.bytes or math.inf)
    fits = fits and partial.size <= (state.total or math.inf)
    if same and provable and fits:
        return partial.size
    partial.restart(None)
    return 0


def _check_status(response: requests.Response, wanted: _Wanted, partial: _Partial) -> None:
    code = response.status_code
    if code in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
        return
    text = f"{code} {HTTPStatus(code).phrase}" if code in set(HTTPStatus) else str(code)
    place = f"{wanted.path.name}: {public_url(response.url)}"
    if code in RETRIED or code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        wait = _retry_after(response)
        if wait is not None and wait > wanted.policy.longest_request:
            raise DownloadError(
                f"{place}: {text}: the server asks to wait for {wait:.0f} s; "
                f"{_kept_part(partial)}run again then"
            )
        raise _Transient(text, wait=wait)
    raise WrongDownloadError(f"{place}: {text}: {REMEDIES.get(code, 'correct the address')}")


def _retry_after(response: requests.Response) -> float | None:
    """Returns the seconds to wait, from either form of the header."""
    written = response.headers.get("Retry-After", "").strip()
    if written.isdecimal():
        return float(written)
    try:
        moment = email.utils.parsedate_to_datetime(written)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max((moment - datetime.now(UTC)).total_seconds(), 0.0)


def _content_range(response: requests.Response) -> tuple[int | None, int | None]:
    """Returns the first byte and the whole size, as Content-Range has them."""
    match = re.fullmatch(
        r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", response.headers.get("Content-Range", "").strip()
    )
    first, total = match.groups() if match else (None, None)
    return (
        int(first) if first is not None else None,
        int(total) if total not in (None, "*") else None,
    )


def _receive(response: requests.Response, wanted: _Wanted, partial: _Partial, offset: int) -> None:
    """Appends an answer's body to the partial file, or begins it anew."""
    state = _describe(response, wanted, offset)
    resumed = response.status_code == HTTPStatus.PARTIAL_CONTENT
    if resumed and (not offset or not _continues(response, partial, state, offset)):
        partial.restart(None)
        raise _Transient("the server's answer does not continue what is here")
    if wanted.bytes is not None and state.total not in (None, wanted.bytes):
        raise WrongDownloadError(
            f"{wanted.where}: the server offers {state.total} bytes where {wanted.bytes} were "
            "expected; the file was changed or cut: correct the address or the size"
        )
    chunks = _chunks(response)
    first = next(chunks, b"")
    _refuse_page(response, first, wanted, resumed=resumed)
    total = state.total or wanted.bytes
    if total is not None:
        _check_space(wanted, partial, total - partial.size)
    try:
        if resumed:
            partial.spliced = True
            partial.describe(state)
        else:
            partial.restart(state)
        _write(wanted, partial, first, chunks, total)
    except OSError as error:
        raise _disk_fault(error, wanted, partial, total) from error
    if total is not None and partial.size > total:
        partial.restart(None)
        raise _Transient(f"more than the {total} bytes came that were offered")
    if total is not None and partial.size < total:
        raise _Transient(f"the transfer ended after {partial.size} of {total} bytes")


def _describe(response: requests.Response, wanted: _Wanted, offset: int) -> _State:
    """Reads from the answer's headers which file it is of, and its size."""
    length = response.headers.get("Content-Length", "")
    total = int(length) if length.isdecimal() else None
    if response.status_code == HTTPStatus.PARTIAL_CONTENT:
        whole = _content_range(response)[1]
        total = whole if whole is not None else (total + offset if total is not None else None)
    return _State(
        url_hash=wanted.url_hash,
        etag=response.headers.get("ETag"),
        modified=response.headers.get("Last-Modified"),
        total=total,
    )


def _continues(response: requests.Response, partial: _Partial, state: _State, offset: int) -> bool:
    """Returns True if a 206 continues the partial file: of the same file, from its end on."""
    before = partial.state
    assert before is not None
    pairs = [(before.etag, state.etag), (before.total, state.total)]
    if before.etag is None or state.etag is None:
        pairs.append((before.modified, state.modified))
    same = all(old is None or new is None or old == new for old, new in pairs)
    return same and _content_range(response)[0] == offset


def _chunks(response: requests.Response) -> Iterator[bytes]:
    """Yields the body as it is sent; the bytes before a break have been given out."""
    while True:
        try:
            chunk = response.raw.read1(CHUNK_BYTES, decode_content=False)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise _Transient(_reason(error)) from error
        if not chunk:
            return
        yield chunk


def _refuse_page(
    response: requests.Response, first: bytes, wanted: _Wanted, *, resumed: bool
) -> None:
    """Refuses a web page that comes in place of a file; the part that is here is kept."""
    if wanted.path.name.lower().endswith(PAGE_SUFFIXES):
        return
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    start = first[:512].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    looks = not resumed and start.startswith((b"<!doctype html", b"<html"))
    # A server may call a file a page: a checksum decides better.
    if looks or (kind in PAGE_TYPES and not wanted.checksums):
        raise WrongDownloadError(
            f"{wanted.where}: the address gives a web page now, not the file: perhaps a login, a "
            "licence to accept or a notice that the file has moved; open it in a browser and "
            "correct the address"
        )


def _check_space(wanted: _Wanted, partial: _Partial, needed: int) -> None:
    free = shutil.disk_usage(wanted.path.parent).free
    if needed > free:
        raise DownloadError(_full(wanted, partial, needed, free))


def _full(wanted: _Wanted, partial: _Partial, needed: int | None, free: int) -> str:
    amount = f"{megabytes(needed)} more are needed" if needed is not None else "more is needed"
    return (
        f"{wanted.where}: the disk is full: {amount} in {wanted.path.parent} and "
        f"{megabytes(free)} are free; {_kept_part(partial)}{artifacts.DISK_REMEDY}"
    )


def _disk_fault(
    error: OSError, wanted: _Wanted, partial: _Partial, total: int | None
) -> DownloadError:
    if artifacts.is_full(error):
        needed = None if total is None else total - partial.size
        free = shutil.disk_usage(wanted.path.parent).free
        return DownloadError(_full(wanted, partial, needed, free))
    return DownloadError(
        f"{partial.path}: cannot be written ({error.strerror or error}); correct the disk or the "
        "permissions and run again"
    )


def _write(
    wanted: _Wanted, partial: _Partial, first: bytes, chunks: Iterator[bytes], total: int | None
) -> None:
    start = partial.size
    amount = math.ceil(((total or 0) - start) / MEGABYTE) if total else 0
    # Without a size there is nothing to count towards: only the last line is logged.
    interval = 5.0 if total else math.inf
    with Progress(
        max(amount, 1), label=f"download {wanted.path.name}", unit="MB", interval=interval
    ) as progress:
        partial.write(first)
        for chunk in chunks:
            partial.write(chunk)
            progress.advance((partial.size - start) // MEGABYTE - progress.done)


def _connection_fault(error: requests.RequestException, wanted: _Wanted) -> Exception:
    """Returns the error for a request without answer: transient where another try may help."""
    permanent = {
        requests.exceptions.SSLError: "its certificate is not accepted; correct the clock, the "
        "machine's certificates or the address",
        requests.exceptions.TooManyRedirects: "it redirects without end; correct the address",
        requests.exceptions.InvalidSchema: "it redirects to what is no http address; correct it",
        requests.exceptions.InvalidURL: "not an address; correct it",
    }
    for kind, text in permanent.items():
        if isinstance(error, kind):
            return WrongDownloadError(f"{wanted.where}: {text}")
    return _Transient(_reason(error))


def _reason(error: BaseException) -> str:
    """Returns why a connection failed, without the address, which a library's text would show."""
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, socket.gaierror):
            return "the host's name is not found"
        if isinstance(cause, ConnectionError) and cause.strerror:
            return f"{cause.strerror[0].lower()}{cause.strerror[1:]}"
    known = {
        urllib3.exceptions.ConnectTimeoutError: "no connection in time",
        urllib3.exceptions.ReadTimeoutError: "the server fell silent",
        TimeoutError: "the server fell silent",
        urllib3.exceptions.IncompleteRead: "the connection broke in the middle",
    }
    for kind, text in known.items():
        if any(isinstance(cause, kind) for cause in causes):
            return text
    return "the connection broke"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and those behind it: causes, reasons and wrapped errors."""
    pending, seen = [error], set()
    while pending:
        one = pending.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        behind = [getattr(one, "reason", None), one.__cause__, one.__context__, *one.args]
        pending += [item for item in behind if isinstance(item, BaseException)]
