"""Explains a cell's headline metric, and finds its worst class and majority-class baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpprobe.results.cell_record import CellRecord, read_cell
from dpprobe.results.headline_metric import constant_headline, headline_reason, least_class
from tests.support.cell_files import write_cell


def _record(folder: Path, *, cell: dict[str, Any] | None = None, **changes: Any) -> CellRecord:
    return read_cell(write_cell(folder, **cell or {})).model_copy(update=changes)


def test_the_worst_class_has_the_lowest_mean_over_seeds(tmp_path: Path) -> None:
    recalls = ([0.9, 0.2, None, 0.5], [0.9, 0.8, None, 0.3])  # means 0.9, 0.5, none, 0.4
    seeds = [{"per_class_recall": each, "per_label_auc": [0, 0, 0, 0]} for each in recalls]
    least = least_class(_record(tmp_path, seeds=seeds))
    assert least is not None
    assert least.name == "three"
    assert least.value == pytest.approx(0.4)
    areas = [{"per_label_auc": [0.9, 0.6, 0.7, None]}]
    least = least_class(_record(tmp_path, seeds=areas, multi_label=True))
    assert least is not None
    assert (least.name, least.value) == ("one", 0.6)
    assert least_class(_record(tmp_path, seeds=[{"per_class_recall": [None] * 4}])) is None
    assert least_class(_record(tmp_path, seeds=[{}])) is None


@pytest.mark.parametrize(
    ("headline", "counts", "expected"),
    [
        ("accuracy", [9, 1, 0, 0], 0.9),
        ("auc", [9, 1], 0.5),
        ("macro_accuracy", [9, 1, 0, 0], 0.5),
        ("macro_accuracy", [5, 5, 5, 5], 0.25),
        ("macro_accuracy", [0, 0], None),
    ],
)
def test_the_baseline_that_always_answers_one_class(
    headline: str, counts: list[int], expected: float | None, tmp_path: Path
) -> None:
    """The class has recall 1, other classes with rows have recall 0, and all scores are equal."""
    record = _record(tmp_path, headline=headline, test_counts=counts, constant_accuracy=0.9)
    assert constant_headline(record) == expected


@pytest.mark.parametrize(
    ("headline", "counts", "facts"),
    [
        ("accuracy", [37, 35, 36, 36], ["Metric: accuracy (", "balanced: 35 to 37 test"]),
        ("accuracy", [1000] * 4, ["balanced: 1,000 test examples each"]),
        ("accuracy", [10, 0, 0, 0], ["All test examples are of one class"]),
        ("accuracy", [0, 0, 0, 0], ["All test examples are of one class"]),
        (
            "macro_accuracy",
            [1234, 0, 3, 2],
            ["macro accuracy, the mean of the recalls", "imbalanced (2 to 1,234 test"],
        ),
        (
            "auc",
            [90, 10],
            ["AUC, the chance that a three image scores above a zero one", "(10 to 90 test"],
        ),
    ],
)
def test_the_metric_is_named_with_its_reason(
    headline: str, counts: list[int], facts: list[str], tmp_path: Path
) -> None:
    reason = headline_reason(_record(tmp_path, headline=headline, test_counts=counts))
    assert [fact for fact in facts if fact not in reason] == [], reason


def test_a_metric_that_the_study_or_several_labels_fix_needs_no_counts(tmp_path: Path) -> None:
    named = _record(tmp_path, metric_named=True, multi_label=True, headline="auc")
    assert headline_reason(named, "x.yaml").endswith("(set by x.yaml).")
    labels = {"multi_label": True, "class_names": ("round", "even", "absent")}
    several = _record(tmp_path, cell=labels)
    assert headline_reason(several) == (
        "Metric: mean AUC over 2 of 3 labels (an image may have several labels)."
    )
