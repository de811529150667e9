"""The patients, donors or sites of a dataset's images, each only in train or only in test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator

from dpprobe.data import train_test_split
from dpprobe.data.alike_names import find_alike
from dpprobe.data.group_columns import Group, list_groups
from dpprobe.data.person_names import find_equal_numbers
from dpprobe.data.train_test_split import SplitName, SplitOptions

Unit = Literal["image", "patient"]
# For each row of a source's splits, its table (train or test); None for a row that is left out.
Sides = dict[SplitName, list[SplitName | None]]


class UnitOptions(SplitOptions):
    """Options of a source that may have a column of patients."""

    unit_column: str | None = Field(
        None,
        min_length=1,
        description="Column of the person (or other unit) that an image shows, such as a patient. "
        "If several columns qualify, name the coarsest one, which covers the others. A patient in "
        "both splits is an error. If dpprobe makes the split, all images of a patient are on one "
        "side. Each patient counts once in test metrics.",
    )
    unit: Unit | None = Field(
        None,
        description="Unit of privacy: patient (all images of one value of `unit_column`) or image. "
        "If absent: the study's privacy.unit, or else patient if there is a `unit_column`.",
    )
    max_images_per_patient: int | None = Field(
        None,
        ge=1,
        description="Train on at most this many images of each patient, the first ones, and leave "
        "out the others. This number is public. With `unit: image`, the epsilon of a whole patient "
        "is computed for this many images.",
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

    def named_unit(self) -> Unit | None:
        return self.unit

    def unit_name(self) -> str | None:
        return self.unit_column

    def images_per_patient(self) -> int | None:
        return self.max_images_per_patient

    def list_groups(self) -> dict[str, Group]:
        """Maps each group column of the split tables to the source column with its values."""
        return list_groups(getattr(self, "group_columns", ()))

    def group_names(self) -> tuple[str, ...]:
        return tuple(self.list_groups())


@dataclass(frozen=True, kw_only=True)
class RowIndex:
    """Names and labels that decide the side of each row of a source, before any image is read.

    Attributes:
      rows: the number of rows of each split; only "train" if the rows are split here.
      ids: returns the ids of the training split; called only if ids decide the sides.
      labels: returns a split's labels, in the form of `class_units.list_pairs`.
      units: the unit of each row, if a column names it.
    """

    rows: Mapping[SplitName, int]
    ids: Callable[[], Sequence[str]]
    labels: Callable[[SplitName], Sequence[int | Sequence[int] | None]]
    units: Mapping[SplitName, Sequence[str]] | None

    def find_mistaken(
        self, sides: Mapping[SplitName, Sequence[SplitName | None]]
    ) -> dict[str, str]:
        """Finds faulty units in both tables by the function `find_mistaken`."""
        tables: dict[SplitName, set[str]] = {"train": set(), "test": set()}
        for split, names in (self.units or {}).items():
            for name, side in zip(names, sides[split], strict=True):
                if side is not None:
                    tables[side].add(name)
        return find_mistaken(tables)


def assign_sides(options: UnitOptions, index: RowIndex) -> Sides:
    """Assigns each row of a source's splits to a table; None if the row is left out."""
    rows, units = index.rows, index.units
    sides: Sides = {name: [name] * count for name, count in rows.items()}
    if not options.has_test():
        # Classes are ignored with `split_by: id`; rows with several labels count as one class.
        classes = [0] * rows["train"]
        if options.split_by == "class":
            classes = [each if isinstance(each, int) else -1 for each in index.labels("train")]
        if units is None:
            tested = options.choose_test(index.ids(), classes)
        else:
            fraction, seed = options.fraction_and_seed()
            by = options.split_by
            tested = choose_test(units["train"], classes, fraction=fraction, seed=seed, by=by)
        sides["train"] = ["test" if flag else "train" for flag in tested]
    if units is not None:
        # A patient's rows are all train or all test, so test rows are left out of the count.
        kept = first_of_each(units["train"], options.max_images_per_patient)
        sides["train"] = [
            None if side == "train" and not keep else side
            for side, keep in zip(sides["train"], kept, strict=True)
        ]
    return sides


def choose_test(
    units: Sequence[str],
    strata: Sequence[int],
    *,
    fraction: float,
    seed: int,
    by: train_test_split.SplitBy = "class",
) -> list[bool]:
    """Chooses test rows by a split of the units: all rows of a unit are on one side.

    By class, a unit's stratum is the most frequent class of its rows, or the smallest of equally
    frequent ones. With `split_by: id`, a hash of the unit's name decides.
    """
    if by == "id":
        return train_test_split.choose_by_id(units, fraction=fraction, seed=seed)
    classes: dict[str, Counter[int]] = {}
    for unit, label in zip(units, strata, strict=True):
        classes.setdefault(unit, Counter())[label] += 1
    most: list[Hashable] = [
        min(counts, key=lambda label: (-counts[label], label)) for counts in classes.values()
    ]
    chosen = train_test_split.choose_test(list(classes), most, fraction=fraction, seed=seed)
    sides = dict(zip(classes, chosen, strict=True))
    return [sides[unit] for unit in units]


def first_of_each(units: Iterable[str], most: int | None) -> list[bool]:
    """Returns True for the first `most` rows of each unit; for all rows if `most` is None."""
    seen: Counter[str] = Counter()
    kept = []
    for unit in units:
        seen[unit] += 1
        kept.append(most is None or seen[unit] <= most)
    return kept


def find_mistaken(sides: Mapping[SplitName, Iterable[str]]) -> dict[str, str]:
    """Maps each faulty unit to its fault, as the end of a sentence.

    A unit is faulty if the unit, or a name that looks alike, is in both tables. Names that are one
    number, such as 12.0 and 12, are faulty too.
    """
    tables = {side: set(units) for side, units in sides.items()}
    known = sorted(set().union(*tables.values()))
    faults = {
        name: f"is {other!r} in other rows" for name, other in find_equal_numbers(known).items()
    }
    for group in find_alike(known):
        for name in group:
            for other in group:
                if any((name in table) != (other in table) for table in tables.values()):
                    faults.setdefault(name, f"looks like {other!r} in the other split")
    both = set.intersection(*tables.values()) if len(tables) > 1 else set()
    return faults | dict.fromkeys(both, "has images in both splits")


def list_faults(
    units: Iterable[str], wrong: Mapping[str, str], column: str
) -> Iterator[list[tuple[str, str]]]:
    """Yields the problems of each row's unit: a blank, or a fault of `find_mistaken`."""
    for unit in units:
        if not unit:
            yield [("patient", f"no patient: {column} is blank, or a word for it such as nan")]
        elif unit in wrong:
            yield [("patient", f"patient {unit!r} {wrong[unit]}")]
        else:
            yield []
