"""The ledger of a dataset: records releases before noise is drawn, and adds up their costs.

Releases publish only the ledger's total epsilon, which is computed from plans, never from private
rows. The ledger's file is private, because the file holds hashes of private data, and times.

**Which entries count.** `book_release` returns after the booking is on the disk, before any noise
of the release is drawn. Every published head has an entry in the ledger. Open and closed entries
count in the total; abandoned entries do not. To abandon an entry, a person must confirm that nobody
has seen the result.

`ledger_prices` adds up epsilons, `ledger_units` compares units, `ledger_file` reads and writes.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from dpprobe.counted_nouns import count_noun
from dpprobe.errors import PrivacyError
from dpprobe.files.atomic_writes import flush_to_disk
from dpprobe.privacy.limits import round_up
from dpprobe.release.ledger.ledger_file import Booking, Content, Entry, LedgerFile, find_named
from dpprobe.release.ledger.ledger_limits import Limits, refuse_excess
from dpprobe.release.ledger.ledger_prices import (
    Spent,
    compose_bookings,
    explain_unsure,
    group_by_split,
    list_unsure,
    price_meetings,
    price_parts,
)
from dpprobe.release.ledger.ledger_units import (
    Units,
    load_key,
    refuse_moved,
    refuse_other_unit,
    refuse_same_units,
    write_hashes,
)
from dpprobe.release.ledger.site_folder import has_sent, lock_folder, site_folder
from dpprobe.shown_text import join_lines
from dpprobe.study.reserved_names import LEDGER_FILE, same_units_fault

logger = logging.getLogger("dpprobe")

SHORTEST_REASON = 5
_SENT = (
    "this site's sums were sent (or perhaps sent, if an earlier version of dpprobe recorded the "
    "entry), and other sites may have the total"
)


class Ledger(LedgerFile):
    """Records the releases of one dataset; raises DataError for a damaged line."""

    @classmethod
    def of_dataset(cls, data_dir: Path, dataset: str) -> Ledger:
        """Returns the ledger of a dataset; its file need not exist."""
        return cls(data_dir / dataset / LEDGER_FILE)

    def book_release(
        self,
        booking: Booking,
        limits: Limits,
        *,
        units: Units | None = None,
        other_units_than: Sequence[str] = (),
        datasets: Collection[str] = (),
        joined_limits: Mapping[str, Limits] | None = None,
    ) -> Entry:
        """Records a release; its noise may be drawn only after `book_release` returns.

        Args:
          units: the release's units; None to compare no units.
          other_units_than: datasets whose units are known to differ, even if names are equal.
          datasets: the study's datasets, which may have no ledger yet.
          joined_limits: limits of other datasets, which hold for those that `same_units_as` joins
            with this dataset: all of them have one total.

        Raises:
          BudgetError: if a limit would be exceeded.
          PrivacyError: if the release's name or place in a chain of cohorts is taken,
            `same_units_as` names no dataset, or the units contradict earlier bookings.
          DataError: for a damaged line in any ledger of the data_dir, or missing unit hashes.
        """
        folder = self.path.parent
        _refuse_link(self.path)
        if units is not None:
            # Images are decoded before ledgers are locked, because decoding may take hours.
            booking = replace(booking, pixels=units.contents.pixels)
        with self._explain_errors():
            if not folder.is_dir():
                folder.mkdir(parents=True, exist_ok=True)
                flush_to_disk(folder.parent)
        with self._lock_ledger(among_all=True) as content:
            ledgers = self._read_ledgers()
            added = self._find_added(ledgers, booking)
            self._refuse_taken(ledgers[self._dataset], booking)
            self._refuse_unknown(ledgers, booking, datasets)
            refuse_other_unit(self.path.absolute(), added, booking)
            _refuse_place(ledgers, booking)
            if units is not None:
                used = any(each.booking.units for listed in ledgers.values() for each in listed)
                key = load_key(self._data_dir, used=used)
                hashes = units.hash_with(key)
                refuse_moved(self.path, ledgers[self._dataset], booking, hashes, key)
                others = {name: ledgers[name] for name in ledgers if name not in added}
                refuse_same_units(
                    self.path.absolute(),
                    others,
                    booking,
                    hashes,
                    key,
                    unlike=other_units_than,
                    of_fit=units.of_fit,
                )
                booking = replace(booking, units=write_hashes(folder, hashes, key))
            self._refuse_excess(ledgers, booking, limits, joined_limits)
            number = len(content.entries) + 1
            self._append_line(content, "book", number, booking=booking.to_dict())
            return content.entries[number]

    def check_room(
        self,
        booking: Booking,
        limits: Limits,
        *,
        joined_limits: Mapping[str, Limits] | None = None,
    ) -> None:
        """Checks the epsilon and unit of a booking as `book_release` does, without recording."""
        _refuse_link(self.path)
        ledgers = self._read_ledgers()
        refuse_other_unit(self.path.absolute(), self._find_added(ledgers, booking), booking)
        self._refuse_excess(ledgers, booking, limits, joined_limits)

    def close_entry(self, number: int, digest: str) -> None:
        """Closes an open entry whose bundle is complete; may be repeated with the same digest."""
        with self._lock_ledger() as content:
            entry = self._find_entry(content, number)
            if entry.state == "closed" and entry.digest == digest:
                return
            self._require_open(entry)
            self._append_line(content, "close", number, digest=digest)

    def record_sending(self, number: int) -> None:
        """Records that a site sends sums of an open entry, which then counts permanently.

        No message may be written before `record_sending` returns. It may be repeated.
        """
        with self._lock_ledger() as content:
            entry = self._find_entry(content, number)
            self._require_open(entry)
            if not entry.sent:
                self._append_line(content, "send", number)

    def abandon_entry(self, number: int, reason: str) -> None:
        """Abandons an open entry, which then no longer counts; refused if its sums were sent.

        The ledger records that sums are sent. A private folder that was lost or restored therefore
        does not matter, except that messages in it also prevent the abandonment, for example if an
        earlier copy of the ledger was restored.
        """
        if len(reason.strip()) < SHORTEST_REASON or not reason.isprintable():
            raise PrivacyError(
                f"reason {reason!r}: must be one line of {SHORTEST_REASON} characters or more"
            )
        with self._lock_ledger() as content, ExitStack() as stack:
            entry = self._find_entry(content, number)
            self._require_open(entry)
            if entry.booking.sites is not None:
                folder = site_folder(self.path.parent, entry.booking.release)
                stack.enter_context(lock_folder(folder))
                if entry.sent or has_sent(folder):
                    raise PrivacyError(
                        f"entry {number} of {self.path} counts permanently: {_SENT}. To begin "
                        "again, all sites need a release with another name"
                    )
            self._append_line(content, "abandon", number, reason=reason.strip())

    def compute_spent(self, delta: float) -> Spent:
        """Computes the total cost of all counted entries to one unit, at any delta."""
        return compose_bookings(self.list_bookings(), delta)

    def list_bookings(self) -> list[Booking]:
        """Lists the bookings of all counted entries, in this and in added ledgers."""
        return self._add_up(self._find_added(self._read_ledgers()))

    def list_added(self) -> list[str]:
        """Lists the other datasets whose ledgers are added to this dataset's total."""
        return [*self._find_added(self._read_ledgers())][1:]

    def _read_ledgers(self) -> dict[str, list[Entry]]:
        """Reads the counted entries of all ledgers of the data_dir, this ledger first."""
        this = {self._dataset: self}
        others = (path.parent for path in sorted(self._data_dir.glob(f"*/{LEDGER_FILE}")))
        ledgers = this | {each.name: Ledger(each / LEDGER_FILE) for each in others} | this
        return {
            name: [entry for entry in ledger.read_entries() if entry.is_counted]
            for name, ledger in ledgers.items()
        }

    def _refuse_excess(
        self,
        ledgers: Mapping[str, list[Entry]],
        booking: Booking,
        limits: Limits,
        joined_limits: Mapping[str, Limits] | None,
    ) -> None:
        """Refuses a booking above a limit of this dataset, or of a dataset with the same total."""
        joined = _find_joined(self._dataset, ledgers, booking)
        booked = self._add_up({name: ledgers[name] for name in ledgers if name in joined})
        refuse_excess(booked, booking, limits, ledger=str(self.path))
        for name, each in (joined_limits or {}).items():
            if name in joined and name != self._dataset:
                other = self.path.parent.parent / name / LEDGER_FILE
                refuse_excess(booked, booking, each, ledger=str(other))

    def _find_added(
        self, ledgers: Mapping[str, list[Entry]], *extra: Booking
    ) -> dict[str, list[Entry]]:
        """Returns the entries of this ledger, then of all ledgers that are added to its total."""
        joined = _find_joined(self._dataset, ledgers, *extra)
        return {name: listed for name, listed in ledgers.items() if name in joined}

    def _add_up(self, added: Mapping[str, list[Entry]]) -> list[Booking]:
        """Lists the bookings, with different split keys for different datasets.

        Datasets with equal keys may name a unit differently, and so put it on different sides.
        """
        return [
            booking if name == self._dataset else replace(booking, split=f"{name}: {booking.split}")
            for name, listed in added.items()
            for booking in (entry.booking for entry in listed)
        ]

    def _refuse_taken(self, counting: Sequence[Entry], booking: Booking) -> None:
        entry = find_named(counting, booking.release)
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
        """Refuses a `same_units_as` that names no known dataset.

        A dataset of the study may have no ledger yet; its later releases are added to this ledger.
        """
        other, where = booking.same_units_as, f"release {booking.release!r}: "
        if fault := same_units_fault(self._dataset, other, {*datasets, *ledgers}, self._data_dir):
            raise PrivacyError(f"{where}{fault}. As written, same_units_as adds up no ledgers")
        if other is not None and other not in ledgers:
            logger.warning(
                "%ssame_units_as: %s: this dataset has no ledger yet, so nothing is added up now, "
                "but its later releases will count with this release. If you meant another "
                "dataset, stop and correct the name",
                where,
                other,
            )

    def _find_entry(self, content: Content, number: int) -> Entry:
        if number not in content.entries:
            raise PrivacyError(
                f"{self.path}: no entry {number!r}; `dpprobe ledger "
                f"{shlex.quote(str(self.path.parent))}` lists all entries"
            )
        return content.entries[number]

    def explain_open(self, entry: Entry) -> str:
        """Explains why an open entry counts, and how to continue or abandon it."""
        if entry.sent:
            return (
                f"entry {entry.number} of {self.path} is open, and counts permanently: {_SENT}. "
                f"Run `dpprobe site sums {entry.booking.release}` to continue; if the sites cannot "
                "finish, all of them need a release with another name"
            )
        return (
            f"entry {entry.number} of {self.path} is open: its job is still running, or died "
            "before its bundle was complete. An open entry counts, because its noise may have been "
            "drawn. If the job is dead and nobody has seen its files, run `dpprobe ledger "
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


def _refuse_link(ledger: Path) -> None:
    """Refuses a linked folder: through its other path, other ledgers would be added up."""
    for path in (ledger.parent, ledger):
        if path.is_symlink():
            data_dir = ledger.parent.parent.absolute()
            raise PrivacyError(
                f"{path}: a link to {path.resolve()}. The total of a dataset depends on the "
                "ledgers in the folders next to it, so move the dataset's folder into "
                f"{data_dir}, or make {data_dir} the link"
            )


def _find_joined(dataset: str, ledgers: Mapping[str, list[Entry]], *extra: Booking) -> set[str]:
    """Returns the datasets that `same_units_as` joins with `dataset`; some have no ledger.

    `extra` are bookings of `dataset` that its ledger does not have.
    """
    bookings = [(dataset, each) for each in extra]
    bookings += [(name, each.booking) for name, listed in ledgers.items() for each in listed]
    pairs = [{name, each.same_units_as} for name, each in bookings if each.same_units_as]
    joined = {dataset}
    while more := set[str]().union(*(pair for pair in pairs if pair & joined)) - joined:
        joined |= more
    return joined


def _refuse_place(ledgers: Mapping[str, list[Entry]], booking: Booking) -> None:
    """Refuses a second release at the same place of a cohort chain: epsilon covers only one."""
    for name, entry in [(each, entry) for each in ledgers for entry in ledgers[each]]:
        if booking.place is not None and entry.booking.place == booking.place:
            place = booking.place.rpartition(" ")[2]
            raise PrivacyError(
                f"release {booking.release!r}: {entry.booking.release} of dataset {name} already "
                f"has place {place} in the chain, whose epsilon covers one release there. Write "
                f"`predecessor: {entry.booking.release}`, or begin a new chain without predecessor"
            )


def describe_ledger(ledger: Ledger, *, delta: float | None) -> str:
    """Describes a ledger: entries, total at `delta` (default: the largest), remedies."""
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
    return join_lines(lines)


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
    for split, sides in group_by_split(bookings).items():
        for side, parts in sides.items():
            price, exact = price_parts(price_meetings(parts), delta)
            lines.append(
                f"  {units[side]} of split {split}: {_format_bound(round_up(price), exact)}"
            )
    lines.append(f"  any unit: {_format_bound(total.epsilon, total.exact)}")
    if unsure := list_unsure(bookings):
        lines += ["", explain_unsure(unsure)]
    return lines


def _format_bound(price: float, exact: bool) -> str:
    return f"epsilon {price:g} ({'exact' if exact else 'upper bound'})"
