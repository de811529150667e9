"""Results and grids of results with numbers that a test chooses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dpprobe.results.cell_record import ACCURACY, Measure
from dpprobe.results.cell_results import CellResult
from dpprobe.results.summary import Choice, Entry, Grid

Key = tuple[str, float, str, str]  # dataset, epsilon, backbone, method


def made_entry(mean: float, **changes: Any) -> Entry:
    """Returns the entry of a private cell with one value per seed and no interval."""
    facts: dict[str, Any] = {
        "low": None,
        "high": None,
        "interval": None,
        "seeds": 3,
        "private": True,
        "ceiling": False,
        "test_units": 200,
    }
    return Entry(**facts | changes, mean=mean)


def made_grid(
    entries: Mapping[Key, Entry], *, measures: Mapping[str, Measure] | None = None, **changes: Any
) -> Grid:
    """Returns a grid of entries: datasets in the order of their first entry, epsilons ascending."""
    datasets = list(dict.fromkeys(key[0] for key in entries))
    rows = sorted({key[:2] for key in entries}, key=lambda row: (datasets.index(row[0]), row[1]))
    private = [key[:2] for key, entry in entries.items() if entry.private]
    facts: dict[str, Any] = {
        "deltas": dict.fromkeys(datasets, 1e-5),
        "above": frozenset(),
        "measures": dict.fromkeys(datasets, ACCURACY) | dict(measures or {}),
        "choices": {
            row: Choice(
                candidates=private.count(row), epsilon=2 * row[1] if math.isfinite(row[1]) else None
            )
            for row in private
        },
        "reasons": {name: f"Metric of {name}." for name in datasets},
    }
    return Grid(
        rows=tuple(rows),
        columns=tuple(sorted({key[2:] for key in entries})),
        entries=dict(entries),
        **facts | changes,
    )


def made_result(mean: float, epsilon: float = 1.0, **changes: Any) -> CellResult:
    """Returns the result of a cell with three seeds and an interval of ±2 points.

    The head "nonprivate" is the ceiling; any other head is private at a finite epsilon.
    """
    head = changes.get("head", changes.get("method", "sgd"))
    facts: dict[str, Any] = {
        "dataset": "digits",
        "backbone": "pixels",
        "method": head,
        "head": head,
        "private": math.isfinite(epsilon) and head != "nonprivate",
        "ceiling": head == "nonprivate",
        "measure": ACCURACY,
        "values": (mean,) * 3,
        "low": mean - 0.02,
        "high": mean + 0.02,
        "delta": 1e-5,
        "options": {"head": head},
        "train_rows": 1000,
        "n": 1000,
        "dimension": 64,
        "seconds": 3.0,
    }
    return CellResult(**facts | changes, mean=mean, epsilon=epsilon)


def made_ceiling(mean: float, **changes: Any) -> CellResult:
    return made_result(mean, math.inf, head="nonprivate", **changes)
