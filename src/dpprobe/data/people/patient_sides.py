"""Keeps all images of a patient (or another unit) in the same split, train or test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, model_validator

from dpprobe.counted_nouns import count_noun
from dpprobe.data.options import NamedPeople
from dpprobe.data.people.group_columns import Group, list_groups
from dpprobe.data.people.person_names import (
    explain_rounding,
    find_alike_people,
    find_equal_numbers,
)
from dpprobe.data.train_test_split import SplitName, SplitOptions

Unit = Literal["image", "patient"]
# For each split of a source, the table (train or test) per row; None for a row left out.
Sides = dict[SplitName, list[SplitName | None]]
Fault = tuple[str, str]  # kind of problem, detail


class UnitOptions(SplitOptions):
    """Options of a source that may have a column of patients."""

    unit_column: str | None = Field(
        None,
        min_length=1,
        description="Column of the person (or other unit) that an image shows, such as a patient. "
        "If several columns qualify, name the coarsest column, such as patients instead of visits. "
        "A patient in both splits is an error. If dpprobe splits the images, all images of a "
        "patient are in one split. Each patient counts once in test metrics.",
    )
    unit: Unit | None = Field(
        None,
        description="Unit of privacy: patient (all images of one value of `unit_column`) or image. "
        "Default: the study's privacy.unit, or else patient if `unit_column` is set.",
    )
    max_images_per_patient: int | None = Field(
        None,
        ge=1,
        description="Train on at most this many images of each patient, in the order of rows. "
        "`max_images_per_patient` is public. With `unit: image`, the epsilon of a whole patient is "
        "computed for the maximum number of images.",
    )

    @model_validator(mode="after")
    def _check_unit(self) -> UnitOptions:
        if self.unit_column is None:
            for name, value in (
                ("unit", None if self.unit == "image" else self.unit),
                ("max_images_per_patient", self.max_images_per_patient),
            ):
                if value is not None:
                    raise ValueError(
                        f"{name}: {value} needs a unit_column; name the column with the patient "
                        "of each image"
                    )
        return self

    def has_test(self) -> bool:
        return "test" in self.list_splits()

    def list_splits(self) -> tuple[SplitName, ...]:
        """Returns the splits that have separate files."""
        return ("train", "test") if getattr(self, "test", None) is not None else ("train",)

    def list_groups(self) -> dict[str, Group]:
        """Maps each group column of the split tables to the source column with its values."""
        return list_groups(getattr(self, "group_columns", ()))

    def unit_types(self, split: SplitName) -> set[str]:  # noqa: ARG002
        """Returns NumPy's names of the types in which files store a split's patients, if known."""
        return set()

    def list_rounding(self, units: Mapping[SplitName, Iterable[str]]) -> list[str]:
        """Lists warnings about the splits' patients whose numbers a type of float has rounded."""
        stored: dict[str, dict[str, None]] = {}
        for split, names in units.items():
            for kind in self.unit_types(split):
                stored.setdefault(kind, {}).update(dict.fromkeys(names))
        lines = (explain_rounding(names, kind) for kind, names in sorted(stored.items()))
        return [line for line in lines if line is not None]

    def named_people(self) -> NamedPeople:
        return NamedPeople(
            column=self.unit_column,
            unit=self.unit,
            most_images=self.max_images_per_patient,
            groups=tuple(self.list_groups()),
        )


@dataclass(frozen=True, kw_only=True)
class RowIndex:
    """The names and labels that decide whether rows are train or test, without images.

    Attributes:
      rows: the number of rows of each split; only "train" if dpprobe splits the rows.
      ids: returns a split's ids; called only if ids decide the split or a column names them.
      labels: returns a split's labels, in the form of `class_units.list_pairs`.
      units: the unit of each row, if a column has units.
      groups: returns a split's values of a source column that `group_columns` names.
      names: returns a split's paths of images; None if rows have no paths.
      wrong_labels: returns a split's labels that are no class, with their places; None if labels
        are numbers.
    """

    rows: Mapping[SplitName, int]
    ids: Callable[[SplitName], Sequence[str]]
    labels: Callable[[SplitName], Sequence[int | Sequence[int] | None]]
    units: Mapping[SplitName, Sequence[str]] | None
    groups: Callable[[SplitName, str], Sequence[Any]] = lambda *_: ()
    names: Callable[[SplitName], Sequence[str]] | None = None
    wrong_labels: Callable[[SplitName], Sequence[tuple[str, str]]] | None = None

    def list_faults(self, sides: Sides, column: str | None) -> dict[SplitName, list[list[Fault]]]:
        """Lists problems of units in `column`, per row; none without units."""
        if self.units is None or column is None:
            return {name: [[] for _ in range(count)] for name, count in self.rows.items()}
        tables: dict[SplitName, set[str]] = {"train": set(), "test": set()}
        for split, names in self.units.items():
            for name, side in zip(names, sides[split], strict=True):
                if side is not None:
                    tables[side].add(name)
        wrong = find_mistaken(tables)
        return {name: list_faults(part, wrong, column) for name, part in self.units.items()}


def assign_sides(options: UnitOptions, index: RowIndex) -> Sides:
    """Assigns each row of a source's splits to a table; None if the row is left out."""
    rows, units = index.rows, index.units
    sides: Sides = {name: [name] * count for name, count in rows.items()}
    if not options.has_test():
        # Classes are ignored with `split_by: id`; rows with several labels count as one class.
        classes = [0] * rows["train"]
        if options.split_by == "class":
            classes = [each if isinstance(each, int) else -1 for each in index.labels("train")]
        names = index.ids("train") if units is None else units["train"]
        tested = options.choose_test(names, classes)
        sides["train"] = ["test" if flag else "train" for flag in tested]
    if units is not None:
        # All rows of a patient are in one split, so test rows never count towards the maximum.
        kept = first_of_each(units["train"], options.max_images_per_patient)
        sides["train"] = [
            None if side == "train" and not keep else side
            for side, keep in zip(sides["train"], kept, strict=True)
        ]
    return sides


def first_of_each(units: Iterable[str], most: int | None) -> list[bool]:
    """Returns True for the first `most` rows of each unit; for all rows if `most` is None."""
    seen: Counter[str] = Counter()
    kept = []
    for unit in units:
        seen[unit] += 1
        kept.append(most is None or seen[unit] <= most)
    return kept


def find_mistaken(sides: Mapping[SplitName, Iterable[str]]) -> dict[str, str]:
    """Maps each faulty unit to an explanation, the end of a sentence.

    A unit is faulty if the other table has the same or a similar name. Two spellings of a number,
    such as 12.0 and 12, are faulty too.
    """
    tables = {side: set(units) for side, units in sides.items()}
    known = sorted(set().union(*tables.values()))
    faults = {
        name: f"is {other!r} in other rows" for name, other in find_equal_numbers(known).items()
    }
    for group in find_alike_people(known):
        for name in group:
            for other in group:
                if any((name in table) != (other in table) for table in tables.values()):
                    faults.setdefault(name, f"looks like {other!r} in the other split")
    both = set.intersection(*tables.values()) if len(tables) > 1 else set()
    return faults | dict.fromkeys(both, "has images in both splits")


def warn_of_shared_ids(column: str, train: Iterable[str], test: Iterable[str]) -> list[str]:
    """Returns a warning if ids of `column`, the option `id_column`, are in both splits; else none.

    Equal ids are no error, because files may number their items separately.
    """
    shared = sorted({*train} & {*test} - {""})
    if not shared:
        return []
    return [
        f"id_column: {column}: {count_noun(len(shared), 'id')} in train and in test, such as "
        f"{shared[0]!r}: keep each item in one split, or give different items different ids. A "
        "release that measures on test units refuses equal ids"
    ]


def list_faults(units: Iterable[str], wrong: Mapping[str, str], column: str) -> list[list[Fault]]:
    """Lists problems of units, per row: a blank, or a fault from `find_mistaken`."""
    blank = ("patient", f"no patient: {column} is blank, a word like nan, or rounded like 1.23E+12")
    known = {unit: [("patient", f"patient {unit!r} {fault}")] for unit, fault in wrong.items()}
    return [[*known.get(unit, ())] if unit else [blank] for unit in units]
