"""Deterministic splits, by class or by id, for sources without a test set, and their options.

Splits do not depend on the order of rows, or on a random generator's version.

In a split by class, a row's side (train or test) depends on its id, the seed and the ids of its
class. An added row can move another row of its class, because the number of test rows per class is
rounded. A guarantee that starts at the *train* table does not cover moved rows.

In a split by id, a row is test if the SHA-256 of its id and the public seed, read as a number in
[0, 1), is below the fraction. A unit that is added, left out, relabelled or replaced by null rows
moves no other unit. So train and test tables of neighbouring sources differ only in one unit's
rows. All rows of a patient have the patient's name as id. The number of test units is binomial over
seeds, and may be zero for a class.

The split by id needs ids that depend only on their own unit. Positions in a file may be ids,
because in neighbouring sources null rows replace a unit and all other positions stay. But inserting
a row would change the ids of all later rows, and move some of them.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import Field

from dpprobe import json_values
from dpprobe.data.options import DatasetOptions, PublicSplit
from dpprobe.data.subsample import is_below

SplitBy = Literal["class", "id"]
SplitName = Literal["train", "test"]
TestFraction = Annotated[
    float,
    Field(
        gt=0,
        lt=1,
        description="Share of the images, or of the patients, for the test split, if the source "
        "has no test split.",
    ),
]
SplitSeed = Annotated[
    int, Field(ge=0, description="Seed of the split; another seed gives another split.")
]


def count_test(rows: int, fraction: float) -> int:
    """Returns the number of test rows in a class: `fraction` of its rows, rounded.

    There is at least one row for testing and one for training; a class's only row is for training.
    With one more row, there is at most one more test row.
    """
    if rows < 2:
        return 0
    return min(max(math.floor(fraction * rows + 0.5), 1), rows - 1)


def count_rows(class_rows: Iterable[int], fraction: float) -> tuple[int, int]:
    """Counts training and test rows of a split by class."""
    sizes = list(class_rows)
    tested = sum(count_test(rows, fraction) for rows in sizes)
    return sum(sizes) - tested, tested


def choose_by_id(ids: Iterable[str], *, fraction: float, seed: int) -> list[bool]:
    """Returns True for each id whose hash with the seed, in [0, 1), is below the fraction."""
    return [is_below(_hash_rank(seed, each), fraction) for each in ids]


def choose_test(
    names: Sequence[str],
    strata: Sequence[int],
    *,
    fraction: float,
    seed: int,
    by: SplitBy = "class",
) -> list[bool]:
    """Returns True for each test row, in order; rows with the same name are in the same split.

    In a split by class, a name's stratum is the most frequent class of its rows (the smallest of
    equally frequent classes). In each stratum, names are ordered by SHA-256 of (seed, name), and
    the first `count_test` names are for testing.

    Args:
      names: the rows' unique ids, or the names of their units.
      strata: the rows' classes, or a constant to ignore classes; unused in a split by id.
    """
    if by == "id":
        return choose_by_id(names, fraction=fraction, seed=seed)
    most: dict[str, tuple[int, int]] = {}  # name -> (minus the rows of its main class, this class)
    for (name, label), count in Counter(zip(names, strata, strict=True)).items():
        most[name] = min(most.get(name, (0, 0)), (-count, label))
    members: dict[int, list[str]] = {}
    for name, (_, label) in most.items():
        members.setdefault(label, []).append(name)
    tested: set[str] = set()
    for group in members.values():
        group.sort(key=lambda name: _hash_rank(seed, name))
        tested.update(group[: count_test(len(group), fraction)])
    return [name in tested for name in names]


def _hash_rank(seed: int, row_id: str) -> bytes:
    return hashlib.sha256(f"{seed}\n{row_id}".encode()).digest()


class SplitOptions(DatasetOptions):
    """Options of a source for splitting its rows if it has no test split."""

    split_by: SplitBy = Field(
        "class",
        description="Choice of test images if there is no test split. class: takes `test_fraction` "
        "of each class. id: assigns each image, or patient, only by a hash of its name, so no "
        "image can move another image into or out of the test split. Releases need `split_by: id`.",
    )

    def choose_test(self, names: Sequence[str], labels: Sequence[int]) -> list[bool]:
        """Returns True for each test row, in order; names are ids, or units."""
        fraction, seed = self.fraction_and_seed()
        return choose_test(names, labels, fraction=fraction, seed=seed, by=self.split_by)

    def fraction_and_seed(self) -> tuple[float, int]:
        """Returns the options `test_fraction` and `split_seed`, which each source declares."""
        values = self.model_dump(include={"split_seed", "test_fraction"})
        return values["test_fraction"], values["split_seed"]

    def public_split(self) -> PublicSplit:
        return self.describe_split(own_test=self.has_test())

    def describe_split(self, *, own_test: bool) -> PublicSplit:
        """Returns the `public_split` of a source; `own_test` is True if it has a test split.

        The key ends with a short hash of the options that determine ids, train and test rows.
        """
        rule, fault = "source", None
        if not own_test:
            fraction, seed = self.fraction_and_seed()
            rule = f"{self.split_by}, seed {seed}, fraction {fraction}"
            if self.split_by == "class":
                fault = (
                    "split_by: class chooses test rows by their rank within their class, so one "
                    "row can move another row into or out of the test split; write `split_by: id`"
                )
        sides = self.side_options(own_test=own_test)
        written = self.model_dump(mode="json", include=sides, exclude_defaults=True)
        columns = self.model_dump(include={"unit_column", "id_column"}, exclude_none=True)
        return PublicSplit(
            rule=rule,
            key=f"{rule}, options {json_values.hash_value(written)[:12]}" if written else rule,
            follows_names=not own_test and self.split_by == "id" and bool(columns),
            fault=fault,
        )

    def side_options(self, *, own_test: bool) -> set[str]:  # noqa: ARG002
        """Returns the options that determine a row's id, and whether it is train or test."""
        return set()
