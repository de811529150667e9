"""Units of each class on both sides of a split, counted beforehand: as the tables have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpprobe.data import csv_rows
from dpprobe.data.registry import dataset_options
from tests.support.sources import write_manifest

CLASSES = ["cat", "dog", "owl"]
# (patient, class, second label): few owls, and patients of two classes.
ROWS = [
    (f"p{n % 23}", 2 if n % 23 in (1, 5) else n % 2, int(n % 7 == 0)) for n in range(80)
]  # fmt: skip


def write_rows(folder: Path, *, labels: bool = False) -> dict[str, Any]:
    rows = [
        {"path": f"{n}.png", "kind": CLASSES[kind], "who": who, "striped": int(kind == 2),
         "tall": tall}
        for n, (who, kind, tall) in enumerate(ROWS)
    ]  # fmt: skip
    several = {"label_column": None, "class_names": None, "label_columns": ["striped", "tall"]}
    named: dict[str, Any] = several if labels else {"class_names": CLASSES}
    return write_manifest(folder, rows, unit_column="who", **named)


SPLITS = [{"split_by": by, "split_seed": 3, "missing_classes": "warn"} for by in ("id", "class")]


@pytest.mark.parametrize("split", SPLITS, ids=["id", "class"])
@pytest.mark.parametrize("labels", [False, True], ids=["classes", "labels"])
def test_larger_fractions_are_proposed_for_rare_classes(
    labels: bool, split: dict[str, Any], tmp_path: Path
) -> None:
    options = dataset_options(write_rows(tmp_path, labels=labels) | split)
    counts = options.count_class_units()
    assert counts is not None
    assert set(counts.test_at) == {0.3, 0.4, 0.5}
    for fraction, test in counts.test_at.items():
        other = options.model_copy(update={"test_fraction": fraction}).count_class_units()
        assert other is not None
        assert test == other.test
        assert split["split_by"] == "class" or all(
            test[name] >= count for name, count in counts.test.items()
        ), "a larger fraction has the test units of a smaller one"
    wider = options.model_copy(update={"test_fraction": 0.3}).count_class_units()
    assert wider is not None
    assert set(wider.test_at) == {0.4, 0.5}


def test_planning_reads_a_table_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    load = csv_rows.load_columns

    def load_and_note(options: Any, *needed: Any, **more: Any) -> Any:
        read.append(options.train)
        return load(options, *needed, **more)

    monkeypatch.setattr(csv_rows, "load_columns", load_and_note)
    written = write_rows(tmp_path) | {"split_by": "id"}
    for _ in range(2):
        options = dataset_options(written)
        options.count_rows()
        options.count_units()
        options.count_class_units()
    assert len(read) == 1
    before = options.count_rows()
    with (tmp_path / "a.csv").open("a") as stream:
        stream.write("\n0.png,cat,p0,0,0")
    after = options.count_rows()
    assert (len(read), sum(after or ())) == (2, sum(before or ()) + 1)
