"""Counts the units of privacy of each class in train and test, without reading an image.

A unit is a patient if a column names the patients, otherwise an image. The counts are private: they
are shown on the owner's screen, but never written to a file.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

from dpprobe.counted_nouns import count_noun
from dpprobe.data.file_states import hash_file_states
from dpprobe.data.options import ClassUnits, DatasetOptions
from dpprobe.data.people.alike_names import hint_class, text_of
from dpprobe.data.people.companions import NO_COMPANIONS, FoundCompanions, look_for_companions
from dpprobe.data.people.group_columns import TRUTH, find_spellings
from dpprobe.data.people.patient_sides import (
    Fault,
    RowIndex,
    UnitOptions,
    assign_sides,
    warn_of_shared_ids,
)
from dpprobe.data.people.patient_sides import Sides as PatientSides
from dpprobe.data.people.person_names import name_warnings
from dpprobe.data.problems import KINDS
from dpprobe.data.rare_classes import RARE
from dpprobe.data.train_test_split import SplitName

TEXTS_SHOWN = 3  # the most texts shown of labels that are no class
FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.5)  # test fractions that a message compares
Sides = Counter[tuple[str | None, int]]  # (side, class number) -> units
_Dataset = TypeVar("_Dataset", bound=DatasetOptions)


@dataclass(frozen=True, kw_only=True)
class SplitCounts:
    """A split's counts, for planning: rows of both tables, training patients, units per class.

    Attributes:
      faults: errors in the names of units and groups, one line each.
      warnings: lines about names of units and rows that a run accepts with a warning.
      companions: images whose names are those of companions.
      label_fault: a line on labels that are no class; None if there are none.
    """

    rows: tuple[int, int]
    patients: int | None
    classes: ClassUnits | None
    faults: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    companions: FoundCompanions = NO_COMPANIONS
    label_fault: str | None = None


_counted: dict[tuple[object, ...], SplitCounts] = {}


class CountedRows(UnitOptions):
    """Options of a source whose rows, units and classes can be counted before a run."""

    @abstractmethod
    def read_index(self) -> RowIndex:
        """Reads the columns that decide which rows are train or test; reads no image."""

    @abstractmethod
    def class_names_or_labels(self) -> tuple[str, ...] | None:
        """Returns the names of the classes, or of the labels; None if they have no names."""

    def count_rows(self) -> tuple[int, int]:
        return self._count_split().rows

    def count_units(self) -> int | None:
        return None if self.unit_column is None else self._count_split().patients

    def count_class_units(self) -> ClassUnits | None:
        return self._count_split().classes

    def judge_units(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns a run's errors and warnings about names of units, rows and groups."""
        counts = self._count_split()
        return counts.faults, counts.warnings

    def judge_labels(self) -> str | None:
        """Returns a line about labels that are no class; None without such labels."""
        return self._count_split().label_fault

    def _count_split(self) -> SplitCounts:
        """Counts rows and units of the split; caches counts until options or files change."""
        key = (type(self), self.model_dump_json(), hash_file_states(self.list_source_files()))
        if key not in _counted:
            _counted[key] = count_split(self, self.read_index())
        return _counted[key]


def count_split(options: CountedRows, index: RowIndex) -> SplitCounts:
    """Counts the rows of both tables, the training patients, and the units of each class."""
    by_file = assign_sides(options, index)
    split = [*chain(*by_file.values())]
    rows = Counter(split)
    whose = None if index.units is None else [*chain(*index.units.values())]
    names, classes = options.class_names_or_labels(), None
    if names is not None:
        pairs = [*list_pairs(chain(*map(index.labels, index.rows)))]

        def count_at(at: CountedRows) -> Sides:
            sides = split if at is options else [*chain(*assign_sides(at, index).values())]
            return count_pairs(pairs, sides, whose)

        classes = count_classes(options, names, count_at)
        shares = share_units(pairs, split, whose)
        parts = {each: shares["test", number] for number, each in enumerate(names)}
        if any(abs(parts[each] - classes.test[each]) > 1e-6 for each in names):
            classes = replace(classes, test_shares=parts)
    trained = (unit for unit, side in zip(whose or (), split, strict=False) if side == "train")
    return SplitCounts(
        rows=(rows["train"], rows["test"]),
        patients=None if whose is None else len(set(trained)),
        classes=classes,
        faults=(
            *_list_faults(options, index.list_faults(by_file, options.unit_column)),
            *_list_spellings(options, index, by_file),
        ),
        warnings=(
            *name_warnings(whose or ()),
            *options.list_rounding(index.units or {}),
            *_list_shared_ids(options, index),
        ),
        companions=count_companions(index, by_file),
        label_fault=None if names is None else _describe_wrong_labels(index, names),
    )


def _list_shared_ids(options: CountedRows, index: RowIndex) -> list[str]:
    """Lists a warning if a column names rows equally in both splits of a source."""
    if (column := options.named_ids()) is None or "test" not in index.rows:
        return []  # ids are unique within a split
    return warn_of_shared_ids(column, index.ids("train"), index.ids("test"))


def _describe_wrong_labels(index: RowIndex, names: Sequence[str]) -> str | None:
    """Describes labels that are no class: some texts with their places, and a remedy."""
    found: list[tuple[str, str]] = []
    for split in index.rows:
        if index.wrong_labels is not None:
            found += index.wrong_labels(split)
            continue
        for row, label in enumerate(index.labels(split)):
            if isinstance(label, int) and not 0 <= label < len(names):
                found.append((str(label), f"{split} row {row}"))
    if not found:
        return None
    first = dict(reversed(found))
    texts = list(dict.fromkeys(text for text, _ in found))
    shown = ", ".join(f"{text!r} ({first[text]})" for text in texts[:TEXTS_SHOWN])
    more = f" and {len(texts) - TEXTS_SHOWN:,} other texts" if len(texts) > TEXTS_SHOWN else ""
    told = "row has a label that matches" if len(found) == 1 else "rows have labels that match"
    return f"{len(found):,} {told} no class: {shown}{more}; {_mend_labels(texts, names)}"


def _mend_labels(texts: Sequence[str], names: Sequence[str]) -> str:
    if any(text in ("-1", "-1.0") for text in texts):
        return (
            "-1 often marks hidden labels, as in the test split of a public challenge: use a split "
            "with labels, or leave these rows out"
        )
    if any(text.rpartition("=")[2].strip() in names for text in texts if "=" in text):
        return "write only the part behind `=`, such as by `extract`"
    if all(text.lower() in TRUTH for text in texts):
        written = ", ".join(f"'{text}': NAME" for text in texts)
        return f"write the name of each label: `class_names: {{{written}}}`"
    hint = next(filter(None, (hint_class(text, names) for text in texts)), "")
    return f"correct the labels, or class_names{hint}"


def count_companions(index: RowIndex, by_file: PatientSides) -> FoundCompanions:
    """Finds companions among the rows in use."""
    if index.names is None:
        return NO_COMPANIONS
    return look_for_companions(
        [*chain(*map(index.names, by_file))],
        [*chain(*by_file.values())],
        units=None if index.units is None else [*chain(*map(index.units.__getitem__, by_file))],
    )


def _list_faults(
    options: CountedRows, faults: Mapping[SplitName, list[list[Fault]]]
) -> tuple[str, ...]:
    details = Counter(detail for row in chain(*faults.values()) for _, detail in row)
    if not details:
        return ()
    shown = ", ".join(f"{each} ({count_noun(details[each], 'row')})" for each in [*details][:3])
    more = f", and {len(details) - 3} more" if len(details) > 3 else ""
    return (
        f"unit_column: {options.unit_column}: {shown}{more}; a run refuses these rows, so keep "
        "each patient's images in one split, under one name",
    )


def _list_spellings(options: CountedRows, index: RowIndex, sides: PatientSides) -> Iterator[str]:
    """Yields an error per group that has two spellings among the rows in use."""
    used = {
        name: {
            text_of(value): None
            for split, of_rows in sides.items()
            for value, side in zip(index.groups(split, group.column), of_rows, strict=False)
            if side is not None and text_of(value)
        }
        for name, group in options.list_groups().items()
        if not group.bins and not group.ignore_case
    }
    for fault in find_spellings(used):
        yield f"group_columns: {fault}; {KINDS['group'][2]}, because a run refuses them"


def count_classes(
    options: _Dataset, names: Sequence[str], count: Callable[[_Dataset], Sides]
) -> ClassUnits:
    """Counts units per class, also for larger test fractions if a class has few test units."""
    sides = count(options)

    def side(of: Sides, name: str) -> dict[str, int]:
        return {each: of[name, number] for number, each in enumerate(names)}

    test = side(sides, "test")
    written = getattr(options, "test_fraction", 1.0)
    larger = [] if options.has_test() or min(test.values()) >= RARE else FRACTIONS
    return ClassUnits(
        train=side(sides, "train"),
        test=test,
        test_at={
            each: side(count(options.model_copy(update={"test_fraction": each})), "test")
            for each in larger
            if each > written
        },
    )


def list_pairs(labels: Iterable[int | Sequence[int] | None]) -> Iterator[tuple[int, int]]:
    """Yields (row, class number) for each row and each of its classes.

    `labels` has one class number per row, or one 0 or 1 per class; None if missing.
    """
    for row, label in enumerate(labels):
        if isinstance(label, int):
            yield row, label
        elif label is not None:
            yield from ((row, number) for number, one in enumerate(label) if one == 1)


def count_pairs(
    pairs: Iterable[tuple[int, int]],
    sides: Sequence[str | None],
    units: Sequence[str] | None,
) -> Sides:
    """Counts units by split and class.

    Args:
      pairs: (row, class number), as from `list_pairs`.
      sides: "train" or "test" for each row; None for a row that is left out.
      units: the patient of each row; None if each row is a unit.
    """
    if units is None:
        return Counter((sides[row], label) for row, label in pairs)
    each_once = {(sides[row], label, units[row]) for row, label in pairs}
    return Counter((side, label) for side, label, _ in each_once)


def share_units(
    pairs: Iterable[tuple[int, int]],
    sides: Sequence[str | None],
    units: Sequence[str] | None,
) -> Counter[tuple[str | None, int]]:
    """Sums rows' weights by split and class; each of a unit's m rows in a split counts 1 / m."""
    whose = range(len(sides)) if units is None else units
    sizes, shares = Counter(zip(sides, whose, strict=True)), Counter[tuple[str | None, int]]()
    for row, label in pairs:
        shares[sides[row], label] += 1 / sizes[sides[row], whose[row]]  # type: ignore[assignment]
    return shares
