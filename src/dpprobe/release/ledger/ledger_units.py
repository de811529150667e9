"""Refuses a booking whose units contradict earlier bookings, in this and in other ledgers.

**Other ledgers.** A unit that is in two datasets spends epsilon in the releases of both datasets.
Ledgers of two datasets are added up if bookings connect the datasets by `same_units_as`, directly
or through other datasets. A booking is refused if its units are also in a ledger that is not added
up (`unit_hashes`). Refusals depend on private examples, so a refusal may stop a release, but never
changes a published total. A booking is also refused if it reads an image on both sides of its
split. It is refused too if a unit was on the other side in an earlier entry of an equal split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpprobe.errors import PrivacyError
from dpprobe.release.ledger.ledger_file import Booking, Entry
from dpprobe.release.ledger.unit_hashes import (
    Hashes,
    Units,
    count_moved,
    count_paying_twice,
    find_tables,
    read_hashes,
    share_units,
)
from dpprobe.study.reserved_names import LEDGER_FILE


def refuse_moved(
    ledger: Path, counting: Sequence[Entry], booking: Booking, hashes: Hashes, key: bytes
) -> None:
    """Refuses images on both sides of the split, in this booking or with an earlier entry."""
    sides = {part.side for part in booking.parts}
    if count_paying_twice(hashes, sides, hashes, sides):
        raise PrivacyError(
            f"release {booking.release!r}: an image is in both splits (equal bytes or pixels), and "
            "would pay for the head and for the test result. The total counts one side for each "
            "unit. Remove the copy from one split, or measure nothing on test images"
        )
    for entry in counting:
        if entry.booking.split != booking.split or entry.booking.units is None:
            continue
        theirs = read_hashes(ledger.parent, entry.booking.units, key)
        read = {part.side for part in entry.booking.parts}
        if count_moved(hashes, theirs) or count_paying_twice(hashes, sides, theirs, read):
            raise PrivacyError(
                f"release {booking.release!r}: images have changed sides since entry "
                f"{entry.number} of {ledger} ({entry.booking.release}) of the equal split "
                f"({booking.split}), because units were renamed, or copies removed. The total "
                "would count only one split for each unit; write another split_seed, so that both "
                "splits count"
            )


def refuse_same_units(
    ledger: Path,
    others: Mapping[str, list[Entry]],
    booking: Booking,
    hashes: Hashes,
    key: bytes,
    *,
    unlike: Sequence[str],
) -> None:
    """Refuses units that ledgers not added up have too; ignores equal names in `unlike` ledgers."""
    data = booking.identity.partition(" ")[2]  # recognises equal features without split tables
    known = dict[Any, Hashes]()  # most entries of a dataset have equal units
    for name, entry in [(each, entry) for each in others for entry in others[each]]:
        folder, units = ledger.parent.parent / name, entry.booking.units
        if (name, units) not in known:
            # Entries of `PrivateClassifier` name no units: hash the dataset's current tables.
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
            f"release {booking.release!r}: {what} of dataset {ledger.parent.name} are also in "
            f"entry {entry.number} of {folder / LEDGER_FILE} ({entry.booking.release}), but "
            f"the two ledgers are not added up; write `same_units_as: {name}` under "
            f"datasets.{ledger.parent.name}{remedy}"
        )


def refuse_other_unit(ledger: Path, added: Mapping[str, list[Entry]], booking: Booking) -> None:
    for name, entry in [(each, entry) for each in added for entry in added[each]]:
        # Two datasets may have different names for the column of units.
        column = name == ledger.parent.name and entry.booking.column != booking.column
        if entry.booking.unit != booking.unit or column:
            raise PrivacyError(
                f"release {booking.release!r}: its unit of privacy is {unit_words(booking)}, "
                f"but that of entry {entry.number} of {ledger.parent.parent / name / LEDGER_FILE} "
                f"({entry.booking.release}) is {unit_words(entry.booking)}, and epsilons for "
                "different units cannot be added up; write the unit of the earlier entry"
            )


def unit_words(booking: Booking) -> str:
    of = "" if booking.column is None else f" (a value of {booking.column})"
    return f"{booking.unit}{of}"
