"""Ours beside published numbers, and what is known of these: what matches, differs, is refused."""

from __future__ import annotations

import math
from typing import Any

from dpprobe.exhibits import published
from reproduction import facts
from reproduction.compare import compare_all
from reproduction.record import Result
from tests.support.columns import or_error
from tests.support.stored_records import check_values

PAPER = {"short": "A et al. 2020", "authors": "A", "title": "T", "year": 2020, "venue": "V"}
FIRST = {"row": "first", "values": {"a": 90.0}}
TABLE: dict[str, Any] = {
    "paper": "a_2020",
    "table": "1",
    "title": "Accuracy",
    "metric": "accuracy",
    "dataset": "cifar10",
    "epsilon": 2,
    "delta": 1e-5,
    "columns": {"a": {"title": "A"}, "change": {"title": "Change", "metric": "accuracy change"}},
}
ENTRY: dict[str, Any] = {
    "paper": "a_2020",
    "table": "1",
    "rows": ["first"],
    "study": "config/mine.yaml",
    "weights": "pixels",
    "recipe": {"head": "sgd", "batch_size": 32},
    "ours": [{"study": "mine", "methods": ["sgd"]}],
}
PIXELS = {"title": "pixels", "access": "none needed", "backbone": {"family": "pixels"}}
RESULT: dict[str, Any] = {
    "study": "mine",
    "dataset": "cifar10",
    "backbone": "pixels",
    "backbone_options": {"family": "pixels", "size": 32},
    "method": "sgd",
    "head": "sgd",
    "options": {"head": "sgd", "batch_size": 32},
    "epsilon": 2.0,
    "delta": 1e-5,
    "private": True,
    "network": False,
    "metric": "accuracy",
    "values": (0.88, 0.90),
    "mean": 0.89,
    "low": 0.87,
    "high": 0.91,
    "train_rows": 50000,
    "seeds": 2,
}
# What differs from the published setting; the first ones make a stand-in of a result, the last
# ones set it beside no number.
DIFFERENT: tuple[dict[str, Any], ...] = (
    {},
    {"backbone_options": {"family": "timm", "model": "m"}},
    {"train_rows": 1000},
    {"delta": 1e-6},
    {"options": {"head": "sgd", "batch_size": 64}},
    {"options": {"head": "sgd"}},
    {"network": True},
    {"private": False},
    {"epsilon": 4.0},
    {"dataset": "mnist"},
    {"study": "another"},
    {"method": "another"},
    {"metric": "auc"},
    {"epsilon": math.inf},
)
CHANGED = {"ours": [{"study": "mine", "methods": ["b_*"], "base": "a_*", "take": "highest"}]}
SWEEPS = {
    "a_1": (0.5, (0.4, 0.6)),
    "a_2": (0.8, (0.79, 0.81)),
    "b_1": (0.83, (0.82, 0.84)),
    "b_2": (0.2, (0.1, 0.3)),
}
PRIVATE = {"title": "JFT", "access": "private", "backbone": {"family": "timm"}}
# Entries of facts with changes; None for the usual one.
REFUSED: tuple[dict[str, Any], ...] = (
    {"rows": ["first", "gone"]},
    {"columns": ["a", "b"]},
    {"weights": "gone"},
    {"study": None},
    {"note": "x"},
)


def printed(*rows: dict[str, Any]) -> published.Published:
    """Makes a published table of these rows."""
    values = {"citations": {"a_2020": PAPER}, "tables": [TABLE | {"rows": list(rows or [FIRST])}]}
    return published.Published.model_validate(values)


def known(*entries: dict[str, Any], **changes: Any) -> facts.Facts:
    """Makes facts of entries, each the usual one with changes."""
    given = [ENTRY | entry for entry in entries or ({},)]
    return facts.parse({"weights": {"pixels": PIXELS}, "entries": given} | changes)


def compare(table: published.Published, known_: facts.Facts, *results: Result) -> dict[str, Any]:
    """Compares the first number."""
    found = compare_all(table, known_, results)[0]
    names = ("like_for_like", "value", "ends", "gap", "unlike", "silent")
    return {"shown": found.result is not None} | {name: getattr(found, name) for name in names}


def test_results_are_like_for_like_stand_ins_or_beside_no_number() -> None:
    """Welch's half interval of the sweeps: t(0.975, 2) = 4.303 times sqrt(2 * 0.01^2)."""
    found = {str(each): compare(printed(), known(), Result(**RESULT | each)) for each in DIFFERENT}
    change = printed({"row": "first", "values": {"change": 1.0}})
    sweeps = [
        Result(**RESULT | {"method": method, "mean": mean, "values": values})
        for method, (mean, values) in SWEEPS.items()
    ]
    found["best of two sweeps"] = compare(change, known(CHANGED), *sweeps)
    check_values("reproduction_compared", found)


def test_numbers_outside_one_entry_and_names_that_are_not_there_are_refused() -> None:
    new = printed(FIRST, {"row": "new", "values": {"a": 2}})
    found = {"no entry": or_error(known().by_number, new)}
    found["two entries"] = or_error(lambda: known({}, {"columns": ["a"]}).by_number(printed()))
    for each in REFUSED:
        found[str(each)] = or_error(lambda each=each: known(each).by_number(printed()))
    found["private weights"] = or_error(known, weights={"pixels": PRIVATE})
    assert all(isinstance(error, str) for error in found.values())
    check_values("reproduction_refused", found)
