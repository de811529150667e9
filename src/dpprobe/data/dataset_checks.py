"""Checks a dataset as a whole: copies of images, classes, sizes, similar names."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dpprobe.counted_nouns import count_noun
from dpprobe.data.dataset_sizes import needs_every_class
from dpprobe.data.people.companions import look_for_companions
from dpprobe.data.people.copy_counts import CopyCounter
from dpprobe.data.people.group_columns import MISSING_CODE, find_spellings, group_name, warn_of_code
from dpprobe.data.people.patient_sides import warn_of_shared_ids
from dpprobe.data.people.person_names import name_warnings
from dpprobe.data.problems import SHOWN, Problems
from dpprobe.data.rare_classes import rare_words

if TYPE_CHECKING:
    from dpprobe.data.options import DatasetOptions

logger = logging.getLogger("dpprobe")

CopyCounts = dict[str, int | str]


class CheckedImage(NamedTuple):
    """One row's image after it was read.

    Attributes:
      sha256: the hash of the image's bytes; None if the file cannot be read.
      pixels: a hash of the image's pixels; None if the image was not decoded.
      used_bits: the result of `image_files.count_used_bits`; None if the image was not decoded.
      data: the image's bytes, if they are kept.
      fault: the kind and the detail of a problem; None without a problem.
    """

    row: int
    id: str
    path: str
    origin: str
    sha256: bytes | None
    pixels: bytes | None
    used_bits: tuple[str, int] | None
    data: bytes | None
    fault: tuple[str, str] | None


def add_problem(
    problems: Problems, kind: str, detail: str, *, split: str, image: CheckedImage
) -> None:
    """Adds a problem of one row, or a note on one row."""
    detail = f"{image.origin}: {detail}" if image.origin else detail
    problems.add_problem(kind, detail, split=split, row=image.row, row_id=image.id, path=image.path)


class _First(NamedTuple):
    """The first row of a split among rows with equal images."""

    row: int
    id: str
    sha256: bytes
    unit: str | None
    label: Any

    def say_what_agrees(self, image: CheckedImage) -> str:
        return "bytes" if image.sha256 == self.sha256 else "pixels"


class Checks:
    """Checks all rows of a dataset together.

    Attributes:
      twins: the number of images that are in both splits.
      untested: the classes without test rows.
    """

    def __init__(
        self,
        class_names: Sequence[str],
        options: DatasetOptions,
        problems: Problems,
        *,
        strict_test: bool,
        units: bool,
    ) -> None:
        self.twins = 0
        self.untested: list[str] = []
        self._class_names = class_names
        self._options = options
        self._problems = problems
        needed = strict_test or needs_every_class(options)
        self._strict_test = needed and options.missing_classes == "error"
        # The first row of each image, by hash of the image's pixels (or bytes, if not decoded).
        self._seen: dict[str, dict[bytes, _First]] = {"train": {}, "test": {}}
        self._copies = {"train": CopyCounter(), "test": CopyCounter()}
        self._by_unit = units
        self._decoded = True
        self._contradictions = 0
        # "grey" or "colours" -> the number of bits used by each 16-bit image
        self._used_bits: dict[str, Counter[int]] = defaultdict(Counter)
        self._groups: dict[str, dict[str, None]] = {}
        self._units: dict[str, None] = {}
        # Names, sides and units of rows, if the source does not look for companions itself.
        self._names: list[tuple[str, str, str]] = []
        self._id_column = options.named_ids()
        self._ids: dict[str, list[str]] = {"train": [], "test": []}
        self._needs_names = not (options.holds_vectors or options.judges_companions())

    def look_at(
        self,
        split: str,
        images: Iterable[CheckedImage],
        labels: Sequence[Any],
        columns: Mapping[str, Any],
    ) -> None:
        """Checks a batch of rows; `columns` has `group_*` and, if patients are named, `unit`."""
        units = columns.get("unit") or [None] * len(labels)
        for image, label, unit in zip(images, labels, units, strict=True):
            self._look_for_twins(split, image, label, unit)
            if self._id_column is not None:
                self._ids[split].append(image.id)
            if self._needs_names:
                self._names.append((image.id, split, unit or image.id))
            if image.used_bits is not None:
                kind, bits = image.used_bits
                self._used_bits[kind][bits] += 1
        for name, values in columns.items():
            known = self._units if name == "unit" else self._groups.setdefault(name, {})
            known.update(dict.fromkeys(value for value in values if value))

    def _look_for_twins(
        self, split: str, image: CheckedImage, label: Any, unit: str | None
    ) -> None:
        if image.sha256 is None or image.fault is not None:
            return
        key = image.pixels or image.sha256
        self._decoded &= image.pixels is not None
        seen, other = self._seen[split], "test" if split == "train" else "train"
        first, twin = seen.get(key), self._seen[other].get(key)
        if first is None:
            seen[key] = _First(image.row, image.id, image.sha256, unit, label)
        else:
            self._note_copy(split, key, first, image, label, unit)
        if twin is not None:
            self.twins += first is None
            detail = f"the same {twin.say_what_agrees(image)} as {other} id {twin.id}"
            detail += self._describe_contradiction(twin, label)
            if self._options.duplicates == "error":
                add_problem(self._problems, "duplicate", detail, split=split, image=image)
            elif self.twins <= SHOWN:
                logger.warning("%s row %d (id %s): %s", split, image.row, image.id, detail)

    def _describe_contradiction(self, first: _First, label: Any) -> str:
        if label == first.label:
            return ""
        names = " and ".join(
            label_words(value, self._class_names) for value in (label, first.label)
        )
        return f"; same picture, other label: {names}"

    def _note_copy(
        self,
        split: str,
        key: bytes,
        first: _First,
        image: CheckedImage,
        label: Any,
        unit: str | None,
    ) -> None:
        agrees = first.say_what_agrees(image)
        detail = f"the same {agrees} as {split} row {first.row} (id {first.id})"
        if unit != first.unit:
            detail += f", of another patient: {unit!r} and {first.unit!r}"
        detail += (contradiction := self._describe_contradiction(first, label))
        self._contradictions += bool(contradiction) and split == "train"
        add_problem(self._problems, "copy", detail, split=split, image=image)
        self._copies[split].add_copy(key, unit, first_unit=first.unit)

    def count_copies(self, split: str) -> dict[str, CopyCounts]:
        """Counts copies among the rows of a split, with images and with patients as units.

        In both counts, `rows` is the number of rows that repeat another unit's image, `most` is the
        largest number of units with the same image, and `by` is how images were compared.
        """
        by = "bytes and pixels" if self._decoded else "bytes"
        copies = self._copies[split]
        counts: dict[str, CopyCounts] = {"image": {**copies.by_row, "by": by}}
        if self._by_unit:
            counts["patient"] = {**copies.by_unit, "by": by}
        return counts

    def finish_checks(self, sizes: Mapping[str, tuple[int, np.ndarray]]) -> None:
        """Checks classes, sizes and names; `sizes` has rows per split, in total and by class."""
        if self.twins and self._options.duplicates == "warn":
            logger.warning("%s in train and in test", count_noun(self.twins, "image"))
        self._warn_of_copies()
        self._warn_of_companions()
        self._warn_of_dark_images()
        self._check_spelling()
        for name, (rows, per_class) in sizes.items():
            if rows == 0:
                self._problems.add_problem("class", "no row", split=name)
            else:
                self._check_classes(name, per_class)
        train, test = (sizes[name][1].tolist() for name in ("train", "test"))
        if rare := rare_words(self._class_names, train, test):
            logger.warning("%s", rare)
        counts = {name: (f"{name}: ", rows, "rows") for name, (rows, _) in sizes.items()}
        counts["classes"] = ("", len(self._class_names), "classes")
        for name, (where, count, unit) in counts.items():
            expected = getattr(self._options.expected_counts(), name)
            if expected not in (None, count):
                self._problems.add_problem("size", f"{where}{count} {unit}, {expected} expected")

    def _warn_of_copies(self) -> None:
        if self._contradictions:
            logger.warning(
                "train: %s with an image of another row, but with another label: correct the "
                "label or remove the rows; %s lists them",
                count_noun(self._contradictions, "row"),
                self._problems.path,
            )
        for split, counter in self._copies.items():
            self._warn_of_copies_in(split, counter)

    def _warn_of_copies_in(self, split: str, counter: CopyCounter) -> None:
        rows, most = counter.by_row["rows"], counter.by_row["most"]
        if not rows:
            return
        logger.warning(
            "%s: %s with the image of an earlier row; one image occurs %d times. If the unit of "
            "privacy is an image, an image that occurs k times has only the protection of a group "
            "of k images, about k times the epsilon%s: keep one row per image. %s lists all pairs",
            split,
            count_noun(rows, "row"),
            most,
            " of what a release measures on test images" if split == "test" else "",
            self._problems.path,
        )
        if self._by_unit and counter.by_unit["rows"]:
            logger.warning(
                "%s: %s with the image of another patient: if both patients are one person, use "
                "one name in unit_column; otherwise the guarantee for a patient does not cover the "
                "copy",
                split,
                count_noun(counter.by_unit["rows"], "row"),
            )

    def _warn_of_companions(self) -> None:
        """Warns of companions if the source's names were unknown before the tables were made."""
        if not self._names:
            return
        names, sides, units = (list(column) for column in zip(*self._names, strict=True))
        found = look_for_companions(names, sides, units=units)
        if found.words:
            logger.warning(
                "%s. Each counts as an image of its own: remove them from the source, or name the "
                "common picture in unit_column",
                found.describe("masks, previews or copies", found.words),
            )

    def _warn_of_dark_images(self) -> None:
        for kind, counts in self._used_bits.items():
            bits = max(counts)
            if not 0 < bits < 16:
                continue
            remedy = (
                f"If white is {2**bits - 1:,}, write `grey_bits: {bits}` in each backbone. "
                "Otherwise write the number of bits of the camera, such as 12, or 16 to keep "
                "65,535 as white"
                if kind == "grey"
                else "Convert them to colours of 8 bits, unless they are dark"
            )
            logger.warning(
                "%s of 16-bit %s: no value is above %s, although white is 65,535. %s",
                count_noun(counts.total(), "image"),
                kind,
                f"{2**bits - 1:,}",
                remedy,
            )

    def _check_spelling(self) -> None:
        for fault in find_spellings(self._groups):
            self._problems.add_problem("group", fault)
        for column, values in self._groups.items():
            for value in filter(MISSING_CODE.fullmatch, values):
                warn_of_code(group_name(column), value, "is a separate group")
        lines = name_warnings(self._units)
        if self._id_column is not None:
            lines = [*lines, *warn_of_shared_ids(self._id_column, **self._ids)]
        for line in lines:
            logger.warning("%s", line)

    def _check_classes(self, split: str, per_class: np.ndarray) -> None:
        names = [self._class_names[k] for k in np.flatnonzero(per_class == 0).tolist()]
        if split == "test":
            self.untested = names
            if names and not self._strict_test:
                logger.warning(
                    "test: %d of %d classes have no test row (%s), so they are not tested",
                    len(names),
                    len(per_class),
                    ", ".join(names[:SHOWN]),
                )
                return
        for name in names:
            kind = "class" if split == "train" else "untested"
            self._problems.add_problem(kind, f"no row of class {name}", split=split)


def label_words(label: Any, class_names: Sequence[str]) -> str:
    """Returns the name of a label, or of all labels of a row with several."""
    if isinstance(label, list):
        return "+".join(n for n, has in zip(class_names, label, strict=False) if has) or "none"
    known = isinstance(label, int) and 0 <= label < len(class_names)
    return class_names[label] if known else str(label)
