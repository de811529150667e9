"""Rare classes: recalls, AUCs and intervals, compared with scikit-learn and SciPy; references."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, logit, softmax
from scipy.stats import binomtest, t, ttest_ind
from sklearn.metrics import recall_score, roc_auc_score

from dpprobe.analyses.imbalance.imbalance_record import ImbalanceRecord, RareCell
from dpprobe.analyses.imbalance.measure import (
    break_down,
    compare_rare_classes,
    estimate_share,
    least_reference,
    one_against_rest,
    retained_recall,
)
from dpprobe.errors import DataError
from dpprobe.files.json_files import read_json, write_json
from dpprobe.results.cell_record import CellName
from tests.support.cell_files import write_cell, write_dataset_info
from tests.support.imbalance_records import rare_cell

CLASSES = ("zero", "one", "two", "three")
CEILING = ("nonprivate", "inf")


def _write_info(path: Path, fractions: dict[str, float] | None = None, **changes: Any) -> Path:
    write_dataset_info(path)
    record = read_json(path)
    if fractions:
        record["source"]["subsample"] = {"fractions": fractions}
        record["splits"]["train"] |= {"per_class": [250, 25, 250, 250], "rows": 775}
    write_json(path, record | changes)
    return path


def _run(
    folder: Path,
    cells: Sequence[tuple[str, str]],
    *,
    classes: Sequence[str] = ("three", "one", "zero"),
    qualities: Sequence[float] = (1.5, 4.5),
    seeds: int = 3,
    patients: int = 0,
    shares: Sequence[float] = (0.5, 0.1, 0.3, 0.1),
) -> ImbalanceRecord:
    """Runs the job on cells of the whole dataset and of a copy in which class `one` is rare."""
    infos = {
        "digits": _write_info(folder / "a.json"),
        "digits_one": _write_info(folder / "b.json", {"one": 0.1}),
    }
    names = []
    for dataset in infos:
        for method, epsilon in cells:
            path = write_cell(
                folder,
                dataset=dataset,
                method=method,
                epsilon=epsilon,
                seeds=seeds,
                shares=shares,
                quality=qualities[method == "nonprivate"],
                patients=patients or None,
            )
            if patients:
                table = pq.read_table(file := path.with_name("predictions.parquet"))
                units = np.tile(np.arange(200) % patients, seeds)
                pq.write_table(table.append_column("unit", [units]), file)
            names.append(
                CellName(dataset=dataset, backbone="pixels", method=method, epsilon=epsilon)
            )
    compare_rare_classes(
        names,
        cells=folder / "cells",
        infos=infos,
        dataset="digits",
        backbone="pixels",
        classes=classes,
        folder=folder,
    )
    return ImbalanceRecord.read(folder / "digits/pixels.json")


def _predictions(folder: Path, cell: RareCell) -> tuple[np.ndarray, np.ndarray]:
    """Returns scores [seeds, rows, classes] and labels [rows] from a cell's file."""
    place = f"cells/{cell.training_set}/pixels/{cell.method}/eps-{cell.epsilon}"
    table = pq.read_table(folder / place / "predictions.parquet")
    scores = np.array(table["scores"].to_pylist()).reshape(cell.seeds, 200, 4)
    return scores, np.array(table["label"])[:200]


def _interval(values: Sequence[float], share: float, counted: int) -> tuple[float, float]:
    """Joins Student's t interval over seeds and Wilson's interval for `counted` rows."""
    wilson = binomtest(round(share * counted), counted).proportion_ci(method="wilson")
    seeds = t.interval(0.95, len(values) - 1, np.mean(values), np.std(values, ddof=1) / 3**0.5)
    return min(wilson.low, max(0, seeds[0])), max(wilson.high, min(1, seeds[1]))


@pytest.mark.parametrize("patients", [0, 40])
def test_recall_and_auc_are_scikit_learn_s_for_each_seed(tmp_path: Path, patients: int) -> None:
    record = _run(tmp_path, [("sgd", "1"), CEILING], patients=patients)
    assert len(record.cells) == 2 * 3 + 2, "three classes, and of the copy the rare one"
    units = np.arange(200) % patients if patients else np.arange(200)
    weights = 1 / np.bincount(units)[units]
    for cell in record.cells:
        scores, labels = _predictions(tmp_path, cell)
        k = CLASSES.index(cell.class_name)
        right = labels == k
        recalls = [
            recall_score(right, each.argmax(axis=1) == k, sample_weight=weights) for each in scores
        ]
        assert cell.recall.mean == pytest.approx(np.mean(recalls)), cell
        assert cell.recall.std == pytest.approx(np.std(recalls, ddof=1), abs=1e-9)
        aucs = [
            roc_auc_score(right, softmax(each, axis=1)[:, k], sample_weight=weights)
            for each in scores
        ]
        assert cell.auc is not None
        assert cell.auc.mean == pytest.approx(np.mean(aucs))
        never = [k not in each.argmax(axis=1) for each in scores]
        assert cell.never_predicted == sum(never)
        every = [
            np.mean(
                [(each.argmax(1) == c) @ (w := weights * (labels == c)) / w.sum() for c in range(4)]
            )
            for each in scores
        ]
        assert cell.macro_accuracy == pytest.approx(np.mean(every))
        counted = len(np.unique(units[right])), len(np.unique(units[~right]))
        shares = estimate_share(recalls, counted[0])
        assert (cell.recall.low, cell.recall.high) == pytest.approx((shares.low, shares.high))
        shares = estimate_share(aucs, min(counted))
        assert (cell.auc.low, cell.auc.high) == pytest.approx((shares.low, shares.high))


def test_each_cell_is_compared_with_the_non_private_baseline_on_the_same_rows(
    tmp_path: Path,
) -> None:
    record = _run(tmp_path, [("sgd", "1"), ("sgd", "inf"), CEILING])
    found = {(c.training_set, c.class_name, c.method, c.epsilon): c for c in record.cells}
    for (name, kind, method, epsilon), cell in found.items():
        rare = name == "digits_one"
        assert (cell.fraction, cell.class_rows, cell.rows) == (
            (0.1, 25, 775) if rare else (1.0, 250, 1000)
        )
        assert kind == "one" or not rare
        assert cell.private == (epsilon != "inf")
        reference = found[name, kind, *CEILING]
        if method == "nonprivate":
            assert (cell.reference, cell.drop, cell.reference_recall) == (None, None, None)
            assert not cell.reference_learnt
            continue
        assert cell.reference == CEILING
        assert cell.reference_recall == reference.recall.mean
        assert cell.reference_learnt == (reference.recall.mean > 0.5)
        k = CLASSES.index(kind)
        mine, theirs = (
            [np.mean((each.argmax(1) == k)[labels == k]) for each in scores]
            for scores, labels in (_predictions(tmp_path, cell), _predictions(tmp_path, reference))
        )
        assert cell.drop == pytest.approx(np.mean(theirs) - np.mean(mine))
        if np.std(mine) > 1e-6:
            welch = ttest_ind(theirs, mine, equal_var=False).confidence_interval(0.95)
            assert (cell.drop_low, cell.drop_high) == pytest.approx((welch.low, welch.high))
    whole, copy = record.training_sets
    assert (whole.name, whole.class_name, whole.fraction) == ("digits", None, 1.0)
    assert (copy.name, copy.class_name, copy.per_class) == (
        "digits_one",
        "one",
        (250, 25, 250, 250),
    )
    assert record.classes == ("three", "one", "zero")
    assert [(each.class_name, each.method) for each in record.break_downs] == [
        (name, "sgd") for name in ("three", "one", "zero")
    ]
    assert record.break_downs[1] == break_down(record.cells, class_name="one", method="sgd")


def test_without_a_baseline_the_method_at_infinity_is_the_reference(tmp_path: Path) -> None:
    record = _run(tmp_path, [("sgd", "1"), ("newton", "10"), ("newton", "inf")], classes=["two"])
    references = {(c.method, c.epsilon): c.reference for c in record.cells if c.fraction == 1}
    assert references == {
        ("sgd", "1"): None,
        ("newton", "10"): ("newton", "inf"),
        ("newton", "inf"): None,
    }


def test_wrong_classes_and_datasets_are_refused(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "cells": tmp_path,
        "dataset": "digits",
        "backbone": "b",
        "folder": tmp_path,
    }
    infos = {"digits": _write_info(tmp_path / "a.json")}
    with pytest.raises(
        DataError, match="imbalance.classes: 'four' is not a class of digits; choose from zero, "
    ):
        compare_rare_classes([], infos=infos, classes=["one", "four"], **given)
    for change in ({"class_names": list(CLASSES[::-1])}, {"multi_label": True}):
        wrong = infos | {"wrong": _write_info(tmp_path / "wrong.json", **change)}
        with pytest.raises(DataError, match="wrong.json: classes differ from the complete dataset"):
            compare_rare_classes([], infos=wrong, classes=["one"], **given)
    assert not (tmp_path / "digits").exists()


@given(middle=st.integers(1, 49), aside=st.integers(1, 49))
def test_an_interval_is_the_union_over_seeds_and_rows(middle: int, aside: int) -> None:
    aside = min(aside, middle, 50 - middle)
    values = [(middle + step) / 50 for step in (-aside, 0, aside)]
    found = estimate_share(values, 50)
    assert found.mean == pytest.approx(middle / 50)
    assert found.std == pytest.approx(aside / 50)
    assert (found.low, found.high) == pytest.approx(_interval(values, middle / 50, 50))


def test_a_reference_has_to_double_what_guessing_gives() -> None:
    assert [least_reference(classes) for classes in (2, 4, 19, 20, 21, 100)] == [
        1.0,
        0.5,
        2 / 19,
        0.1,
        0.1,
        0.1,
    ]


def test_the_score_against_the_rest_is_the_log_odds_of_the_class() -> None:
    scores = np.random.default_rng(3).normal(size=(5, 4)).astype(np.float32)
    shifted = scores + np.arange(5, dtype=np.float32)[:, None]
    for k in range(4):
        odds = logit(softmax(scores.astype(float), axis=1)[:, k])
        np.testing.assert_allclose(one_against_rest(scores, k, "softmax"), odds, rtol=1e-6)
        np.testing.assert_allclose(one_against_rest(shifted, k, "softmax"), odds, rtol=1e-5)
        own = one_against_rest(scores, k, "sigmoid")
        np.testing.assert_allclose(expit(own), expit(scores[:, k]), rtol=1e-6)
        lead = [row[k] - max(row[j] for j in range(4) if j != k) for row in scores.tolist()]
        np.testing.assert_allclose(one_against_rest(scores, k, "none"), lead, rtol=1e-6)


def _point(*cells: tuple[int, str, float], **changes: Any) -> Any:
    made = [rare_cell(recall, class_rows=n, epsilon=eps, **changes) for n, eps, recall in cells]
    return break_down(made, class_name="cat", method="sgd")


def test_a_break_down_says_where_it_is_uncertain() -> None:
    """The recall of the reference is 0.8, so 0.4 is half of it."""
    assert retained_recall(rare_cell(0.2)) == pytest.approx(0.25)
    assert retained_recall(rare_cell(0.9)) == 1.0, "no more than the reference"
    point = _point((100, "1", 0.1), (100, "2", 0.4), (300, "1", 0.39), (400, "1", 0.5))
    assert (point.reached, point.lasting, point.note) == (200, 400, "")
    assert (point.cells, point.smallest, point.largest) == (4, 100, 400)
    none = _point((100, "1", 0.1), (100, "2", 0.39))
    assert (none.reached, none.lasting) == (None, None)
    assert none.note == "above the largest product of the study"
    every = _point((100, "1", 0.4), (100, "2", 0.7))
    assert (every.reached, every.lasting) == (100, 100)
    assert every.note == "at or below the smallest product of the study"
    last = _point((100, "1", 0.4), (100, "2", 0.1))
    assert (last.reached, last.lasting) == (100, None)
    assert last.note == "the largest product of the study fails again"


def test_cells_without_a_guarantee_or_a_learnt_reference_are_not_compared() -> None:
    unlearnt = _point((100, "1", 0.7), reference_learnt=False)
    assert unlearnt.note == "nothing to compare with"
    assert (unlearnt.cells, unlearnt.left_out) == (0, 1)
    assert (unlearnt.smallest, unlearnt.largest, unlearnt.reached) == (None, None, None)
    kept = rare_cell(0.7)
    others = [
        rare_cell(0.1, epsilon="inf"),
        rare_cell(0.1, epsilon="advantage-0.1"),
        rare_cell(0.1, class_name="dog"),
        rare_cell(0.1, method="other"),
    ]
    point = break_down([*others, kept], class_name="cat", method="sgd")
    assert point == break_down([kept], class_name="cat", method="sgd")
    assert (point.cells, point.left_out) == (1, 0)


# The point at which rare classes break down, and the intervals of their recalls.


@given(
    st.lists(
        st.tuples(st.integers(1, 50), st.sampled_from(["0.5", "1", "2"]), st.floats(0, 0.8)),
        min_size=1,
        max_size=12,
    )
)
def test_break_down_by_brute_force(cells: list[tuple[int, str, float]]) -> None:
    made = [rare_cell(recall, class_rows=rows, epsilon=eps) for rows, eps, recall in cells]
    point = break_down(made, class_name="cat", method="sgd")
    held = {rows * float(eps): True for rows, eps, _ in cells}
    for cell, (rows, eps, _) in zip(made, cells, strict=True):
        held[rows * float(eps)] &= retained_recall(cell) >= 0.5
    good = [
        rows * float(e)
        for c, (rows, e, _) in zip(made, cells, strict=True)
        if retained_recall(c) >= 0.5
    ]
    lasting = [p for p in held if all(held[q] for q in held if q >= p)]
    assert point.reached == min(good, default=None)
    assert point.lasting == min(lasting, default=None)
