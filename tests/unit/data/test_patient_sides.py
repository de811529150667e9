"""One function assigns rows to tables; it does what csv, parquet and tar sources each did alone."""

from __future__ import annotations

from typing import Any

import pytest

from dpprobe.data import csv_manifest, parquet, webdataset
from dpprobe.data.patient_sides import RowIndex, UnitOptions, assign_sides

SOURCES: dict[str, tuple[type[UnitOptions], dict[str, Any]]] = {
    "csv": (
        csv_manifest.Options,
        {"root": ".", "train": "a.csv", "path_column": "path", "label_column": "label",
         "class_names": ("a", "b", "c")},
    ),
    "parquet": (parquet.Options, {"train": "a.parquet"}),
    "tar": (webdataset.Options, {"train": "a.tar", "class_names": ("a", "b", "c")}),
}  # fmt: skip


def options_of(source: str, **values: Any) -> UnitOptions:
    cls, usual = SOURCES[source]
    return cls.model_validate(usual | values)


def fail(*_: object) -> Any:
    raise AssertionError("nothing asks for it")


@pytest.mark.parametrize("source", SOURCES)
def test_only_what_decides_is_read(source: str) -> None:
    ids, units = ["a", "b", "c"], ["p", "p", "q"]
    own = options_of(source, test=SOURCES[source][1]["train"].replace("a.", "b."))
    assign_sides(own, RowIndex(rows={"train": 4}, ids=fail, labels=fail, units=None))
    by_id = options_of(source, split_by="id")
    index = RowIndex(rows={"train": 3}, ids=lambda: ids, labels=fail, units=None)
    assign_sides(by_id, index)
    patients = options_of(source, unit_column="patient")
    index = RowIndex(
        rows={"train": 3}, ids=fail, labels=lambda _: [0, 1, 1], units={"train": units}
    )
    assign_sides(patients, index)
