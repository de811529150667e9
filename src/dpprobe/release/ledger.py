"""The ledger of a dataset: records every release before its noise is drawn, and adds up their cost.

    <data_dir>/<dataset>/ledger.jsonl    one record per line, in order of time; mode 0600
    <data_dir>/<dataset>/ledger.lock     locked by writers (POSIX locks, which NFS has too)
    <data_dir>/ledger.lock               locked by bookings of any dataset

Only the sum is released. It is computed from plans alone, never from rows. The file is private: it
holds hashes of private data, and times.

**Which entries count.** `book_release` returns once the booking is on the disk, before a random
word of the release's noise is drawn. So whatever leaves this computer has an entry. Open and closed
entries count. An abandoned one does not, on a person's word that nobody saw its result.

**The sum.** Fix one unit and its sides: in each split its rows are training examples or test
examples, never both. Null rows there change the sums of that side's mechanisms, each by its
sensitivity. The mechanisms of the other side read other units' rows and what was released before:
post-processing. So a unit pays for the composition of its sides' mechanisms over all releases, at
most for the worst choice of a side in each split. Within one split that is the larger of the two
sides' compositions. With over `MOST_SPLITS` splits of two sides all parts compose: an upper bound.

- Gaussian mechanisms without sampling or repetition: exact, one Gaussian of mu^2 = sum of count /
  sigma^2. It holds if a plan was chosen after seeing earlier releases, as long as `max_epsilon` was
  fixed before (Smith and Thakurta 2022, "Fully adaptive composition for Gaussian DP").
- Sampled mechanisms: privacy loss distributions, an upper bound; theorems cover plans that were
  fixed without looking at what was released.
- Fits that are repeated, with only the best run released: one alone has its plan's price; beside
  others the sum is by Renyi divergences, a looser upper bound.

**Other ledgers.** A unit of two datasets pays for the releases of both. Their ledgers are added up
if a booking of either says so (`same_units_as`), directly or through a third. A booking whose units
are also in another ledger that is not added up is refused (`unit_hashes`). Private examples decide
that, so it may stop a release, but never change the sum that is published. A booking is also
refused if its units are on other sides than in an entry of the same split.

**One chain.** With a horizon, each release of a chain of cohorts reads the exact sums of earlier
cohorts again. The sums of a unit of two cohorts meet in the same outputs (`privacy.running_sums`).
So 1 / sigma adds up over the two entries, not its square: an upper bound.

**Damage.** Each line holds its own hash and that of the line before. So an edited, missing or
inserted line is noticed, and then nothing is booked. A crash while booking leaves a last line that
is cut short: no noise was drawn for it, and the next writer removes it. A line that lacks only its
newline counts. Not detectable: whole lines deleted at the end, an older copy of the file, or a file
rewritten as a whole. Guard it like the images.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import logging
import math
import os
import shlex
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dpprobe.artifacts import canonical_json, explain_unwritable, flush_to_disk, hash_value
from dpprobe.counted_nouns import count_noun
from dpprobe.errors import BudgetError, DataError, DpprobeError, PrivacyError, WaitingError
from dpprobe.privacy.accountants import (
    Fits,
    all_together,
    compute_epsilon,
    exactly_priced,
    pld_interval,
)
from dpprobe.privacy.limits import SMALLEST_DELTA, round_up
from dpprobe.privacy.plan import Mechanism, Plan, Selection
from dpprobe.privacy.risk import Risk
from dpprobe.privacy.trade_off import Allowed, bound_attacks
from dpprobe.release.unit_hashes import (
    Hashes,
    Units,
    count_moved,
    find_tables,
    load_key,
    read_hashes,
    share_units,
    write_hashes,
)
from dpprobe.sites.site_folder import has_sent, lock_folder, site_folder
from dpprobe.study.reserved_names import LEDGER_FILE
from dpprobe.study.study_checks import same_units_fault

logger = logging.getLogger("dpprobe")

FORMAT = "dpprobe-ledger"
FORMAT_VERSION = 1
LOCK_FILE = "ledger.lock"

# The worst choice of sides is searched for up to so many splits of two sides: 64 compositions.
MOST_SPLITS = 6
SHORTEST_REASON = 5
BEFORE_THE_FIRST = "0" * 64

Side = Literal["train", "test"]
State = Literal["open", "closed", "abandoned"]

# A process has its lock for all of its threads, and loses it when any of them closes the file.
_one_thread = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most that all releases from one dataset may cost a unit together.

    Attributes:
      delta: at which the epsilon of all must not exceed `max_epsilon`.
      max_epsilon: None for no such limit.
      max_risk: the most that attacks on all together may reach; None for no such limit.
    """

    delta: float
    max_epsilon: float | None = None
    max_risk: Risk | None = None

    def __post_init__(self) -> None:
        check_delta(self.delta)


@dataclass(frozen=True, kw_only=True)
class Part:
    """The mechanisms of a release that read one side of a split.

    Attributes:
      mechanisms: with absolute noise multipliers.
      selection: names those that are repeated, with only the best run released.
      epsilon: the price of this part alone, at `delta`.
      bounded: True if a mechanism stands for another one that reveals less.
      chain: of cohorts with a horizon, whose running sums these are; only while prices are added.
    """

    side: Side
    mechanisms: tuple[Mechanism, ...]
    selection: Selection | None = None
    epsilon: float
    delta: float
    bounded: bool = False
    chain: str | None = None

    def __post_init__(self) -> None:
        where = f"part {self.side!r} of a release"
        if self.side not in ("train", "test"):
            raise PrivacyError(f"{where}: write train or test")
        if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise PrivacyError(f"{where}: epsilon {self.epsilon!r} must be positive and finite")
        check_delta(self.delta)
        if not self.mechanisms or any(item.noise_multiplier == 0 for item in self.mechanisms):
            raise PrivacyError(
                f"{where}: has no mechanism, or a mechanism without noise; no epsilon can be "
                "computed"
            )
        repeated = self.selection.repeated if self.selection else ()
        if unknown := set(repeated) - {item.name for item in self.mechanisms}:
            raise PrivacyError(
                f"{where}: names a repeated mechanism {min(unknown)!r} that it does not have"
            )

    @classmethod
    def from_plan(cls, side: Side, plan: Plan) -> Part:
        """Returns the part of a plan on one side."""
        return cls(
            side=side,
            mechanisms=plan.mechanisms,
            selection=plan.selection,
            epsilon=plan.realised_epsilon,
            delta=plan.delta,
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON-compatible dictionary."""
        return {
            "side": self.side,
            "mechanisms": [item.to_dict() for item in self.mechanisms],
            "selection": self.selection and self.selection.to_dict(),
            "epsilon": self.epsilon,
            "delta": self.delta,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Part:
        """Reads the dictionary that `to_dict` returns."""
        selection = values["selection"]
        return cls(
            side=values["side"],
            mechanisms=tuple(map(Mechanism.from_dict, values["mechanisms"])),
            selection=selection and Selection.from_dict(selection),
            epsilon=values["epsilon"],
            delta=values["delta"],
        )


@dataclass(frozen=True, kw_only=True)
class Booking:
    """The facts of a release that are known before its noise is drawn.

    Attributes:
      unit: of privacy, a key of `Plan.UNITS`.
      split: the public key of how units are split. Releases of one key split all units alike.
      parts: at most one for each side.
      identity: hashes of everything that decides the release; private, they stay here.
      column: whose values are the units; None if each image is one.
      same_units_as: another dataset whose units are some of these; None without one.
      units: the hash that names the file of the units' hashes; None for fits of an estimator.
      place: in a chain of cohorts with a horizon, by `cohorts.Chain.name_place`; None elsewhere.
      sites: the agreement of several sites, by `SitePart.name_promise`; None for one site.
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
    place: str | None = None
    sites: str | None = None

    def __post_init__(self) -> None:
        if self.unit not in Plan.UNITS:
            raise PrivacyError(
                f"release {self.release!r}: unit {self.unit!r}; write one of "
                f"{', '.join(Plan.UNITS)}"
            )
        sides = [part.side for part in self.parts]
        if not sides or len(set(sides)) < len(sides):
            raise PrivacyError(
                f"release {self.release!r}: parts {sides}; write one part for each split that it "
                "reads"
            )

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON-compatible dictionary; the last three values only if known."""
        known = {key: value for key, value in vars(self).items() if value is not None}
        return {"column": None, **known, "parts": [part.to_dict() for part in self.parts]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Booking:
        """Reads the dictionary that `to_dict` returns."""
        known: dict[str, Any] = {field.name: values.get(field.name) for field in fields(cls)}
        return cls(**{**known, "parts": tuple(map(Part.from_dict, values["parts"]))})


def unit_words(booking: Booking) -> str:
    """Names the unit of privacy of a booking."""
    of = "" if booking.column is None else f" (a value of {booking.column})"
    return f"{booking.unit}{of}"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A booked release.

    Attributes:
      number: from 1, in the order of booking.
      state: "open" from booking on, then "closed" or "abandoned" for good.
      booked: the time, UTC.
      digest: of the bundle, if closed.
      reason: that a person gave, if abandoned.
    """

    number: int
    booking: Booking
    state: State
    booked: str
    digest: str | None = None
    reason: str | None = None

    @property
    def is_counted(self) -> bool:
        return self.state != "abandoned"


@dataclass(frozen=True, kw_only=True)
class Spent:
    """The sum of entries for one unit, exact or upper bound: epsilon rounded up to six digits."""

    epsilon: float
    exact: bool
    entries: int

    def to_block(self, *, entry: int | None, unit: str, delta: float) -> dict[str, Any]:
        """Returns the block `ledger` of the statement of a release, whose entry this is."""
        return {
            "entry": entry,
            "releases": self.entries,
            "unit": unit,
            "delta": delta,
            "epsilon": self.epsilon,
            "exact": self.exact,
        }


class _Content(NamedTuple):
    """The records of a file, the hash and end of the last record, and the bytes after it.

    A file ends "torn" if a piece of a line follows, "unended" if the last newline is missing.
    """

    entries: dict[int, Entry]
    last: str
    size: int
    end: Literal["whole", "torn", "unended"]


class Ledger:
    """The releases of one dataset; a damaged line raises DataError."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of_dataset(cls, data_dir: Path, dataset: str) -> Ledger:
        """Returns the ledger of a dataset; its file need not exist."""
        return cls(data_dir / dataset / LEDGER_FILE)

    def read_entries(self) -> list[Entry]:
        """Reads all entries and checks every line."""
        with self._explain_errors():
            return list(self._read_content().entries.values())

    def entry_of(self, release: str) -> Entry | None:
        """Returns the entry of a release that is not abandoned; None if there is none."""
        return _find_named([each for each in self.read_entries() if each.is_counted], release)

    def book_release(
        self,
        booking: Booking,
        limits: Limits,
        *,
        units: Units | None = None,
        other_units_than: Sequence[str] = (),
        datasets: Collection[str] = (),
    ) -> Entry:
        """Records a release; its noise may be drawn only after this returns.

        Args:
          units: of the release; None leaves them unchecked.
          other_units_than: datasets whose units are others, though they may have the same names.
          datasets: of the study, which may have no ledger yet.

        Raises:
          BudgetError: if a limit would be exceeded.
          PrivacyError: if the name or the place in a chain is taken, `same_units_as` names no
            dataset, or the units do not fit earlier bookings.
          DataError: for a damaged line, here or in another ledger, and for lost hashes.
        """
        folder = self.path.parent
        with self._explain_errors():
            if not folder.is_dir():
                folder.mkdir(parents=True, exist_ok=True)
                flush_to_disk(folder.parent)
        with self._lock_ledger(among_all=True) as content:
            ledgers = self._read_ledgers()
            added = self._find_added(ledgers, booking)
            self._refuse_taken(ledgers[self._dataset], booking)
            self._refuse_unknown(ledgers, booking, datasets)
            self._refuse_other_unit(added, booking)
            _refuse_place(ledgers, booking)
            if units is not None:
                used = any(each.booking.units for listed in ledgers.values() for each in listed)
                key = load_key(self._data_dir, used=used)
                hashes = units.hash_with(key)
                self._refuse_moved(ledgers[self._dataset], booking, hashes, key)
                others = {name: ledgers[name] for name in ledgers if name not in added}
                self._refuse_same_units(others, booking, hashes, key, unlike=other_units_than)
            refuse_excess(self._add_up(added), booking, limits, ledger=str(self.path))
            if units is not None:
                booking = replace(booking, units=write_hashes(folder, hashes, key))
            number = len(content.entries) + 1
            self._append_line(content, "book", number, booking=booking.to_dict())
            return content.entries[number]

    def check_room(self, booking: Booking, limits: Limits) -> None:
        """Checks a booking's cost and unit as `book_release` does, without recording it."""
        added = self._find_added(self._read_ledgers(), booking)
        self._refuse_other_unit(added, booking)
        refuse_excess(self._add_up(added), booking, limits, ledger=str(self.path))

    def close_entry(self, number: int, digest: str) -> None:
        """Closes an open entry whose bundle is complete; repeats with one digest do nothing."""
        with self._lock_ledger() as content:
            entry = self._find_entry(content, number)
            if entry.state == "closed" and entry.digest == digest:
                return
            self._require_open(entry)
            self._append_line(content, "close", number, digest=digest)

    def abandon_entry(self, number: int, reason: str) -> None:
        """Removes an open entry from the total, if nobody has seen its files."""
        if len(reason.strip()) < SHORTEST_REASON or not reason.isprintable():
            raise PrivacyError(
                f"reason {reason!r}: write one line of {SHORTEST_REASON} characters or more"
            )
        with self._lock_ledger() as content, ExitStack() as stack:
            entry = self._find_entry(content, number)
            self._require_open(entry)
            if entry.booking.sites is not None:
                folder = site_folder(self.path.parent, entry.booking.release)
                stack.enter_context(lock_folder(folder))
                if has_sent(folder):
                    raise PrivacyError(
                        f"entry {number} of {self.path}: sums have left this site, and the other "
                        "sites may have the rest, so it counts permanently. To begin again, all "
                        "sites need a release with another name"
                    )
            self._append_line(content, "abandon", number, reason=reason.strip())

    def compute_spent(self, delta: float) -> Spent:
        """Computes the sum of all entries that count, for one unit, at any delta."""
        return compose_bookings(self.list_bookings(), delta)

    def list_bookings(self) -> list[Booking]:
        """Lists the bookings of all entries that count, including ledgers that are added up."""
        return self._add_up(self._find_added(self._read_ledgers()))

    def list_added(self) -> list[str]:
        """Lists the other datasets whose ledgers are added up with this one's."""
        return [*self._find_added(self._read_ledgers())][1:]

    @property
    def _data_dir(self) -> Path:
        return self.path.absolute().parent.parent

    @property
    def _dataset(self) -> str:
        return self.path.absolute().parent.name

    def _read_ledgers(self) -> dict[str, list[Entry]]:
        """Reads the entries that count of all ledgers of the data_dir, this one first."""
        this = {self._dataset: self}
        others = (path.parent for path in sorted(self._data_dir.glob(f"*/{LEDGER_FILE}")))
        ledgers = this | {each.name: Ledger(each / LEDGER_FILE) for each in others} | this
        return {
            name: [entry for entry in ledger.read_entries() if entry.is_counted]
            for name, ledger in ledgers.items()
        }

    def _find_added(
        self, ledgers: Mapping[str, list[Entry]], *extra: Booking
    ) -> dict[str, list[Entry]]:
        """Returns this ledger first, then the ledgers that are added up with it."""
        bookings = [(self._dataset, each) for each in extra]
        bookings += [(name, each.booking) for name, listed in ledgers.items() for each in listed]
        pairs = [{name, each.same_units_as} for name, each in bookings if each.same_units_as]
        joined: set[str | None] = {self._dataset}
        while more := set().union(*(pair for pair in pairs if pair & joined)) - joined:
            joined |= more
        return {name: listed for name, listed in ledgers.items() if name in joined}

    def _add_up(self, added: Mapping[str, list[Entry]]) -> list[Booking]:
        """Lists the bookings to be composed.

        Units may have other names in another dataset, and so other sides by an equal key.
        """
        return [
            booking if name == self._dataset else replace(booking, split=f"{name}: {booking.split}")
            for name, listed in added.items()
            for booking in (entry.booking for entry in listed)
        ]

    def _refuse_moved(
        self, counting: Sequence[Entry], booking: Booking, hashes: Hashes, key: bytes
    ) -> None:
        """Refuses units that an entry of the same split has on the other side."""
        for entry in counting:
            if entry.booking.split != booking.split or entry.booking.units is None:
                continue
            if count_moved(hashes, read_hashes(self.path.parent, entry.booking.units, key)):
                raise PrivacyError(
                    f"release {booking.release!r}: images have changed sides since entry "
                    f"{entry.number} of {self.path} ({entry.booking.release}), by the same split "
                    f"({booking.split}): their units were renamed, so the total would count only "
                    "one split for each unit; write another split_seed, so that both splits "
                    "count"
                )

    def _refuse_same_units(
        self, others: Mapping[str, list[Entry]], booking: Booking, hashes: Hashes, key: bytes,
        *, unlike: Sequence[str],
    ) -> None:  # fmt: skip
        """Refuses units of ledgers that are not added up; names in `unlike` may be equal."""
        data = booking.identity.partition(" ")[2]  # tells equal features, also without tables
        known = dict[Any, Hashes]()  # most entries have the same units
        for name, entry in [(each, entry) for each in others for entry in others[each]]:
            folder, units = self._data_dir / name, entry.booking.units
            if (name, units) not in known:
                # A fit of an estimator names no units: the tables as they are now tell.
                known[name, units] = (
                    read_hashes(folder, units, key)
                    if units
                    else Units(names={}, tables=find_tables(folder)).hash_with(key)
                )
            theirs = known[name, units]
            same = bool(data) and entry.booking.identity.partition(" ")[2] == data
            what, remedy = "images", ""
            if not (same or share_units(hashes, theirs, "images")):
                if name in unlike or not share_units(hashes, theirs, "names"):
                    continue
                what = "names of units"
                remedy = f", or other_units_than: [{name}] if different units have the same names"
            raise PrivacyError(
                f"release {booking.release!r}: {what} of dataset {self._dataset} are also in "
                f"entry {entry.number} of {folder / LEDGER_FILE} ({entry.booking.release}), but "
                f"the two ledgers are not added up; write `same_units_as: {name}` under "
                f"datasets.{self._dataset}{remedy}"
            )

    def _refuse_taken(self, counting: Sequence[Entry], booking: Booking) -> None:
        entry = _find_named(counting, booking.release)
        if entry is None:
            return
        place = f"release {booking.release!r}: entry {entry.number} of {self.path}"
        if entry.state == "closed":
            raise PrivacyError(
                f"{place} is closed, because its bundle is complete; a rerun with fresh noise is "
                "a new release: give it another name"
            )
        raise PrivacyError(f"release {booking.release!r}: {self.explain_open(entry)}")

    def _refuse_unknown(
        self, ledgers: Mapping[str, list[Entry]], booking: Booking, datasets: Collection[str]
    ) -> None:
        """Refuses a name that nothing can be added up with: it is misspelled or elsewhere.

        A dataset of the study may be released later. Its releases then count with this one.
        """
        other, where = booking.same_units_as, f"release {booking.release!r}: "
        if fault := same_units_fault(self._dataset, other, {*datasets, *ledgers}, self._data_dir):
            raise PrivacyError(f"{where}{fault}. Now nothing would be added up")
        if other is not None and other not in ledgers:
            logger.warning(
                "%ssame_units_as: %s: it has no ledger yet, so nothing is added up now, but its "
                "later releases will count with this one. If you meant another dataset, stop and "
                "correct the name",
                where, other,
            )  # fmt: skip

    def _refuse_other_unit(self, added: Mapping[str, list[Entry]], booking: Booking) -> None:
        for name, entry in [(each, entry) for each in added for entry in added[each]]:
            # The columns of two datasets may have two names.
            column = name == self._dataset and entry.booking.column != booking.column
            if entry.booking.unit != booking.unit or column:
                raise PrivacyError(
                    f"release {booking.release!r}: its unit of privacy is {unit_words(booking)}, "
                    f"but that of entry {entry.number} of {self._data_dir / name / LEDGER_FILE} "
                    f"({entry.booking.release}) is {unit_words(entry.booking)}, and epsilons for "
                    "different units cannot be added up; write the unit of the earlier entry"
                )

    def _find_entry(self, content: _Content, number: int) -> Entry:
        if number not in content.entries:
            raise PrivacyError(
                f"{self.path}: no entry {number!r}; `dpprobe ledger "
                f"{shlex.quote(str(self.path.parent))}` lists all entries"
            )
        return content.entries[number]

    def explain_open(self, entry: Entry) -> str:
        """Says why an open entry counts, and how to abandon it."""
        return (
            f"entry {entry.number} of {self.path} is open: its job is still running, or died "
            "before its bundle was complete. It counts, because its noise may have been drawn. If "
            "its job is dead and nobody has seen its files, run `dpprobe ledger "
            f'{shlex.quote(str(self.path.parent))} --abandon {entry.number} --reason "..."`'
        )

    def _require_open(self, entry: Entry) -> None:
        place = f"{self.path}: entry {entry.number}"
        if entry.state == "closed":
            raise PrivacyError(
                f"{place} is closed with bundle {entry.digest}, which somebody may have seen, so "
                "it counts permanently; delete any other bundle of this release"
            )
        if entry.state == "abandoned":
            raise PrivacyError(
                f"{place} was abandoned ({entry.reason}); delete the files that were made for it, "
                "and run the release again"
            )

    def _read_content(self) -> _Content:
        """Reads the file, and checks each line; a piece of a line at the end is left out."""
        try:
            written = self.path.read_bytes()
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
                if record["format_version"] != FORMAT_VERSION:
                    raise DataError(
                        f"{self.path}, line {number}: format version {record['format_version']!r}, "
                        f"not {FORMAT_VERSION}; use the dpprobe that wrote it"
                    )
                _enter_record(entries, record)
            except (ValueError, KeyError, TypeError, AttributeError, PrivacyError) as error:
                raise DataError(
                    f"{self.path}, line {number}: damaged ({error}); restore the file from a "
                    "backup: until then no release of this dataset is made"
                ) from error
            last = record["hash"]
        return _Content(entries, last, len(written) - len(rest) * (end == "torn"), end)

    @contextmanager
    def _lock_ledger(self, *, among_all: bool = False) -> Iterator[_Content]:
        """Keeps other writers out while the file is read and a line is appended.

        `among_all` also keeps out bookings of the data_dir's other datasets.
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
            except (BlockingIOError, PermissionError):  # another has it; which, systems differ
                logger.warning(
                    "%s: another job is recording a release in it; waiting for that job",
                    self.path,
                )
                fcntl.lockf(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _mend(self, content: _Content) -> None:
        """Removes an incomplete last line; flushes data that a dead process left unflushed."""
        if not self.path.exists():
            return
        if content.end == "torn":
            logger.warning(
                "%s: removed a last line that a crash cut short, before it had any effect",
                self.path,
            )
            os.truncate(self.path, content.size)
        elif content.end == "unended":
            self._write_lines(b"\n")
        flush_to_disk(self.path)

    def _append_line(self, content: _Content, event: str, number: int, **values: Any) -> None:
        """Appends a record, flushed to the disk when this returns, and enters it."""
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
        """Appends bytes by one write; a write that is cut short is mended by the next writer."""
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
                f"{error.filename}: {os.strerror(error.errno or 0)}; the ledger of a dataset needs "
                "a folder that you may read and write, on a file system with POSIX locks"
            ) from error


def _refuse_place(ledgers: Mapping[str, list[Entry]], booking: Booking) -> None:
    """Refuses a second release at one place of a chain, whose price covers one output."""
    for name, entry in [(each, entry) for each in ledgers for entry in ledgers[each]]:
        if booking.place is not None and entry.booking.place == booking.place:
            raise PrivacyError(
                f"release {booking.release!r}: {entry.booking.release} of dataset {name} has its "
                "place in the chain, where the horizon pays for one release. Follow that one, or "
                "begin a new chain without `predecessor`"
            )


def _find_named(counting: Sequence[Entry], release: str) -> Entry | None:
    return next((entry for entry in counting if entry.booking.release == release), None)


def _make_line(record: Mapping[str, Any], digest: str) -> bytes:
    """Returns a record with its hash as the only text that is accepted."""
    return canonical_json({**record, "hash": digest}).encode()


def _is_torn(rest: bytes) -> bool:
    """Returns True for an incomplete line; False for a complete record, even if it is damaged."""
    try:
        json.JSONDecoder().raw_decode(rest.decode(errors="replace"))
    except ValueError:
        return True
    return False


def _check_line(line: bytes, previous: str) -> dict[str, Any]:
    """Reads a line; raises ValueError unless it is a record that follows the previous record."""
    record = json.loads(line)
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise ValueError(f"not a record of {FORMAT}")
    content = {key: value for key, value in record.items() if key != "hash"}
    if hash_value(content) != record["hash"] or _make_line(content, record["hash"]) != line:
        raise ValueError("altered: its hash does not match its content")
    if record["previous"] != previous:
        raise ValueError("does not follow the previous line: a line is missing or was inserted")
    return record


def _enter_record(entries: dict[int, Entry], record: Mapping[str, Any]) -> None:
    """Applies a record to the entries; raises ValueError if it does not fit them."""
    event, number = record["event"], record["number"]
    if event == "book" and number == len(entries) + 1:
        booking = Booking.from_dict(record["booking"])
        entries[number] = Entry(number=number, booking=booking, state="open", booked=record["time"])
    elif event == "close" and entries[number].state == "open":
        entries[number] = replace(entries[number], state="closed", digest=record["digest"])
    elif event == "abandon" and entries[number].state == "open":
        entries[number] = replace(entries[number], state="abandoned", reason=record["reason"])
    else:
        raise ValueError(f"event {event!r} of entry {number!r} does not fit the lines before")


def check_delta(delta: float) -> None:
    """Raises PrivacyError for a delta at which no epsilon can be computed."""
    if not SMALLEST_DELTA <= delta < 1:
        raise PrivacyError(
            f"delta {delta!r}: outside {SMALLEST_DELTA:g} to 1; write a delta slightly below 1 / "
            "(training units)"
        )


def refuse_excess(
    booked: Sequence[Booking], booking: Booking, limits: Limits, *, ledger: str
) -> None:
    """Raises BudgetError if a booking and the earlier ones (placed in `ledger`) exceed a limit."""
    delta, max_epsilon, max_risk = limits.delta, limits.max_epsilon, limits.max_risk
    every = [*booked, booking]
    if max_epsilon is not None:
        spent = compose_bookings(every, delta)
        if not spent.epsilon <= max_epsilon:
            before = compose_bookings(booked, delta).epsilon
            raise BudgetError(
                f"release {booking.release!r}: with it, the total epsilon of a unit would be "
                f"{spent.epsilon:g} at delta {delta:g} (without it {before:g}, by {ledger}), "
                f"above max_epsilon {max_epsilon:g}; write a smaller epsilon, or raise "
                "max_epsilon"
            )
    if max_risk is not None:
        reached = max_risk.measure(bound_bookings(every, max_risk.rates, delta))
        if not reached <= max_risk.target:
            before = max_risk.measure(bound_bookings(booked, max_risk.rates, delta))
            raise BudgetError(
                f"release {booking.release!r}: with it, attacks on a unit could reach {reached:g} "
                f"(without it {before:g}, by {ledger}), above max_risk {max_risk}. Write a "
                "smaller epsilon, or raise max_risk"
            )


def compose_bookings(bookings: Sequence[Booking], delta: float) -> Spent:
    """Computes the sum of releases from one dataset, for the unit that pays most."""
    check_delta(delta)
    choices, searched = _list_choices(bookings)
    most, exact = max(_price_parts(parts, delta) for parts in choices)
    return Spent(epsilon=round_up(most), exact=exact and searched, entries=len(bookings))


def bound_bookings(bookings: Sequence[Booking], rates: Sequence[float], delta: float) -> Allowed:
    """Bounds attacks on all releases from one dataset together, for the unit most at risk.

    True positive rates are bounded at the false positive rates `rates`; `delta` is of a search.
    """
    check_delta(delta)
    choices, _ = _list_choices(bookings)
    bounds = [_bound_parts(parts, rates, delta) for parts in choices]
    return Allowed(
        balanced_accuracy=max(each.balanced_accuracy for each in bounds),
        true_positives=tuple(
            max(values) for values in zip(*(each.true_positives for each in bounds), strict=True)
        ),
        exact=len(bounds) == 1 and bounds[0].exact and not any(part.bounded for part in choices[0]),
    )


def _bound_parts(parts: Sequence[Part], rates: Sequence[float], delta: float) -> Allowed:
    if not parts:
        return Allowed(balanced_accuracy=0.5, true_positives=tuple(rates), exact=True)
    searches = [part.selection for part in parts if part.selection]
    price = round_up(_price_parts(parts, delta)[0]) if searches else math.inf
    return bound_attacks(
        _merge_mechanisms(parts),
        rates,
        searches[0] if searches else None,  # what is known of a search is its price
        delta=delta,
        epsilon=price,
    )


def _list_choices(bookings: Sequence[Booking]) -> tuple[list[list[Part]], bool]:
    """Lists the parts that a unit may pay for, by every choice of one side in each split.

    False if there would be too many lists, so that a single one has the parts of all sides.
    """
    sides = [list(split.values()) for split in _by_split(bookings).values()]
    searched = sum(len(choices) > 1 for choices in sides) <= MOST_SPLITS
    if not searched:
        sides = [[list(itertools.chain(*choices))] for choices in sides]
    choices = [itertools.chain.from_iterable(choice) for choice in itertools.product(*sides)]
    return [_price_meetings(parts) for parts in choices], searched


def _by_split(bookings: Sequence[Booking]) -> dict[str, dict[Side, list[Part]]]:
    splits: dict[str, dict[Side, list[Part]]] = {}
    for booking in bookings:
        chain = booking.place and booking.place.rpartition(" ")[0]
        for part in booking.parts:
            if part.side == "train":  # test results have noise of their own
                part = replace(part, chain=chain)
            splits.setdefault(booking.split, {}).setdefault(part.side, []).append(part)
    return splits


def _price_meetings(parts: Iterable[Part]) -> list[Part]:
    """Prices running sums of k cohorts of one chain at a root of k less noise.

    Then k times the sum of 1 / sigma^2 is no less than the square of the sum of 1 / sigma. Running
    sums are released once and without sampling; all else has noise of its own.
    """
    parts = list(parts)
    cohorts = Counter(part.chain for part in parts)
    priced = []
    for part in parts:
        if part.chain is not None and (times := cohorts[part.chain]) > 1:
            mechanisms = (
                item.scale_noise(times**-0.5) if item.count == item.sample_rate == 1 else item
                for item in part.mechanisms
            )
            part = replace(part, mechanisms=tuple(mechanisms), bounded=True)
        priced.append(part)
    return priced


def _price_parts(parts: Sequence[Part], delta: float) -> tuple[float, bool]:
    """Bounds the epsilon of parts that read the same rows; True if it is exact."""
    if len(parts) == 1:
        # On the grid of its plan, so that a release that meets a limit alone is not refused.
        grid = pld_interval(max(parts[0].epsilon, delta))
        mechanisms, selection = parts[0].mechanisms, parts[0].selection
        price = compute_epsilon(mechanisms, delta, "pld", interval=grid, selection=selection)
        return price, exactly_priced(mechanisms, selection) and not parts[0].bounded
    if any(part.selection for part in parts):
        fits = [
            Fits(mechanisms=part.mechanisms, times=1, selection=part.selection) for part in parts
        ]
        return all_together(fits, delta)
    merged = _merge_mechanisms(parts)
    exact = exactly_priced(merged) and not any(part.bounded for part in parts)
    return compute_epsilon(merged, delta, "pld"), exact


def _merge_mechanisms(parts: Sequence[Part]) -> list[Mechanism]:
    """Returns the mechanisms of parts; merges equal mechanisms to save time."""
    alike: Counter[Mechanism] = Counter()
    for item in (item for part in parts for item in part.mechanisms):
        key = replace(item, name="", released="", sensitivity=1.0, count=1)
        alike[key] += item.count
    return [item.repeat_count(count) for item, count in alike.items()]


@contextmanager
def tell_of_entry(entry: str) -> Iterator[None]:
    """Adds to an error that an entry was booked and counts."""
    try:
        yield
    except WaitingError:
        raise
    except DpprobeError as error:
        told = type(error)(f"{error}. Entry {entry} stays open, and counts")
        told.passes = False  # another try would refuse
        raise told from error


def describe_ledger(ledger: Ledger, *, delta: float | None) -> str:
    """Lists the entries of a ledger, remedies, and their sum at a delta, by default the largest."""
    entries = ledger.read_entries()
    if not entries:
        return f"{ledger.path}: no release is recorded"
    bookings = [entry.booking for entry in entries if entry.is_counted]
    lines = [str(ledger.path), "", *_list_table(entries), ""]
    if bookings:
        largest = max(part.delta for booking in bookings for part in booking.parts)
        lines += _list_sums(bookings, largest if delta is None else delta)
    else:
        lines += ["Total epsilon 0: all entries are abandoned."]
    if bookings and (others := ledger.list_added()):
        spent = ledger.compute_spent(largest if delta is None else delta)
        lines += [
            f"With the ledgers of {', '.join(others)}, which same_units_as adds to this one: "
            f"{count_noun(spent.entries, 'entry')}, {_format_bound(spent.epsilon, spent.exact)}"
        ]
    for entry in entries:
        if entry.state == "open":
            lines += ["", f"{entry.booking.release}: {ledger.explain_open(entry)}"]
    return "\n".join(lines)


def _list_table(entries: Sequence[Entry]) -> list[str]:
    titles = ("entry", "release", "state", "booked", "training unit", "test unit", "reason")
    rows = [titles, *(_make_row(entry) for entry in entries)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _make_row(entry: Entry) -> tuple[str, ...]:
    prices = {
        part.side: f"epsilon {part.epsilon:g}, delta {part.delta:g}" for part in entry.booking.parts
    }
    return (
        str(entry.number),
        entry.booking.release,
        entry.state,
        entry.booked,
        prices.get("train", "-"),
        prices.get("test", "-"),
        entry.reason or "",
    )


def _list_sums(bookings: Sequence[Booking], delta: float) -> list[str]:
    total = compose_bookings(bookings, delta)
    units = {"train": "a training unit", "test": "a test unit"}
    lines = [
        f"Total at delta {delta:g} over {count_noun(total.entries, 'entry')} (abandoned releases "
        f"do not count), for one {bookings[0].unit}:"
    ]
    for split, sides in _by_split(bookings).items():
        for side, parts in sides.items():
            price, exact = _price_parts(_price_meetings(parts), delta)
            lines.append(
                f"  {units[side]} of split {split}: {_format_bound(round_up(price), exact)}"
            )
    return [*lines, f"  any unit: {_format_bound(total.epsilon, total.exact)}"]


def _format_bound(price: float, exact: bool) -> str:
    return f"epsilon {price:g} ({'exact' if exact else 'upper bound'})"
