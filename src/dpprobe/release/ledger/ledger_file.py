"""Reads and writes a dataset's ledger file, with locks and a chain of hashes over records.

    <data_dir>/<dataset>/ledger.jsonl    one record per line, oldest first; mode 0600
    <data_dir>/<dataset>/ledger.lock     locked by writers (POSIX locks, which work on NFS too)
    <data_dir>/ledger.lock               locked by bookings of any dataset

**Damage.** Each line holds its own hash and the hash of the previous line. An edited, missing or
inserted line of the ledger is detected, and prevents new bookings. A crash while booking leaves an
incomplete last line. No noise was drawn for its release, so the next writer removes the line. A
last line that lacks only its newline is a valid record. Undetectable are whole lines deleted at the
end, an older copy of the file, and a file that was rewritten entirely. Protect the ledger's file
like the private images.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dpprobe.errors import DataError, DpprobeError, PrivacyError, WaitingError
from dpprobe.files.atomic_writes import flush_to_disk
from dpprobe.files.disk_errors import explain_unwritable, format_size
from dpprobe.files.plain_files import LARGEST_TEXT, read_bounded
from dpprobe.json_values import canonical_json, hash_value, parse_strict
from dpprobe.privacy.limits import SMALLEST_DELTA
from dpprobe.privacy.plan import Mechanism, Plan, Selection

logger = logging.getLogger("dpprobe")

FORMAT = "dpprobe-ledger"
FORMAT_VERSION = 2
# Lines of version 1 do not record whether several sites sent sums (event "send").
READ_VERSIONS = (1, 2)
LOCK_FILE = "ledger.lock"
BEFORE_THE_FIRST = "0" * 64

Side = Literal["train", "test"]
State = Literal["open", "closed", "abandoned"]

# Threads of a process share a POSIX lock, which is lost if any of them closes the file.
_one_thread = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class Part:
    """The mechanisms of a release that read one side of a split.

    Attributes:
      mechanisms: mechanisms with absolute noise multipliers.
      selection: names mechanisms that are repeated; only the best run is released.
      epsilon: the epsilon of only this part, at `delta`.
      bounded: True if the stated noise is a lower bound on the noise of the release.
      chain: the cohort chain of the part's running sums; set only while epsilons are added.
    """

    side: Side
    mechanisms: tuple[Mechanism, ...]
    selection: Selection | None = None
    epsilon: float
    delta: float
    bounded: bool = False
    chain: str | None = None

    def __post_init__(self) -> None:
        # `Plan` checks all other values
        if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise PrivacyError(
                f"part {self.side!r} of a release: epsilon {self.epsilon!r} must be positive and "
                "finite"
            )
        check_delta(self.delta)

    @classmethod
    def from_plan(cls, side: Side, plan: Plan) -> Part:
        return cls(
            side=side,
            mechanisms=plan.mechanisms,
            selection=plan.selection,
            epsilon=plan.realised_epsilon,
            delta=plan.delta,
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "side": self.side,
            "mechanisms": [item.to_dict() for item in self.mechanisms],
            "selection": self.selection and self.selection.to_dict(),
            "epsilon": self.epsilon,
            "delta": self.delta,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Part:
        selection = values["selection"]
        return cls(
            side=values["side"],
            mechanisms=tuple(Mechanism(**item) for item in values["mechanisms"]),
            selection=selection and Selection.from_dict(selection),
            epsilon=values["epsilon"],
            delta=values["delta"],
        )


@dataclass(frozen=True, kw_only=True)
class Booking:
    """The facts of a release that are known before its noise is drawn.

    Attributes:
      unit: the unit of privacy, a key of `Plan.UNITS`.
      split: the public key of a split; equal keys put each unit on the same side.
      parts: at most one part for each side.
      identity: hashes of the release's options and data; private, stored only in the ledger.
      column: the column whose values are the units; None if each image is a unit.
      same_units_as: another dataset that is declared to share units; None without a declaration.
      units: the hash in the name of the file with the units' hashes; None for an estimator.
      pixels: True if the hashes cover the pixels of all images, False if not. None if unknown: for
        fits of an estimator, and for entries of older versions.
      place: the place in a cohort chain with a horizon (release part `cohort`); else None.
      sites: the agreement of several sites (`AgreedSites.promise`); None for one site.
    """

    release: str
    study: str
    unit: str
    split: str
    parts: tuple[Part, ...]
    identity: str
    column: str | None = None
    same_units_as: str | None = None
    units: str | None = None
    pixels: bool | None = None
    place: str | None = None
    sites: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON-compatible dictionary, without values that are None except `column`."""
        known = {key: value for key, value in vars(self).items() if value is not None}
        return {"column": None, **known, "parts": [part.to_dict() for part in self.parts]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Booking:
        known: dict[str, Any] = {field.name: values.get(field.name) for field in fields(cls)}
        return cls(**{**known, "parts": tuple(map(Part.from_dict, values["parts"]))})


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A booked release.

    Attributes:
      number: the entry's number from 1, in the order of booking.
      state: "open" after booking; later "closed" or "abandoned", which is final.
      sent: True if this site's sums were sent to other sites, or may have been sent because the
        entry was booked in format version 1.
      booked: the time of booking, in UTC.
      digest: the bundle's digest, if closed.
      reason: a person's reason, if abandoned.
    """

    number: int
    booking: Booking
    state: State
    booked: str
    sent: bool = False
    digest: str | None = None
    reason: str | None = None

    @property
    def is_counted(self) -> bool:
        return self.state != "abandoned"


class Content(NamedTuple):
    """The content of a ledger's file: entries, hash of the last record, size, and end.

    `end` is "torn" after an incomplete last line, which `size` excludes; "unended" if only the last
    newline is missing.
    """

    entries: dict[int, Entry]
    last: str
    size: int
    end: Literal["whole", "torn", "unended"]


class LedgerFile:
    """The records of one dataset; a damaged line raises DataError."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read_entries(self) -> list[Entry]:
        """Reads all entries and checks every line."""
        with self._explain_errors():
            return list(self._read_content().entries.values())

    def entry_of(self, release: str) -> Entry | None:
        """Returns the entry of a release, unless abandoned; None if there is no entry."""
        return find_named([each for each in self.read_entries() if each.is_counted], release)

    @property
    def _data_dir(self) -> Path:
        return self.path.absolute().parent.parent

    @property
    def _dataset(self) -> str:
        return self.path.absolute().parent.name

    def _read_content(self) -> Content:
        """Reads the file, and checks each line; an incomplete last line is ignored."""
        try:
            written = read_bounded(self.path)
        except FileNotFoundError:
            written = b""
        *lines, rest = written.split(b"\n")
        end: Literal["whole", "torn", "unended"] = "whole"
        if rest:
            end = "torn" if _is_torn(rest) else "unended"
            lines += [rest] if end == "unended" else []
        entries: dict[int, Entry] = {}
        last = BEFORE_THE_FIRST
        for number, line in enumerate(lines, start=1):
            try:
                record = _check_line(line, last)
                if record["format_version"] not in READ_VERSIONS:
                    raise DataError(
                        f"{self.path}, line {number}: format version {record['format_version']!r}, "
                        f"not {' or '.join(map(str, READ_VERSIONS))}; use the dpprobe that wrote it"
                    )
                _enter_record(entries, record)
            except (ValueError, KeyError, TypeError, AttributeError, PrivacyError) as error:
                raise DataError(
                    f"{self.path}, line {number}: damaged ({error}); restore the file from a "
                    "backup: until then, releases of this dataset are refused"
                ) from error
            last = record["hash"]
        return Content(entries, last, len(written) - len(rest) * (end == "torn"), end)

    @contextmanager
    def _lock_ledger(self, *, among_all: bool = False) -> Iterator[Content]:
        """Excludes other writers while the file is read and a line is appended.

        `among_all` also excludes bookings of the data_dir's other datasets.
        """
        with ExitStack() as stack:
            stack.enter_context(_one_thread)
            stack.enter_context(self._explain_errors())
            if among_all:
                stack.enter_context(self._hold_lock(self._data_dir / LOCK_FILE))
            stack.enter_context(self._hold_lock(self.path.with_name(LOCK_FILE)))
            content = self._read_content()
            self._mend(content)
            yield content

    @contextmanager
    def _hold_lock(self, path: Path) -> Iterator[None]:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):  # locked by another process
                logger.warning(
                    "%s: another job is recording a release in it; waiting for that job",
                    self.path,
                )
                fcntl.lockf(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _mend(self, content: Content) -> None:
        """Removes an incomplete last line; flushes data that a killed process left unflushed."""
        if not self.path.exists():
            return
        if content.end == "torn":
            logger.warning(
                "%s: removed a truncated last line, which a crash left before it had any effect",
                self.path,
            )
            os.truncate(self.path, content.size)
        elif content.end == "unended":
            self._write_lines(b"\n")
        flush_to_disk(self.path)

    def _append_line(self, content: Content, event: str, number: int, **values: Any) -> None:
        """Appends a record, flushed to the disk on return, and applies it to the entries."""
        record = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "event": event,
            "number": number,
            "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "previous": content.last,
            **values,
        }
        self._write_lines(_make_line(record, hash_value(record)) + b"\n")
        flush_to_disk(self.path.parent)
        _enter_record(content.entries, record)

    def _write_lines(self, text: bytes) -> None:
        """Appends bytes in one write; the next writer repairs an interrupted write."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if os.write(descriptor, text) < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            error.filename = error.filename or str(self.path)
            raise explain_unwritable(error) or DataError(
                f"{error.filename}: {error.strerror}; the ledger of a dataset needs a plain file "
                f"of up to {format_size(LARGEST_TEXT)}, in a folder that you may read and write, "
                "on a file system with POSIX locks"
            ) from error


def find_named(counting: Sequence[Entry], release: str) -> Entry | None:
    return next((entry for entry in counting if entry.booking.release == release), None)


@contextmanager
def tell_of_entry(entry: str) -> Iterator[None]:
    """Adds to an error's message that the entry is booked and counts."""
    try:
        yield
    except WaitingError:
        raise
    except DpprobeError as error:
        told = type(error)(f"{error}. Entry {entry} stays open, and counts")
        told.passes = False  # a retry would be refused, because the entry is open
        raise told from error


def _make_line(record: Mapping[str, Any], digest: str) -> bytes:
    """Formats a record with its hash as a line, in the only form that readers accept."""
    return canonical_json({**record, "hash": digest}).encode()


def _is_torn(rest: bytes) -> bool:
    """Returns True for an incomplete line; False for a complete record, even if it is damaged."""
    try:
        json.JSONDecoder().raw_decode(rest.decode(errors="replace"))
    except (ValueError, RecursionError) as error:
        return isinstance(error, ValueError)  # dpprobe writes no brackets of such depth
    return False


def _check_line(line: bytes, previous: str) -> dict[str, Any]:
    """Reads a line; raises ValueError unless it continues the chain of hashes."""
    record = parse_strict(line)
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise ValueError(f"not a record of {FORMAT}")
    content = {key: value for key, value in record.items() if key != "hash"}
    if hash_value(content) != record["hash"] or _make_line(content, record["hash"]) != line:
        raise ValueError("altered: the line's hash does not match its content")
    if record["previous"] != previous:
        raise ValueError("does not follow the previous line: a line is missing or was inserted")
    return record


def _enter_record(entries: dict[int, Entry], record: Mapping[str, Any]) -> None:
    """Applies a record to the entries; raises ValueError if the record contradicts them."""
    event, number = record["event"], record["number"]
    if event == "book" and number == len(entries) + 1:
        booking = Booking.from_dict(record["booking"])
        sent = record["format_version"] == 1 and booking.sites is not None
        entries[number] = Entry(
            number=number, booking=booking, state="open", booked=record["time"], sent=sent
        )
    elif event == "send" and _may_send(entries[number]):
        entries[number] = replace(entries[number], sent=True)
    elif event == "close" and entries[number].state == "open":
        entries[number] = replace(entries[number], state="closed", digest=record["digest"])
    elif event == "abandon" and entries[number].state == "open":
        entries[number] = replace(entries[number], state="abandoned", reason=record["reason"])
    else:
        raise ValueError(f"event {event!r} of entry {number!r} does not fit earlier lines")


def _may_send(entry: Entry) -> bool:
    return entry.state == "open" and entry.booking.sites is not None and not entry.sent


def check_delta(delta: float) -> None:
    """Raises PrivacyError for a delta at which no epsilon can be computed."""
    if not SMALLEST_DELTA <= delta < 1:
        raise PrivacyError(
            f"delta {delta!r}: outside {SMALLEST_DELTA:g} to 1; choose a delta slightly below 1 / "
            "(training units)"
        )
