"""Metrics, intervals, halves and comparisons over many splits, against stored answers."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from dpprobe.artifacts import read_json, write_json
from dpprobe.data.options import Headline
from dpprobe.results import cell_results, intervals, metrics, unit_counts
from dpprobe.results.best_private import best_private, choose_highlights, list_best_columns
from dpprobe.results.cautions import list_cautions
from dpprobe.results.halves import half_values, split_rows
from dpprobe.results.paired_difference import compare_entries
from dpprobe.results.summary import Entry
from dpprobe.results.uncertainty import summarise_records
from tests.support.cell_files import grid_of, write_cell
from tests.support.stored_records import answer_of, check_values


def _made(
    *, rows: int, classes: int, several: bool, patients: int, seed: int, quality: float = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Scores with ties, labels of unequal frequency, and patients in no order."""
    generator = np.random.default_rng(seed)
    weights = np.arange(1, classes + 1) ** 2.0
    labels = generator.choice(classes, size=rows, p=weights / weights.sum())
    present = np.eye(classes)[labels]
    if several:
        labels = (generator.random((rows, classes)) < 0.3).astype(np.uint8)
        present = labels.astype(float)
    scores = (generator.normal(size=(rows, classes)) + quality * present - several).round(1)
    units = generator.integers(patients, size=rows) * 3 + 1 if patients else None
    return scores, labels, units


SPLITS: list[dict[str, Any]] = [
    dict(zip(("rows", "classes", "patients", "several"), each, strict=True))
    for each in (
        *itertools.product((60, 9), (2, 4, 11), (0, 12, 3), (False, True)),
        (1, 2, 0, False), (1, 3, 1, True), (40, 5, 40, False), (300, 2, 30, False),
    )
]  # fmt: skip


def _halves(name: Headline, scores: np.ndarray, labels: np.ndarray, units: Any, link: Any) -> Any:
    halves = split_rows(name, labels, units=units)
    return np.array(half_values(name, scores, labels, link=link, units=units, halves=halves), float)


def test_metrics_and_intervals_are_as_stored() -> None:
    answers = {}
    for number, split in enumerate(SPLITS):
        link: metrics.Link = ("sigmoid", "none")[number % 2] if split["several"] else "softmax"
        scores, labels, units = _made(**split, seed=number)
        first = metrics.evaluate_scores(scores, labels, link=link, units=units)
        other = metrics.evaluate_scores(scores[::-1], labels, link=link, units=units)
        answers[" ".join(map(str, split.values()))] = {
            "metrics": list(first.items())[:6],
            "training": metrics.training_metrics(scores, labels, link=link, units=units),
            "constant": metrics.constant_accuracy(labels, units=units),
            "summary": {
                f"{name} of {len(records)}": [
                    entry[end] for end in ("mean", "rows_low", "rows_high", "rows_interval",
                                           "both_low", "both_high", "low", "high", "std")
                ]
                for records in ([first], [first, other])
                for name, entry in summarise_records(
                    records, correct=metrics.right_predictions(scores, labels, link=link),
                    labels=labels, scores=scores, units=units,
                ).items()
            },
            "halves": [
                answer_of(lambda name=name: _halves(name, scores, labels, units, link))  # noqa: B023
                for name in ("accuracy", "macro_accuracy", "auc")
            ],
        }  # fmt: skip
    check_values("metrics_of_splits", answers)


def test_small_functions_of_results_are_as_stored() -> None:
    label = np.array([0, 2, 2, 1, 0, 2])
    units = np.array([5, 2, 5, 2, 5, 9])
    accepted = [[0], [1, 2], [], [1], [2], [0, 2]]
    scores = np.array([[3.0, 2, 1], [1, 1, 1], [0, 2, 2], [5, 6, 7], [1, 0, 0], [0, 0, 1]])
    bad = np.where(np.arange(6)[:, None] == 4, np.nan, scores)
    answers = {
        "wilson": [
            intervals.wilson_interval(share, n)
            for share, n in itertools.product((0.0, 1e-9, 0.3, 1.0), (1, 2.5, 40, 10_000))
        ],
        "combined": [
            intervals.combine_errors(mean, a, b)
            for mean in (0.1, 0.5, 0.99)
            for a, b in (((0.0, 0.6), (0.05, 0.995)), ((0.4, 0.5), (0.5, 0.5)))
        ],
        "by class": [
            intervals.over_classes(mean, right, label)
            for mean in (0.4, 1.0)
            for right in (label == 2, np.ones(6, bool), np.zeros(6, bool))
        ],
        "accepted": [
            metrics.evaluate_scores(scores, label, accepted=accepted, units=each)
            for each in (None, units)
        ],
        "faults": [
            answer_of(lambda: metrics.evaluate_scores(bad, label)),
            answer_of(lambda: metrics.evaluate_scores(scores, label, accepted=[[]] * 6)),
            answer_of(lambda: metrics.evaluate_scores(scores, np.eye(3)[label], link="softmax")),
            metrics.training_metrics(bad[:, :2], label.clip(max=1)),
        ],
        "units": [
            unit_counts.row_weights(units), unit_counts.row_weights(np.arange(3)),
            unit_counts.class_counts(label, 5), unit_counts.class_counts(np.eye(3, dtype=int), 3),
            unit_counts.unit_codes(None), unit_counts.unit_codes(["b", "a", "b", "c"]),
            unit_counts.count_units(np.array([0, 2, 2, 1])), unit_counts.count_units(None),
        ],
        "differences": [
            cell_results.compare_means(*pair)
            for pair in (([1.0, 2], [3, 5, 4]), ([1], [2, 3]), ([1, 1], [2, 2]), ([1, 1], [2, 3]))
        ],
    }  # fmt: skip
    check_values("small_results", answers)


def test_comparisons_are_as_stored() -> None:
    generator = np.random.default_rng(0)
    answers = []
    halves = generator.normal(50, 5, size=(3, 40, 2))
    halves[0, 3] = np.nan
    base: dict[str, Any] = {
        "low": None, "high": None, "interval": None, "ceiling": False, "both_low": 40.0,
        "both_high": 70.0, "test_units": 100, "private": True,
    }  # fmt: skip
    kinds: list[dict[str, Any]] = [
        {"values": (50.0, 52.0, 54.0), "halves": halves, "seeds": 3},
        {"values": (49.0,), "halves": halves[1:2], "seeds": 1},
        {"values": (49.0,), "halves": halves[1:2], "seeds": 1, "resting": 19.9},
        {"values": (49.0,), "halves": halves[1:2], "seeds": 1, "resting": 20.0, "private": False},
        {"values": (80.0,), "halves": None, "seeds": 1, "both_low": 75.0, "both_high": 81.0},
        {"values": (80.0,), "halves": None, "seeds": 1, "both_low": None},
        {"values": (50.0, 60.0), "halves": halves[:2, :9], "seeds": 2, "test_units": 19},
        {"values": (50.0, 60.0), "halves": halves[:2, 3:4], "seeds": 2},
    ]
    entries = [Entry(**base | kind, mean=float(np.mean(kind["values"]))) for kind in kinds]
    for first, second in itertools.product(entries, entries):
        found = compare_entries(first, second)
        needed = None if found.low is None else found.units_to_tell(100, least=2.0)
        answers.append([*vars(found).values(), found.apart, needed])
    check_values("comparisons", answers)


def test_best_results_and_cautions_are_as_stored(tmp_path: Path) -> None:
    """Two datasets, two backbones, a strong head without noise, and classes never predicted."""
    released = {"head": "auto", "chosen": {"head": "sgd", "class_priors": "released"}}
    cells = []
    for number, (dataset, backbone, method, epsilon) in enumerate(
        itertools.product("ab", "xy", ("m", "n", "nonprivate"), ("0.5", "2", "10", "inf"))
    ):
        if method == "nonprivate" and (epsilon != "inf" or backbone == "y"):
            continue
        path = write_cell(
            tmp_path, dataset=dataset, backbone=backbone, method=method, epsilon=epsilon, rows=80,
            quality=0.3 + number % 5 / 3,
        )  # fmt: skip
        record = read_json(path)
        for seed in record["seeds"][: number % 4]:
            seed["never_predicted"] = [number % 3, 3][: 1 + (number % 5 > 2)]
        options = {"options": released} if method == "n" and dataset == "b" else {}
        write_json(path, record | options)
        cells.append(path)
    grid = grid_of(tmp_path, *cells)
    zero = {("a", "x"): ("auc", 90.0), ("b", "x"): ("accuracy", 60.0), ("b", "y"): ("auc", 95.0)}
    bests = best_private(grid, zero)
    answers: dict[str, Any] = {
        "best": [
            [best.dataset, best.epsilon, best.at, best.backbone, best.method, best.entry.mean,
             best.gap, best.zero_shot, best.choice.candidates, best.budget]
            for best in bests
        ],
        "highlights": [[best.dataset, best.at] for best in choose_highlights(bests)],
        "columns": [list_best_columns(bests, name) for name in "abc"],
        "cautions": [
            list(list_cautions(grid, name, columns=columns))
            for name in "ab" for columns in (None, [("x", "n")])
        ],
        "reasons": grid.reasons, "constant": [entry.constant for entry in grid.entries.values()],
    }  # fmt: skip
    check_values("best_results", answers)
