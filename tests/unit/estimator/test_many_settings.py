"""What the estimator reads, plans, books, compares and says, over many settings."""

from __future__ import annotations

import itertools
import json
import math
import re
import warnings
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

import dpprobe
from dpprobe.estimator import (
    array_inputs,
    callers,
    fit_and_score,
    given_values,
    known_rows,
    row_copies,
)
from dpprobe.estimator.budget import Budget
from dpprobe.estimator.parameters import check_parameters
from dpprobe.estimator.planned_fit import plan_fit
from dpprobe.estimator.private_classifier import PrivateClassifier
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.training_set import LONGEST_ROW
from tests.support.classifiers import DELTA, FAST, make_benchmark, make_private, make_rows
from tests.support.stored_records import answer_of, check_values, to_plain

NUMBERS: list[Any] = [
    1,
    0.5,
    -2,
    np.float32(0.1),
    np.float16(0.1),
    np.int64(3),
    Fraction(1, 2),
    True,
    np.bool_(1),
    "1",
    "inf",
    b"1",
    None,
    math.nan,
    math.inf,
    1j,
    10**400,
    [1.0],
    np.array(1.0),
    pd.NA,
    {"advantage": 0.1},
    {"true_positives": np.float32(0.2), "at": 0.1},
    {"advantage": 2},
    {},
    {"advantage": True},
]
LABELS: list[Any] = [
    [0, 1],
    [1, 0, 2.5],
    [10, 9, 2],
    {"b", "a"},
    ("10", "9"),
    np.array(["b", "a"]),
    [True, False],
    pd.Index(["a", "b"]),
    [0, 1, 1],
    [0],
    [],
    [0, True],
    [0, "1"],
    [b"a", b"b"],
    [0, None],
    "ab",
    [0, math.nan],
    [0, pd.NA],
    [pd.NaT, "a"],
    {0: "a", 1: "b"},
    2,
    None,
    [[0], [1]],
    np.array(1),
    np.zeros((2, 2)),
    np.ones(3, "c16"),
    np.ones(3, "M8[D]"),
    pd.array([0, 1], dtype="Int64"),
    itertools.repeat(0, 2),
    [1, True],
    [0, 2.5, 1],
    ["a", 1],
    ["a", True],
    [(0, 1), 1],
    [np.datetime64("NaT"), 1],
    *(pd.Series(each, dtype=object) for each in ([1, "a"], [True, 1])),
]
GROUPS: list[Any] = [
    ["a", "b", "a"],
    [2, 10, 2],
    [1.0, 2.5, 1],
    ["a", " a", "A"],
    ["1", 1, "01"],
    ["a", None, "b"],
    ["a", "b"],
    [["a"], ["b"], ["c"]],
    ["", "a", "b"],
    [math.nan, "a", "b"],
]
SHAPES: list[Any] = [
    np.ones((4, 2)),
    [[1.0, 2.0]] * 3,
    torch.ones(4, 2),
    pd.DataFrame(np.ones((2, 5))),
    np.ones(4),
    np.ones((2, 2, 2)),
    np.ones(()),
    np.ones((0, 2)),
    np.ones((2, 0)),
    [],
    [[]],
]


def told(call: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """An answer or an error, with the warnings before it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answer = answer_of(call, *given, **named)
    return [answer, *(str(each.message) for each in caught)] if caught else answer


def scrub(value: Any, folder: Path) -> Any:
    text = json.dumps(to_plain(value)).replace(str(folder), "...")
    return json.loads(re.sub(r"(dp-accounting|opacus) [\w.]+", r"\1", text))


def test_values_that_callers_give() -> None:
    named = (given_values.read_number, given_values.read_count, given_values.read_risk)
    readers = [*(partial(read, "named") for read in named), given_values.read_target]
    numbers = [[repr(value), *(answer_of(read, value) for read in readers)] for value in NUMBERS]
    kinds = [
        [answer_of(given_values.check_kind, name, each) for name in ("y", "classes")]
        for each in LABELS
        if isinstance(each, list | tuple)
    ]
    fits = [
        [answer_of(array_inputs.check_labels, each, names) for names in (None, [0, 1], ["a", "b"])]
        for each in LABELS
    ]
    number = array_inputs.number_labels
    numbered = [
        answer_of(number, np.array(y), names)
        for y, names in (
            ([2, 10, 9, 2], [9, 2, 10]),
            (["a", "d"], ["a", "b"]),
            ([1.0, 0.0], [0, 1]),
            ([], [0, 1]),
        )
    ]
    grouped = [told(array_inputs.number_groups, each, 3) for each in GROUPS]
    grouped = [each.unit_of_rows() if isinstance(each, Units) else each for each in grouped]
    masks: list[Any] = [np.ma.masked_array([1]), [np.ma.masked_array([1])], [1]]
    check_values(
        "given_values",
        {
            "numbers": numbers,
            "kinds": kinds,
            "fits": fits,
            "numbered": numbered,
            "grouped": grouped,
            "classes": [answer_of(given_values.list_classes, each) for each in LABELS],
            "shapes": [answer_of(array_inputs.read_shape, each) for each in SHAPES],
            "masks": [answer_of(array_inputs.refuse_masks, "groups", each) for each in masks],
        },
    )


TUNED = {"head": "tuned", "base": FAST, "search": {"steps": [3, 4]}}
USED: dict[str, list[Any]] = {
    "benchmark": [False, True],
    "budget": [None, Budget(max_epsilon=1, delta=DELTA), 1.0],
    "classes": [None, [0, 1], [0]],
    "random_state": [None, 0],
    "epsilon": [1.0, math.inf, "1"],
    "unit": ["row", "group", "person"],
    "delta": [None, 1e-5, "x"],
}


def test_parameters_and_plans(tmp_path: Path) -> None:
    heads = ("auto", "prototypes", "momentum", "least_squares", "gradient", TUNED)
    checked: dict[str, Any] = {
        "probabilities": [hasattr(PrivateClassifier(head=head), "predict_proba") for head in heads]
    }
    for values in itertools.product(*USED.values()):
        chosen = dict(zip(USED, values, strict=True))
        unusual = [name for name, value in chosen.items() if value is not USED[name][0]]
        if len(unusual) < 4:
            said = answer_of(check_parameters, PrivateClassifier(**chosen))
            checked[" ".join(f"{name}={chosen[name]}" for name in unusual)] = str(said)[:40]

    def plan(rows: int, groups: Any = None, labels: Any = None, **changes: Any) -> Any:
        make = make_benchmark if changes.get("benchmark") else make_private
        classifier = make(**{"delta": None} | changes)
        planned = plan_fit(classifier, rows, 6, groups, labels)
        booking = planned.make_booking(classifier.budget) if classifier.budget else None
        return [planned.classes, planned.facts, planned.method, planned.plan, booking]

    tight, told_of = Budget(max_epsilon=1, delta=1e-7), {"column": "patient"}
    mine = Budget(max_epsilon=1, delta=1e-5, **told_of)  # type: ignore[arg-type]
    names, y = ["b", "a", "b", "a"] * 5, np.array([3, 1, 2, 1])
    sets: list[tuple[int, Any, dict[str, Any]]] = [
        *(
            (rows, None, {"benchmark": True, "labels": y, "unit": unit})
            for unit in ("row", "image")
            for rows in (1, 49, 50, 51, 49_999, 50_000, 50_001, 500_001)
        ),
        *((rows, None, {}) for rows in (20, 10_000, 10_001)),
        (10_001, None, {"delta": 1e-5}),
        (20, names, {"unit": "group", "budget": mine}),
        (20, names, {"unit": "patient"}),
        (20, names, {"benchmark": True, "classes": [1, 0]}),
        (20, names, {}),
        (20, None, {"unit": "group"}),
        (20, names[1:], {"unit": "group"}),
        (20, None, {"budget": tight}),
        (20, None, {"budget": tight, "delta": 1e-3}),
        (20, None, {"epsilon": {"advantage": 0.3}}),
        (20, None, {"head": "nonprivate"}),
        (20, None, {"head": "nonprivate", "benchmark": True, "epsilon": math.inf, "labels": y}),
        (20, None, {"head": {"head": "sgd", "engine": "closed_form"}}),
        (20, None, {"head": "sgd"}),
        (20, None, {"head": {"head": "fine_tune", "tune": "head"}}),
        (2000, None, {"head": "auto"}),
        (20, None, {"head": TUNED}),
    ]
    plans = [[n, str(rest), answer_of(plan, n, groups, **rest)] for n, groups, rest in sets]
    check_values("planned_fits", scrub({"checked": checked, "plans": plans}, tmp_path), rel=1e-4)


def test_budgets_and_statements(tmp_path: Path) -> None:
    found: dict[str, Any] = {}
    limits: list[dict[str, Any]] = [
        {"max_epsilon": 2},
        {"max_epsilon": np.float32(0.7)},
        {"max_risk": {"advantage": 0.25}},
        {"max_risk": {"true_positives": 0.2, "at": 0.01}},
        {},
        {"max_epsilon": 1, "max_risk": {}},
        {"max_epsilon": -1},
        {"max_epsilon": 0},
        {"max_epsilon": math.inf},
        {"max_epsilon": math.nan},
        *({"max_epsilon": 1, "delta": delta} for delta in (0, 1, "x", math.nan, 0.5)),
    ]
    for (place, limit), kept in itertools.product(enumerate(limits), ("memory", "folder")):
        where = None if kept == "memory" else tmp_path / f"data{place}"
        budget = answer_of(Budget, where, **{"delta": DELTA} | limit)
        key = f"{limit} {kept}"
        if not isinstance(budget, Budget):
            found[key] = budget
            continue
        heads = [make_private(epsilon=0.3, budget=budget, unit="group") for _ in range(4)]
        found[key] = [repr(budget), budget.describe_limit()]
        X, y = make_rows(rows=60)
        for head in heads:
            fitted = told(head.fit, X, y, groups=[f"p{row // 3}" for row in range(60)])
            fitted = fitted[1:] if isinstance(fitted, list) else str(fitted)[:9]
            spent = [budget.compute_spent(delta) for delta in (None, DELTA, 1e-6, 0.1)]
            risks = [budget.compute_risk(at) for at in (None, 0.0, 0.01, 1.0)]
            found[key].append([fitted, spent, risks])
        for head in heads[:2]:  # of which the first, if fitted, knows of later fits
            if hasattr(head, "fit_"):
                found[key].append([head.privacy_["ledger"], head.privacy_["choice"]])
                assert head.fit_.count_spent().entries == budget.compute_spent().entries
    for unit, method in (("row", FAST), ("patient", "auto")):
        for make in (make_private, make_benchmark):
            groups = np.arange(240) // 2 if unit == "patient" else None
            found[f"{unit} {make.__name__}"] = (
                make(head=method, unit=unit).fit(*make_rows(), groups=groups).privacy_
            )
    check_values("budgets_and_statements", scrub(found, tmp_path), rel=1e-8)


CARDS: list[dict[str, Any]] = [
    {},
    {"version": "2", "weights_sha256": "ab" * 32, "pretrained": False, "model": "clip"},
    {"dataset": "skin_2", "card": {"license": "MIT", "limits": "none", "contact": "a"}},
]


def test_bundles_hold_what_was_said(tmp_path: Path) -> None:
    X, y = make_rows()
    head = make_private(classes=["c", "a", "b"], head="prototypes").fit(X, np.array(list("abc"))[y])
    found = []
    for place, card in enumerate(CARDS):
        values: dict[str, Any] = {"dataset": "skin", "model": "vit", "each_by_itself": True} | card
        folder = head.save_bundle(tmp_path / f"v{place}", **values)
        facts = json.loads((folder / "bundle.json").read_text())
        found.append({key: value for key, value in facts.items() if key != "dpprobe"})
    check_values("estimator_bundles", scrub(found, tmp_path))


def test_rows_of_steps_are_compared() -> None:
    """To eight roundings of float32 of the row's own largest number, times the root of a width."""
    rows = np.array([[1.0, -64.0], [2.0**-20, 0.0], [0.0, 0.0]])
    for kind, width, place in itertools.product((np.float32, np.float64), (1, 100), (0, 1, 2)):
        size = np.abs(rows[place]).max()
        limit = 8 * math.sqrt(width) * 2.0**-23 * size
        for factor in (0.5, 1.0, 1.3, -2.0):
            other = rows.copy()
            other[place, 0] += factor * limit
            wanted = abs(factor) > 1 and size > 0
            pair = rows.astype(kind), other.astype(kind)
            assert callers._rows_differ(*pair, width=width) == wanted
    odd: list[Any] = [
        rows,
        rows.astype(np.float32),
        rows.astype(int),
        rows.astype(int) + 1,
        rows[:2],
        rows[0],
        np.where(rows > 0, np.nan, rows),
        np.where(rows < 0, np.nan, rows),
        rows.astype(str),
        np.where(rows > 0, np.inf, rows),
        np.where(rows > 0, -np.inf, rows),
        rows[:, :1],
    ]
    differ = [callers._rows_differ(one, other, width=4) for one in odd for other in odd]
    thin = [sparse.csr_matrix(rows), sparse.csr_matrix(rows * 2), sparse.csr_matrix(rows[:2])]
    differ += [callers._rows_differ(one, other, width=4) for one in thin for other in (*thin, rows)]
    hidden = [
        [package, started, public, answer_of(callers._check_hidden, package, started, public)]
        for package, started in itertools.product(("joblib", "ray"), ("sklearn.x:fit", "own:fit"))
        for public in ([], ["joblib"], ["ray", "joblib"])
    ]
    check_values("compared_rows", {"differ": differ, "hidden": hidden})


def test_rows_are_read_in_blocks_and_copies_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.arange(24, dtype=np.float32).reshape(8, 3) % 9
    found: dict[str, Any] = {}
    head, X = make_benchmark().fit(*make_rows(rows=60)), make_rows(1, rows=30).X
    scores = head.decision_function(X)
    for size in (1, 12, 24, 95, 96, 1000):
        for module in (array_inputs, fit_and_score, known_rows):
            monkeypatch.setattr(module, "SCORED_BYTES", size)
        units = [None, Units.number_units(list("abcdefgh")), Units.number_units(list("aabbcaab"))]
        for place, each in enumerate(units):
            found[f"{size} {place}"] = told(row_copies.warn_of_copies, rows, each, None)
        source = array_inputs.MappedRows(rows)
        np.testing.assert_array_equal(array_inputs.read_source(source), rows)
        found[f"{size} starts"] = [start for start, _ in source.read_blocks(size)]
        np.testing.assert_allclose(head.decision_function(X), scores, rtol=1e-5, atol=1e-5)
        monkeypatch.setattr(fit_and_score, "STREAMED_BYTES", size)
        for rates in ((1, 1), (1, 0.5), (0.5, 0.5)):
            plan: Any = SimpleNamespace(mechanisms=[SimpleNamespace(sample_rate=r) for r in rates])
            read = fit_and_score._read_features(source, plan)
            assert isinstance(read, torch.Tensor) == (min(rates) < 1 or size >= 4 * rows.size)
    np.testing.assert_array_equal(source.read_rows(np.array([1, 5])), rows[[1, 5]])
    longest = np.float32(LONGEST_ROW)
    lengths = [longest, np.nextafter(longest, np.float32(np.inf)), -longest, np.nan, np.inf, 0.0]
    long = np.array([[length, 0.0] for length in lengths], dtype=np.float32)
    kept = long.copy()
    found["cleared"] = told(array_inputs.clear_unusable, long)
    np.testing.assert_array_equal(long, kept)
    assert array_inputs.clear_unusable(rows) is rows
    found["joined"] = [
        told(array_inputs.join_blocks, iter(blocks))
        for blocks in ([rows[:3], rows[3:]], [], [rows, rows[:, 1:]], [rows[0]], [rows[:0], rows])
    ]
    drawn = [np.random.RandomState(seed) for seed in range(4)]
    states: list[Any] = [7, np.int64(2), *drawn, True, 7.0, "7"]
    found["seeds"] = [answer_of(fit_and_score._draw_seed, state) for state in states]
    for link in ("softmax", "sigmoid"):
        method: Any = SimpleNamespace(link_on=lambda _, link=link: link)
        found[link] = fit_and_score.link_scores(np.array([[0, 1], [-2e3, -1e3]], "f4"), method)
    check_values("read_rows", found)


def test_public_functions(tmp_path: Path) -> None:
    settings: list[dict[str, Any]] = [
        {"steps": 3},
        {"sample_rate": 0.1, "steps": 9},
        {"steps": 0},
        {"steps": 2.0},
        {"steps": True},
        {"sample_rate": 0.0},
        {"sample_rate": 1.1},
        {"delta": "x"},
        {"delta": 0.0},
        {"delta": 1e-9},
    ]
    priced = [
        [
            answer_of(dpprobe.calibrate, **{"epsilon": 2.0, "delta": 1e-5} | each),
            answer_of(dpprobe.epsilon_of, **{"noise_multiplier": 3.0, "delta": 1e-5} | each),
        ]
        for each in (*settings, {})
    ]
    plans = []
    for each in (
        {},
        {"delta": 1e-3},
        {"dimension": 512},
        {"ceiling": 0.9},
        {"majority": 0.4},
        {"n": 500},
        {"classes": 2},
        {"epsilon": 0.1},
        {"delta": 2.0},
        {"n": 7.5},
        {"ceiling": 1.5},
    ):
        usual: dict[str, Any] = {"n": 5000, "classes": 10, "epsilon": 1.0}
        said = answer_of(dpprobe.plan_accuracy, **usual | each)
        plans.append([said["setting"], said["choices"][0]] if isinstance(said, dict) else said)
    check_values("public_functions", scrub({"priced": priced, "plans": plans}, tmp_path), rel=1e-4)
