"""Made-up published numbers, what is known of them, and results beside them."""

from __future__ import annotations

import copy
from typing import Any

from dpprobe.exhibits import published
from dpprobe.exhibits.published import Published
from reproduction import facts
from reproduction.compare import Comparison, compare_all
from reproduction.facts import Facts
from reproduction.record import Result

PAPER: dict[str, Any] = {
    "short": "A et al. 2020",
    "authors": "A",
    "title": "T",
    "year": 2020,
    "venue": "V",
}
TABLE: dict[str, Any] = {
    "paper": "a_2020",
    "table": "1",
    "title": "Accuracy",
    "metric": "accuracy",
    "dataset": "cifar10",
    "epsilon": 2,
    "delta": 1e-5,
    "columns": {"a": {"title": "A"}, "change": {"title": "Change", "metric": "accuracy change"}},
    "rows": [{"row": "first", "values": {"a": 90.0}}],
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


def printed(*rows: dict[str, Any], **changes: Any) -> Published:
    """Makes a published table of these rows."""
    table = copy.deepcopy(TABLE) | ({"rows": list(rows)} if rows else {}) | changes
    return published.Published.model_validate({"citations": {"a_2020": PAPER}, "tables": [table]})


def known(*entries: dict[str, Any], **changes: Any) -> Facts:
    """Makes facts of entries, each the usual one with changes."""
    given = [ENTRY | entry for entry in entries or ({},)]
    return facts.parse({"weights": {"pixels": PIXELS}, "entries": given} | changes)


def result(**changes: Any) -> Result:
    """Makes a result that is like for like with `TABLE`'s first number, with changes."""
    return Result(**RESULT | changes)


def compared(published_: Published, facts_: Facts, *results: Result) -> Comparison:
    """Compares the first number."""
    return compare_all(published_, facts_, results)[0]
