"""One function assigns rows to tables; it does what csv, parquet and tar sources each did alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dpprobe.data import csv_manifest, parquet, webdataset
from dpprobe.data.patient_sides import RowIndex, UnitOptions, assign_sides
from dpprobe.data.train_test_split import SplitName

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


def options_of(source: str, **values: Any) -> UnitOptions:
    cls, usual = SOURCES[source]
    return cls.model_validate(usual | values)


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
