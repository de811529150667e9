"""The fairness job on made-up cells: what it writes, also of ugly data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dpprobe.analyses.fairness.fairness_record import COLUMNS, Attribute, FairnessRecord, Gap
from dpprobe.analyses.fairness.measure import compare_groups
from dpprobe.analyses.fairness.options import FairnessOptions
from dpprobe.artifacts import read_json, write_json
from dpprobe.errors import DataError
from tests.support.fairness_cells import write_grouped_cell

NAMES = ("cat", "dog", "owl")
ROWS = 600
REFERENCES = [("sgd", "1", "nonprivate", "inf")]


def _site(record: FairnessRecord) -> Attribute:
    return next(each for each in record.attributes if each.attribute == "site")


def _write(root: Path, seeds: int = 2, **changes: Any) -> list[Path]:
    """Two cells; the private one is bad for the few rows of site "far"."""
    generator = np.random.default_rng(0)
    labels = (generator.random((ROWS, 3)) < 0.4).astype(np.int64)
    far = np.arange(ROWS) % 6 == 0
    noise = generator.normal(size=(seeds, ROWS, 3))
    private = 2.5 * (labels - 0.5) * np.where(far, 0.1, 1.0)[:, None] + noise
    given: dict[str, Any] = {
        "labels": labels,
        "groups": {"site": np.where(far, "far", "near").tolist()},
        "class_names": NAMES,
    } | changes
    scores = given.pop("scores", private)
    return [
        write_grouped_cell(root, method="sgd", epsilon="1", scores=scores, **given),
        write_grouped_cell(
            root, method="nonprivate", epsilon="inf",
            scores=2.5 * (given["labels"] - 0.5) + noise if scores is private else scores, **given,
        ),
    ]  # fmt: skip


def _run(root: Path, cells: list[Path], **options: Any) -> FairnessRecord:
    compare_groups(
        cells, options=FairnessOptions(resamples=200, **options), references=REFERENCES,
        table=root / "groups.parquet", record=root / "groups.json", seed=0, threads=1,
    )  # fmt: skip
    return FairnessRecord.read(root / "groups.json")


def _gap(record: FairnessRecord, attribute: str, metric: str, *, cell: int = 0) -> Gap:
    gap = record.cells[cell].find_gap(attribute, metric)
    assert gap is not None
    return gap


def test_a_planted_disparity_of_the_private_cell_is_seen(tmp_path: Path) -> None:
    record = _run(tmp_path, _write(tmp_path))
    assert [(cell.method, cell.epsilon) for cell in record.cells] == [
        ("sgd", "1"),
        ("nonprivate", "inf"),
    ]
    private, public = (_gap(record, "site", "auc", cell=place) for place in (0, 1))
    assert (private.worst_group, private.best_group) == ("far", "near")
    assert (private.is_apart, public.is_apart) == (True, False)
    assert private.gap > 3 * private.chance_gap  # type: ignore[operator]
    assert private.difference_low > 0  # type: ignore[operator]
    assert private.difference == pytest.approx(private.gap - public.gap)  # type: ignore[operator]
    assert (public.difference, record.cells[1].reference) == (None, None)
    assert private.std is not None
    assert (private.groups, private.resamples) == (2, 200)


def test_the_table_has_each_group_by_metric_and_label(tmp_path: Path) -> None:
    record = _run(tmp_path, _write(tmp_path))
    table = pq.read_table(tmp_path / "groups.parquet")
    assert table.column_names == list(COLUMNS)
    rows = [row for row in table.to_pylist() if row["metric"] == "auc"]
    assert {row["label"] for row in rows} == {"", *NAMES}
    for place, cell in enumerate(record.cells):
        gap = _gap(record, "site", "auc", cell=place)
        of_cell = {
            (row["group"], row["label"]): row for row in rows if row["method"] == cell.method
        }
        worst = of_cell[gap.worst_group, ""]
        assert worst["value"] == pytest.approx(gap.worst)
        assert worst["difference"] == pytest.approx(gap.worst - gap.overall)  # type: ignore[operator]
        assert worst["value"] == pytest.approx(
            np.mean([of_cell[gap.worst_group, name]["value"] for name in NAMES])
        )
        assert all(row["low"] <= row["value"] <= row["high"] for row in of_cell.values())


@pytest.mark.parametrize("kind", ["several labels", "one of three", "one of two"])
def test_the_table_counts_the_units_behind_each_number(kind: str, tmp_path: Path) -> None:
    generator, several = np.random.default_rng(2), kind == "several labels"
    names = NAMES[: 2 if kind == "one of two" else 3]
    has = np.eye(len(names), dtype=bool)[generator.integers(len(names), size=ROWS)]
    has |= several & (generator.random(has.shape) < 0.3)
    site, units = generator.choice(["far", "near"], ROWS), generator.integers(400, size=ROWS)
    cells = _write(
        tmp_path, labels=has.astype(np.int64) if several else has.argmax(axis=1), units=units,
        scores=generator.normal(size=(2, *has.shape)), class_names=names, groups={"site": site},
    )  # fmt: skip
    _run(tmp_path, cells, groups=["site", "class"])
    for row in pq.read_table(tmp_path / "groups.parquet").to_pylist():
        by_class, of = row["attribute"] == "class", row["label"]
        if by_class:
            of, members = of or (row["group"] * several), np.full(ROWS, fill_value=True)
            members = members if several else has[:, names.index(row["group"])]
        else:
            members = site == row["group"]
            of = of or (names[1] if kind == "one of two" else "")
            of = of if row["metric"] in ("auc", "recall") else ""
        positives = len(set(units[members & has[:, names.index(of)]])) if of else None
        counts = members.sum(), len(set(units[members])), positives
        assert (row["rows"], row["units"], row["positives"]) == counts, row


def test_rows_of_patients_count_as_one(tmp_path: Path) -> None:
    once = _run(tmp_path / "once", _write(tmp_path / "once"), groups=["class"])
    generator = np.random.default_rng(0)
    labels = (generator.random((ROWS, 3)) < 0.4).astype(np.int64)
    twice = _write(
        tmp_path / "twice", labels=np.repeat(labels, 2, axis=0), units=np.repeat(range(ROWS), 2),
        scores=np.repeat(_scores(tmp_path / "once"), 2, axis=1), groups={},
    )  # fmt: skip
    record = _run(tmp_path / "twice", twice)
    assert (record.rows, record.units, once.units) == (2 * ROWS, ROWS, None)
    for metric in ("auc", "accuracy", "recall"):
        first, second = (_gap(made, "class", metric) for made in (once, record))
        for name in ("gap", "low", "high"):
            assert getattr(first, name) == pytest.approx(getattr(second, name), abs=1e-6)


def _scores(root: Path) -> np.ndarray:
    path = next(root.glob("cells/*/*/sgd/*/predictions.parquet"))
    flat = pq.read_table(path)["scores"].combine_chunks().flatten().to_numpy()
    return np.asarray(flat.reshape(2, ROWS, 3))


@pytest.mark.parametrize(
    ("groups", "kept"),
    [
        ([f"row {row}" for row in range(ROWS)], 0),  # groups of one row
        (["all"] * ROWS, 1),
        ([""] * ROWS, 0),
        ([None, "x"] * (ROWS // 2), 1),
        (["x"] * (ROWS - 31) + ["y"] * 31, 2),
    ],
    ids=["one row each", "one group", "blank", "half blank", "just enough"],
)
def test_ugly_groups_are_named_and_left_out(tmp_path: Path, groups: list[Any], kept: int) -> None:
    record = _run(tmp_path, _write(tmp_path, groups={"site": groups}))
    site = _site(record)
    assert sum(group.left_out is None for group in site.groups) == kept
    gap = _gap(record, "site", "accuracy")
    assert gap.groups == kept
    assert (gap.gap is None) == (kept < 2)
    table = pq.read_table(tmp_path / "groups.parquet").to_pylist()
    left = {row["group"] for row in table if row["left_out"]}
    assert {group.group for group in site.groups if group.left_out} <= left


@pytest.mark.parametrize("headline", ["accuracy", "macro_accuracy"])
def test_groups_are_compared_by_accuracy_whatever_the_headline_of_classes(
    headline: str, tmp_path: Path
) -> None:
    labels = np.random.default_rng(1).integers(3, size=ROWS)
    cells = _write(tmp_path, labels=labels, scores=np.stack([np.eye(3)[labels]] * 2))
    for path in cells:
        write_json(path, read_json(path) | {"headline": headline})
    record = _run(tmp_path, cells)
    assert (record.headline, record.cell_headline) == ("accuracy", headline)


def test_scores_that_are_not_finite_are_refused_by_name(tmp_path: Path) -> None:
    scores = np.zeros((1, ROWS, 3))
    scores[0, 5, 1] = np.nan
    with pytest.raises(
        DataError, match=r"predictions.parquet: a score is not finite; delete this file"
    ):
        _run(tmp_path, _write(tmp_path, scores=scores))


def test_cells_of_other_rows_are_refused_by_name(tmp_path: Path) -> None:
    cells = _write(tmp_path)
    labels = np.ones((ROWS, 3), dtype=np.int64)
    cells[1] = write_grouped_cell(
        tmp_path, method="nonprivate", epsilon="inf", scores=np.zeros((1, ROWS, 3)), labels=labels,
        groups={}, class_names=NAMES,
    )  # fmt: skip
    with pytest.raises(DataError, match=r"nonprivate.*the test rows differ"):
        _run(tmp_path, cells)
