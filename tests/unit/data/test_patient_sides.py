"""One function assigns rows to tables; it does what csv, parquet and tar sources each did alone."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from dpprobe.data import csv_manifest, parquet, webdataset
from dpprobe.data.patient_sides import RowIndex, UnitOptions, assign_sides
from dpprobe.data.train_test_split import SplitName, choose_by_id, choose_test, count_test

SOURCES: dict[str, tuple[type[UnitOptions], dict[str, Any]]] = {
    "csv": (
        csv_manifest.Options,
        {"root": ".", "train": "a.csv", "path_column": "path", "label_column": "label",
         "class_names": ("a", "b", "c")},
    ),
    "parquet": (parquet.Options, {"train": "a.parquet"}),
    "tar": (webdataset.Options, {"train": "a.tar", "class_names": ("a", "b", "c")}),
}  # fmt: skip
TEST_FILES = {"csv": "b.csv", "parquet": "b.parquet", "tar": "b.tar"}
SIZES = (1, 2, 3, 7, 40)


def options_of(source: str, **values: Any) -> UnitOptions:
    cls, usual = SOURCES[source]
    return cls.model_validate(usual | values)


def reference(
    options: UnitOptions, ids: Sequence[str], classes: Sequence[int], units: Sequence[str] | None
) -> list[SplitName | None]:
    """The sides of rows that are split here, stated plainly: units in the place of rows."""
    fraction, seed = options.fraction_and_seed()
    names = ids if units is None else units
    if options.split_by == "id":
        tested = choose_by_id(names, fraction=fraction, seed=seed)
    elif units is None:
        tested = choose_test(ids, classes, fraction=fraction, seed=seed)
    else:
        whose: dict[str, list[int]] = {}
        for unit, label in zip(units, classes, strict=True):
            whose.setdefault(unit, []).append(label)
        most = [Counter(sorted(labels)).most_common(1)[0][0] for labels in whose.values()]
        chosen = choose_test(list(whose), most, fraction=fraction, seed=seed)
        sides_of = dict(zip(whose, chosen, strict=True))
        tested = [sides_of[unit] for unit in units]
    sides: list[SplitName | None] = []
    trained: Counter[str] = Counter()
    for row, test in enumerate(tested):
        if units is not None and not test:
            trained[units[row]] += 1
        most_rows = options.max_images_per_patient
        out = units is not None and not test and most_rows and trained[units[row]] > most_rows
        sides.append("test" if test else None if out else "train")
    return sides


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("split_by", ["class", "id"])
@pytest.mark.parametrize("fraction", [0.01, 0.2, 0.5, 0.99])
def test_rows_and_patients_are_split_as_stated(source: str, split_by: str, fraction: float) -> None:
    for rows, seed, most in itertools.product(SIZES, (0, 3), (None, 1, 2)):
        ids = [f"image {row}" for row in range(rows)]
        classes = [row * row % 3 for row in range(rows)]
        for units in (None, [f"p{row // 3 % 5}" for row in range(rows)], [""] * rows):
            values: dict[str, Any] = {
                "split_by": split_by, "test_fraction": fraction, "split_seed": seed,
            }  # fmt: skip
            if units is not None:
                values |= {"unit_column": "patient", "max_images_per_patient": most}
            options = options_of(source, **values)
            named: dict[SplitName, Sequence[str]] | None = None
            if units is not None:
                named = {"train": units}
            index = RowIndex(
                rows={"train": rows}, ids=partial(list, ids), units=named,
                labels={"train": classes}.__getitem__,
            )  # fmt: skip
            sides = assign_sides(options, index)
            assert sides == {"train": reference(options, ids, classes, units)}
            if units is None and split_by == "class":
                counts = Counter(classes)
                tested = sum(count_test(count, fraction) for count in counts.values())
                assert sides["train"].count("test") == tested


def fail(*_: object) -> Any:
    raise AssertionError("nothing asks for it")


@pytest.mark.parametrize("source", SOURCES)
def test_the_source_s_own_test_split_stays_and_nothing_is_read(source: str) -> None:
    own = {"test": TEST_FILES[source]}
    rows: dict[SplitName, int] = {"train": 4, "test": 3}
    options = options_of(source, **own)
    sides = assign_sides(options, RowIndex(rows=rows, ids=fail, labels=fail, units=None))
    assert sides == {"train": ["train"] * 4, "test": ["test"] * 3}
    options = options_of(source, **own, unit_column="patient", max_images_per_patient=2)
    units: dict[SplitName, Sequence[str]] = {"train": ["a", "b", "a", "a"], "test": ["c"] * 3}
    sides = assign_sides(options, RowIndex(rows=rows, ids=fail, labels=fail, units=units))
    assert sides == {"train": ["train", "train", "train", None], "test": ["test"] * 3}


@pytest.mark.parametrize("source", SOURCES)
def test_only_what_decides_is_read(source: str) -> None:
    ids, units = ["a", "b", "c"], ["p", "p", "q"]
    by_id = options_of(source, split_by="id")
    index = RowIndex(rows={"train": 3}, ids=lambda: ids, labels=fail, units=None)
    assign_sides(by_id, index)
    patients = options_of(source, unit_column="patient")
    index = RowIndex(
        rows={"train": 3}, ids=fail, labels=lambda _: [0, 1, 1], units={"train": units}
    )
    assign_sides(patients, index)
