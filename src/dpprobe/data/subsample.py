"""Chooses the training rows that the option `subsample` keeps.

The name of each row, or of its patient, has a number in [0, 1): the SHA-256 of the public seed and
the name. A fraction (of all rows or of a class) keeps names with numbers below the fraction.
`per_class` keeps the names with the smallest numbers. With the same seed, a larger subsample
contains every smaller one. The choice of test rows uses different hashes.

`fraction` chooses only by the unit's name, so a change to one unit never adds or removes another.
The public number n of kept units depends only on names and the seed. `fractions` also uses labels,
so n reveals a unit's label to somebody who knows everything else. `per_class` ranks units, so one
unit may add or remove another. So `fractions` and `per_class` are only for benchmarks, whose
guarantee covers only the kept rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field, model_validator

from dpprobe.errors import DataError
from dpprobe.options import Options
from dpprobe.shown_text import join_lines

AnyOptions = TypeVar("AnyOptions", bound=Options)

_DIGEST_BITS = 256


def is_below(digest: bytes, fraction: float) -> bool:
    """Returns True if a SHA-256, read as a number in [0, 1), is below a fraction; exact."""
    numerator, denominator = fraction.as_integer_ratio()
    return int.from_bytes(digest) * denominator < numerator << _DIGEST_BITS


def _read_name(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


# The name of a class, which YAML reads as a number if it is digits without quotes.
ClassName = Annotated[str, BeforeValidator(_read_name)]


class Subsample(Options):
    """The training rows of each class that are used; all test rows stay."""

    fraction: float | None = Field(
        None,
        gt=0,
        le=1,
        exclude_if=lambda value: value is None,  # so that older tables stay up to date
        description="Share of all images to keep, by a hash of each image's or patient's name, "
        "regardless of classes. Releases accept only `fraction`.",
    )
    fractions: dict[ClassName, Annotated[float, Field(gt=0, le=1)]] = Field(
        {},
        description="Share to keep of each named class, by a hash of each image's or patient's "
        "name; other classes stay whole.",
    )
    per_class: int | None = Field(
        None,
        ge=1,
        description="The number of images to keep of every class, or of patients if a column names "
        "them.",
    )
    seed: int = Field(
        0,
        ge=0,
        description="Public seed of the chosen part. With one seed, a larger part contains every "
        "smaller part of the images.",
    )

    @model_validator(mode="after")
    def _check_one(self) -> Subsample:
        if sum(map(bool, (self.fraction, self.fractions, self.per_class))) != 1:
            raise ValueError("set exactly one of fraction, fractions and per_class")
        return self

    def explain_labels_used(self) -> str | None:
        """Explains why no guarantee covers the choice of rows, with the remedy; else None."""
        if self.fraction is not None:
            return None
        fault = (
            "per_class ranks the units of a class, so one unit can decide whether another is kept"
        )
        if self.fractions:
            fault = (
                "fractions chooses rows by class, so the public number of rows n would reveal "
                "labels"
            )
        return f"subsample: {fault}; write fraction, one number for all classes"

    def list_faults(self, class_rows: Mapping[str, int]) -> list[str]:
        """Lists faults: unknown classes, and classes with too few rows (or patients)."""
        if unknown := [name for name in self.fractions if name not in class_rows]:
            known = ", ".join([*class_rows][:10]) + (", ..." if len(class_rows) > 10 else "")
            return [
                f"{name!r} is not a class of the dataset; choose from {known}" for name in unknown
            ]
        wanted = self.per_class or 0
        return [
            f"{wanted} of class {name}, but there are {rows}; "
            + (f"use {rows} or fewer" if rows else "add images of this class")
            for name, rows in class_rows.items()
            if wanted > rows
        ]

    def choose_rows(
        self, labels: Sequence[int], names: Sequence[str], class_names: Sequence[str]
    ) -> list[bool]:
        """Returns True for each training row to keep, in order.

        Raises DataError if a class is unknown, has too few rows, or would keep none.

        Args:
          labels: the class number of each row; ignored by `fraction`.
          names: the name of each row's unit, or the row's id if units have no names.
        """
        if self.fraction is not None:
            return [is_below(self._rank_name(name), self.fraction) for name in names]
        members: list[set[str]] = [set() for _ in class_names]
        for label, name in zip(labels, names, strict=True):
            members[label].add(name)
        sizes = {each: len(rows) for each, rows in zip(class_names, members, strict=True)}
        if faults := self.list_faults(sizes):
            raise DataError(join_lines(f"subsample: {fault}" for fault in faults))
        kept = [
            self._choose_members(each, members[place]) for place, each in enumerate(class_names)
        ]
        for each, before, after in zip(class_names, members, kept, strict=True):
            if before and not after:
                raise DataError(
                    f"subsample: fraction {self.fractions[each]:g} selects none of the "
                    f"{len(before)} rows of class {each} with seed {self.seed}; set a larger "
                    "fraction"
                )
        return [name in kept[label] for label, name in zip(labels, names, strict=True)]

    def _choose_members(self, class_name: str, members: Collection[str]) -> Collection[str]:
        if class_name in self.fractions:
            fraction = self.fractions[class_name]
            return {name for name in members if is_below(self._rank_name(name), fraction)}
        if self.per_class is None:
            return members
        ranked = sorted(members, key=lambda name: (self._rank_name(name), name))
        return set(ranked[: self.per_class])

    def _rank_name(self, name: str) -> bytes:
        """Returns the hash by which names are ranked."""
        return hashlib.sha256(f"subsample\n{self.seed}\n{name}".encode()).digest()


def without_subsample(dataset: AnyOptions) -> AnyOptions:
    return dataset.model_copy(update={"subsample": None})
