"""Recognises shared units of releases by keyed hashes, and refuses contradictory bookings.

    <data_dir>/units.key                            32 random bytes, mode 0600, created once
    <data_dir>/<dataset>/units-<hash>.safetensors   the hashes of all bookings with equal hashes

A unit's hash is the first 64 bits of HMAC-SHA256 under the key. Hashes cover names in columns of
units and ids, after normalisation (`person_names`), images' bytes and pixels, and each vector.
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

**Vectors.** The hash of a row of vectors covers the names that a study gives to the vectors, so
each vector is also hashed by itself. Two rows may share a vector, such as the word counts of two
notes, but not the others. So vectors are compared between datasets, and show that a row has changed
sides, but equal vectors in both splits do not make their rows copies.

**Entries of older versions** have no hashes of single vectors, nor of ids if they name patients.
They are taken from the dataset's current tables, if these tables have the entry's images. Else a
release of vectors is refused, because the entry may have the same vectors under other names.
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
from dpprobe.data.sources.embedding_rows import hash_vectors
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

# Hashes by the keys "<split>.<part>" with the parts of `_PARTS`; each array is sorted, without
# duplicates. Entries of images, and of older versions, have no part `vectors`.
Hashes = Mapping[str, npt.NDArray[np.uint64]]
Kind = Literal["names", "images"]
_PARTS: Mapping[Kind, tuple[str, ...]] = {"names": ("names",), "images": ("images", "vectors")}


class Contents(NamedTuple):
    """Hashes of images or vectors, by split.

    Attributes:
      images: hashes of images' bytes and pixels, or of all vectors of a row with their names.
      pixels: True if no hash of pixels is missing.
      vectors: hashes of single vectors; empty for images.
    """

    images: Mapping[str, set[bytes]]
    pixels: bool
    vectors: Mapping[str, set[bytes]] = {}


@dataclass(frozen=True, kw_only=True)
class Units:
    """The units of a release.

    Attributes:
      names: the names of units and rows in columns, by split; empty without such columns.
      tables: the folder of the rows' split tables; None if the tables are missing.
      decode: False to read only the hashes of pixels that the tables have; then nobody knows
        whether some are missing, and `contents.pixels` is False.
      of_fit: True for a fit in Python, which may read rows of both splits as training rows.
    """

    names: Mapping[str, Iterable[str]]
    tables: Path | None
    decode: bool = True
    of_fit: bool = False

    @classmethod
    def of_tables(cls, tables: Path | None, *, decode: bool = True, of_fit: bool = False) -> Units:
        """Returns the units in split tables; None stands for missing tables."""
        names = {}
        if tables is not None:
            named = _names_rows(read_info(tables / "dataset.json").source)
            for split, table in _open_tables(tables).items():
                names[split] = list_names(table.read_units(), table.read_ids(), named=named)
        return cls(names=names, tables=tables, decode=decode, of_fit=of_fit)

    @cached_property
    def contents(self) -> Contents:
        """The hashes of images or vectors; decodes images without hashes of pixels (`decode`)."""
        if self.tables is None:
            return Contents({}, pixels=False)
        tables = _open_tables(self.tables)
        bytes_only = {split: table.image_hashes() for split, table in tables.items()}
        pixels: Mapping[str, list[bytes | None]] = {}
        try:
            pixels = {
                split: table.pixel_hashes(decode=self.decode) for split, table in tables.items()
            }
        except DataError as error:
            logger.warning("pixels of images are not compared: %s", error)
        images = {
            split: {each for each in (*hashes, *pixels.get(split, ())) if each is not None}
            for split, hashes in bytes_only.items()
        }
        vectors = {
            split: set(hash_vectors(table)) if table.holds_vectors else set()
            for split, table in tables.items()
        }
        return Contents(images, pixels=bool(pixels) and self.decode, vectors=vectors)

    def hash_with(self, key: bytes) -> Hashes:
        """Computes the units' hashes: a few microseconds per row, after `contents` is known."""
        if key not in self._hashed:
            self._hashed[key] = self._hash_parts(key)
        return self._hashed[key]

    @cached_property
    def _hashed(self) -> dict[bytes, Hashes]:
        return {}

    def _hash_parts(self, key: bytes) -> Hashes:
        contents = self.contents
        values = {
            f"{split}.names": {
                each.encode() for name in set(names) for each in list_spellings(name)
            }
            for split, names in self.names.items()
        }
        values |= {f"{split}.vectors": vectors for split, vectors in contents.vectors.items()}
        # Without empty parts, equal images have equal files, also of older versions, so that
        # `ledger_prices.list_unsure` recognises them.
        values = {part: some for part, some in values.items() if some}
        values |= {f"{split}.images": images for split, images in contents.images.items()}
        hashes = {part: _hash_all(key, part.partition(".")[2], values[part]) for part in values}
        if not self.of_fit:
            return hashes
        parts = dict.fromkeys(part.partition(".")[2] for part in hashes)
        return {f"train.{part}": np.unique(_join(hashes, part)) for part in parts}


def list_names(units: Iterable[str] | None, ids: Iterable[str], *, named: bool) -> list[str]:
    """Lists the names of rows' units, and the rows' ids if a column has them (`named`).

    Other ids are no names: paths change with folders, and positions with earlier rows.
    """
    return [*(units or ()), *(ids if named else ())]


def _names_rows(source: Mapping[str, Any]) -> bool:
    """Returns True if stored options of a dataset, or of its layout, have an `id_column`."""
    layout = source.get("layout")
    table = layout if isinstance(layout, Mapping) else source
    return table.get("id_column") is not None


def _open_tables(folder: Path) -> dict[str, SplitTable]:
    return {split: SplitTable(folder / f"{split}.parquet") for split in SPLITS}


def _join(hashes: Hashes, *parts: str) -> npt.NDArray[np.uint64]:
    """Joins the hashes of some parts, of both splits."""
    return np.concatenate([_NONE, *(hashes[p] for p in hashes if p.partition(".")[2] in parts)])


def _hash_all(key: bytes, kind: str, values: Iterable[bytes]) -> npt.NDArray[np.uint64]:
    digests = (hmac.digest(key, kind.encode() + value, "sha256")[:_HASH_BYTES] for value in values)
    return np.unique(np.frombuffer(b"".join(digests), np.uint64))


def share_units(first: Hashes, second: Hashes, kind: Kind) -> bool:
    """Returns True if two releases share a name, or an image or vector, in any splits."""
    ours, theirs = (_join(one, *_PARTS[kind]) for one in (first, second))
    return bool(np.isin(ours, theirs).any())


def count_moved(first: Hashes, second: Hashes) -> int:
    """Counts images, vectors and spellings of names on different sides in two releases.

    What is on both sides of a release's split belongs to two units, and is not counted.
    """

    def only(hashes: Hashes, part: str, side: str, other: str) -> npt.NDArray[np.uint64]:
        here, there = (hashes.get(f"{each}.{part}", _NONE) for each in (side, other))
        return np.setdiff1d(here, there)

    return sum(
        len(np.intersect1d(only(first, part, *sides), only(second, part, *sides[::-1])))
        for part in (*_PARTS["images"], *_PARTS["names"])
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
    of_fit: bool = False,
) -> None:
    """Refuses units that also occur in ledgers outside the total; ignores names in `unlike`.

    `of_fit` words the remedy for a fit in Python.
    """
    data = booking.identity.partition(" ")[2]  # identifies equal features without split tables
    known = dict[Any, _Earlier]()  # most entries of a dataset have equal units
    has_vectors = len(_join(hashes, "vectors")) > 0
    for name, entry in [(each, entry) for each in others for entry in others[each]]:
        folder, units = ledger.parent.parent / name, (name, entry.booking.units)
        if units not in known:
            known[units] = _find_hashes(folder, entry.booking, key)
        theirs = known[units]
        same = bool(data) and entry.booking.identity.partition(" ")[2] == data
        what, verb, why = "vectors" if has_vectors else "images", "are also", ""
        if same or share_units(hashes, theirs.hashes, "images"):
            other = ""
        elif name in unlike:
            continue
        elif share_units(hashes, theirs.hashes, "names"):
            what, other = "names of units or ids", "different units have the same names"
        elif not (booking.pixels and theirs.pixels):
            verb, other = "may also be", "no image is in both"
            why = (
                ". Their pixels were not compared, because split tables or images are missing; "
                "with both in place, dpprobe compares them"
            )
        elif has_vectors and not theirs.vectors:
            verb, other = "may also be", "no item is in both"
            why = (
                ". An older version recorded the entry and did not hash each vector by itself, and "
                "the split tables of its data are missing"
            )
        else:
            continue
        raise PrivacyError(
            f"release {booking.release!r}: {what} of dataset {ledger.parent.name} {verb} in "
            f"entry {entry.number} of {folder / LEDGER_FILE} ({entry.booking.release}), but "
            "the two ledgers are not added up; write "
            f"{_word_remedy(ledger.parent.name, name, other, of_fit=of_fit)}{why}"
        )


def _word_remedy(dataset: str, other: str, condition: str, *, of_fit: bool) -> str:
    if of_fit:
        same, unlike = f"Budget(..., same_units_as={other!r})", f"other_units_than=[{other!r}]"
    else:
        same = f"`same_units_as: {other}` under datasets.{dataset}"
        unlike = f"other_units_than: [{other}]"
    return f"{same}, or {unlike} if {condition}" if condition else same


class _Earlier(NamedTuple):
    """The hashes of an earlier booking, and True if they cover all pixels, and all vectors."""

    hashes: Hashes
    pixels: bool
    vectors: bool


def _find_hashes(folder: Path, booking: Booking, key: bytes) -> _Earlier:
    """Returns the hashes of an earlier booking.

    If a booking has no hashes of pixels or of vectors (as for images, and in older versions),
    hashes of the dataset's current tables are added, if the tables and the booking have the same
    images. Fits of older versions, and fits without tables, name no units, so current tables are
    used.
    """
    then = read_hashes(folder, booking.units, key) if booking.units else {}
    has_vectors = any(part.endswith(".vectors") for part in then)
    if booking.pixels and has_vectors:
        return _Earlier(then, pixels=True, vectors=True)
    # Pixels that the booking already covers are not decoded again.
    tables = Units.of_tables(find_tables(folder), decode=not booking.pixels)
    now = tables.hash_with(key)
    if booking.units is None:
        whole = tables.contents.pixels or tables.tables is None
        return _Earlier(now, pixels=whole, vectors=True)
    earlier, current = _join(then, "images"), _join(now, "images")
    kept, known = np.isin(earlier, current), np.isin(current, earlier)
    compared = bool(booking.pixels) or tables.contents.pixels
    covered = compared and bool(len(kept)) and bool(kept.all())
    if covered or (len(known) and known.all()):
        parts = {*then, *now}
        then = {p: np.union1d(then.get(p, _NONE), now.get(p, _NONE)) for p in parts}
    # A dataset has either images or vectors.
    of_images = bool(known.any()) and not len(_join(now, "vectors"))
    return _Earlier(
        then,
        pixels=bool(booking.pixels) or covered,
        vectors=has_vectors or covered or of_images,
    )


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
