"""Recognises shared units of releases by keyed hashes, and refuses contradictory bookings.

    <data_dir>/units.key                            32 random bytes, mode 0600, created once
    <data_dir>/<dataset>/units-<hash>.safetensors   the hashes of all bookings with equal hashes

A unit's hash is the first 64 bits of HMAC-SHA256 under the key. Hashes cover units' names in a
column, after normalisation (`person_names`), and images' bytes and pixels.
Files of hashes are private: with the key, hashes reveal whether a guessed image is in the data.
Hashes depend on private examples, so hashes may cause a refusal but never change a published value.

Two unrelated hashes are equal with probability 2^-64; a collision between two sets of a million
hashes has probability 5e-8.

**Other ledgers.** A unit that is in two datasets spends epsilon in the releases of both datasets.
Ledgers of two datasets are added up if bookings connect the datasets by `same_units_as`, directly
or through other datasets. A booking is refused if its units are also in a ledger that is not added
up, if the release reads an image on both sides of its split, or if a unit was on the other side in
an earlier entry of an equal split.

**Images that were not compared.** Images without hashes of their pixels may be the images of any
other release in another file format. If split tables lack hashes of pixels (`verify: hash`), the
booking decodes and hashes the images. If images or tables are missing, `Booking.pixels` is False,
and `ledger_prices` adds up both sides of the split. A release of another dataset is then refused,
unless a person declares that the units of both datasets are the same, or different.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from dpprobe.data.people.person_names import list_spellings
from dpprobe.data.table import SPLITS, SplitTable, read_info
from dpprobe.errors import DataError, PrivacyError
from dpprobe.files.array_files import pack_arrays, read_arrays
from dpprobe.files.atomic_writes import write_private
from dpprobe.release.ledger.ledger_file import Booking, Entry
from dpprobe.study.reserved_names import LEDGER_FILE

logger = logging.getLogger("dpprobe")

FORMAT, FORMAT_VERSION = "dpprobe-units", 1
KEY_FILE = "units.key"
_KEY_BYTES, _HASH_BYTES = 32, 8
_LOST = "restore the file from a backup: without it, no dataset in this data_dir is released"
_NONE = np.zeros(0, np.uint64)

# Hashes by the keys "<split>.names" and "<split>.images"; each array is sorted, without duplicates.
Hashes = Mapping[str, npt.NDArray[np.uint64]]


class Contents(NamedTuple):
    """Hashes of images' bytes and pixels, by split; `pixels` is True if no hash is missing."""

    images: Mapping[str, set[bytes]]
    pixels: bool


@dataclass(frozen=True, kw_only=True)
class Units:
    """The units of a release.

    Attributes:
      names: the name of each row's unit, by split; empty without a column of units.
      tables: the folder of the rows' split tables; None if the tables are missing.
    """

    names: Mapping[str, Iterable[str]]
    tables: Path | None

    @cached_property
    def contents(self) -> Contents:
        """The hashes of images; decodes images whose split tables have no hashes of pixels."""
        if self.tables is None:
            return Contents({}, pixels=False)
        tables = {split: SplitTable(self.tables / f"{split}.parquet") for split in SPLITS}
        bytes_only = {split: table.image_hashes() for split, table in tables.items()}
        pixels: Mapping[str, list[bytes | None]] = {}
        try:
            pixels = {split: table.pixel_hashes() for split, table in tables.items()}
        except DataError as error:
            logger.warning("pixels of images are not compared: %s", error)
        images = {
            split: {each for each in (*hashes, *pixels.get(split, ())) if each is not None}
            for split, hashes in bytes_only.items()
        }
        return Contents(images, pixels=bool(pixels))

    def hash_with(self, key: bytes) -> Hashes:
        """Computes the units' hashes: a few microseconds per row, after `contents` is known."""
        values = {
            f"{split}.names": {
                each.encode() for name in set(names) for each in list_spellings(name)
            }
            for split, names in self.names.items()
        }
        values |= {f"{split}.images": images for split, images in self.contents.images.items()}
        return {part: _hash_all(key, part.partition(".")[2], values[part]) for part in values}


def _hash_all(key: bytes, kind: str, values: Iterable[bytes]) -> npt.NDArray[np.uint64]:
    digests = (hmac.digest(key, kind.encode() + value, "sha256")[:_HASH_BYTES] for value in values)
    return np.unique(np.frombuffer(b"".join(digests), np.uint64))


def share_units(first: Hashes, second: Hashes, kind: Literal["names", "images"]) -> bool:
    """Returns True if two releases share a hash of names or of images, in any splits."""
    ours, theirs = (
        np.concatenate([_NONE, *(one[part] for part in one if part.endswith(kind))])
        for one in (first, second)
    )
    return bool(np.isin(ours, theirs).any())


def count_moved(first: Hashes, second: Hashes) -> int:
    """Counts the images and the spellings of names that are on different sides in two releases.

    An image or name on both sides of a release's split belongs to two units, and is not counted.
    """

    def only(hashes: Hashes, kind: str, side: str, other: str) -> npt.NDArray[np.uint64]:
        here, there = (hashes.get(f"{each}.{kind}", _NONE) for each in (side, other))
        return np.setdiff1d(here, there)

    return sum(
        len(np.intersect1d(only(first, kind, *sides), only(second, kind, *sides[::-1])))
        for kind in ("images", "names")
        for sides in (SPLITS, SPLITS[::-1])
    )


def count_paying_twice(
    first: Hashes, first_sides: Collection[str], second: Hashes, second_sides: Collection[str]
) -> int:
    """Counts images that spend epsilon on one side of `first` and on the other of `second`.

    The total counts one side per split. `first_sides` and `second_sides` are the sides that each
    release reads. If `first` is `second`, counts the images on both sides of one release.
    """
    return sum(
        len(np.intersect1d(first.get(f"{one}.images", _NONE), second.get(f"{other}.images", _NONE)))
        for one, other in (SPLITS, SPLITS[::-1])
        if one in first_sides and other in second_sides
    )


def find_tables(folder: Path, fingerprint: str | None = None) -> Path | None:
    """Returns the folder if it has all split tables, with `fingerprint` if given; else None."""
    try:
        made = read_info(folder / "dataset.json").fingerprint
    except DataError:
        return None
    whole = all((folder / f"{split}.parquet").is_file() for split in SPLITS)
    return folder if whole and fingerprint in (None, made) else None


def load_key(data_dir: Path, *, used: bool) -> bytes:
    """Reads or creates the key of a data_dir; the caller must hold a lock.

    Raises DataError for a damaged key, and for a missing key if ledgers have hashes (`used`).
    """
    path = data_dir / KEY_FILE
    if not path.exists():
        if used:
            raise DataError(f"{path}: missing, but ledgers have hashes computed with it; {_LOST}")
        write_private(path, secrets.token_bytes(_KEY_BYTES))
    if len(key := path.read_bytes()) != _KEY_BYTES:
        raise DataError(f"{path}: {len(key)} bytes, not {_KEY_BYTES}; {_LOST}")
    return key


def write_hashes(folder: Path, hashes: Hashes, key: bytes) -> str:
    """Writes the file of hashes into a dataset's folder; returns its SHA-256."""
    described = {"format": FORMAT, "format_version": FORMAT_VERSION, "key": _mark_key(key)}
    content = pack_arrays(hashes, described)
    digest = hashlib.sha256(content).hexdigest()
    if not (path := _path_of(folder, digest)).exists():
        write_private(path, content)
    return digest


def read_hashes(folder: Path, digest: str, key: bytes) -> Hashes:
    """Reads a booking's hashes; raises DataError for damaged hashes or another key's hashes."""
    path = _path_of(folder, digest)
    try:
        if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise DataError("the file differs from its ledger's record")
        described, hashes = read_arrays(path, kind=FORMAT, version=FORMAT_VERSION)
        if described["key"] != _mark_key(key):
            raise DataError(f"computed with another key than {KEY_FILE}")
    except (OSError, ValueError, KeyError, DataError) as error:
        raise DataError(f"{path}: cannot be used ({error}); {_LOST}") from error
    return hashes


def _mark_key(key: bytes) -> str:
    """Returns a text that identifies a key, and reveals nothing else about the key."""
    return hmac.digest(key, b"key", "sha256").hex()


def _path_of(folder: Path, digest: str) -> Path:
    return folder / f"units-{digest[:16]}.safetensors"


# refusals


def refuse_moved(
    ledger: Path, counting: Sequence[Entry], booking: Booking, hashes: Hashes, key: bytes
) -> None:
    """Refuses images on both sides of the split, in this booking or across earlier entries."""
    sides = {part.side for part in booking.parts}
    if count_paying_twice(hashes, sides, hashes, sides):
        raise PrivacyError(
            f"release {booking.release!r}: an image is in both splits (equal bytes or pixels), and "
            "the epsilons of head and test result would add up for it. The ledger counts one of "
            "the two for each unit. Remove the copy from one split, or measure nothing on test "
            "images"
        )
    for entry in counting:
        if entry.booking.split != booking.split or entry.booking.units is None:
            continue
        theirs = read_hashes(ledger.parent, entry.booking.units, key)
        read = {part.side for part in entry.booking.parts}
        if count_moved(hashes, theirs) or count_paying_twice(hashes, sides, theirs, read):
            raise PrivacyError(
                f"release {booking.release!r}: images or units have changed sides since entry "
                f"{entry.number} of {ledger} ({entry.booking.release}) of the equal split "
                f"({booking.split}), because units were renamed, or copies removed. The total "
                "would count only one split for each unit; choose another split_seed, so that both "
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
    """Refuses units that also occur in ledgers outside the total; ignores names in `unlike`."""
    data = booking.identity.partition(" ")[2]  # identifies equal features without split tables
    known = dict[Any, tuple[Hashes, bool]]()  # most entries of a dataset have equal units
    for name, entry in [(each, entry) for each in others for entry in others[each]]:
        folder, units = ledger.parent.parent / name, (name, entry.booking.units)
        if units not in known:
            known[units] = _find_hashes(folder, entry.booking, key)
        theirs, pixels = known[units]
        same = bool(data) and entry.booking.identity.partition(" ")[2] == data
        what, verb = "images", "are also"
        remedy = f", or other_units_than: [{name}] if different units have the same names"
        if same or share_units(hashes, theirs, "images"):
            remedy = ""
        elif name in unlike:
            continue
        elif share_units(hashes, theirs, "names"):
            what = "names of units"
        elif booking.pixels and pixels:
            continue
        else:
            verb = "may also be"
            remedy = (
                f", or other_units_than: [{name}] if no image is in both. Their pixels were not "
                "compared, because split tables or images are missing; with both in place, "
                "dpprobe compares them"
            )
        raise PrivacyError(
            f"release {booking.release!r}: {what} of dataset {ledger.parent.name} {verb} in "
            f"entry {entry.number} of {folder / LEDGER_FILE} ({entry.booking.release}), but "
            f"the two ledgers are not added up; write `same_units_as: {name}` under "
            f"datasets.{ledger.parent.name}{remedy}"
        )


def _find_hashes(folder: Path, booking: Booking, key: bytes) -> tuple[Hashes, bool]:
    """Returns the hashes of an earlier booking, and True if they cover the pixels of its images.

    If the booking has no hashes of pixels, hashes of the dataset's current tables are added, if the
    tables contain all images of the booking. Entries of `PrivateClassifier` name no units, so
    current tables are used.
    """
    then = read_hashes(folder, booking.units, key) if booking.units else {}
    if booking.pixels:
        return then, True
    tables = Units(names={}, tables=find_tables(folder))
    now = tables.hash_with(key)
    if booking.units is None:
        return now, tables.contents.pixels or tables.tables is None
    earlier, current = (
        np.concatenate([_NONE, *(each[part] for part in each if part.endswith("images"))])
        for each in (then, now)
    )
    covered = tables.contents.pixels and bool(len(earlier)) and np.isin(earlier, current).all()
    return ({**then, **now}, True) if covered else (then, False)


def refuse_other_unit(ledger: Path, added: Mapping[str, list[Entry]], booking: Booking) -> None:
    for name, entry in [(each, entry) for each in added for entry in added[each]]:
        # Two datasets may have different names for the column of units.
        column = name == ledger.parent.name and entry.booking.column != booking.column
        if entry.booking.unit != booking.unit or column:
            raise PrivacyError(
                f"release {booking.release!r}: its unit of privacy is {unit_words(booking)}, but "
                f"the unit of entry {entry.number} of {ledger.parent.parent / name / LEDGER_FILE} "
                f"({entry.booking.release}) is {unit_words(entry.booking)}, and epsilons for "
                "different units cannot be added up; use the unit of the earlier entry"
            )


def unit_words(booking: Booking) -> str:
    of = "" if booking.column is None else f" (a value of {booking.column})"
    return f"{booking.unit}{of}"
