"""Made-up records of subgroups, as the job writes them, for tests of what reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpprobe.analyses.fairness.fairness_record import (
    COLUMNS,
    FAIRNESS,
    RECORD_SUFFIX,
    TABLE_SUFFIX,
    FairnessRecord,
    fairness_path,
)
from dpprobe.artifacts import write_table
from dpprobe.privacy.limits import epsilon_value

GROUPS: dict[str, dict[str, int]] = {
    "sex": {"female": 420, "male": 380},
    "age": {"<40": 300, "40-59": 260, ">=60": 225, "unknown": 3},
}
_INTEGERS = ("rows", "units", "positives")
_TEXTS = ("method", "epsilon", "attribute", "group", "label", "metric", "left_out")


def write_fairness(
    results: Path,
    *,
    dataset: str = "digits",
    backbone: str = "pixels",
    methods: Sequence[str] = ("sgd", "newton"),
    epsilons: Sequence[str] = ("0.5", "1", "2", "inf"),
    reference: tuple[str, str] | None = ("nonprivate", "inf"),
    groups: Mapping[str, Mapping[str, int]] = GROUPS,
    headline: str = "auc",
    cell_headline: str | None = None,
    class_names: Sequence[str] = ("edema", "effusion"),
    seeds: int = 3,
    gap: Mapping[str, Any] | None = None,
) -> Path:
    """Writes one record and its table below the folder of results; returns the record's path.

    A group's metric falls with its place and with a small epsilon. The method named first in
    `reference` has a cell of its own at that epsilon alone.

    Args:
      groups: attribute -> group -> units; groups of fewer than 10 units are left out.
      gap: values that replace those of every gap.
    """
    cells = [(method, epsilon) for method in methods for epsilon in epsilons]
    if reference is not None and reference not in cells:
        cells.append(reference)
    made = [
        _cell(
            name, epsilon, groups, reference=reference, metric=headline, seeds=seeds, gap=gap or {}
        )
        for name, epsilon in cells
    ]
    record = FairnessRecord.model_validate(
        {
            "dataset": dataset,
            "backbone": backbone,
            "class_names": list(class_names),
            "multi_label": headline == "auc",
            "headline": headline,
            "cell_headline": cell_headline or headline,
            "rows": 2000,
            "units": 800,
            "resamples": 2000,
            "confidence": 0.95,
            "minimum": {"units": 10, "positives": 5, "negatives": 5},
            "attributes": [_attribute(name, sizes, headline) for name, sizes in groups.items()],
            "cells": made,
        }
    )
    folder = results / FAIRNESS
    rows = [
        row
        for cell in record.cells
        for name, sizes in groups.items()
        for row in _rows(cell.method, cell.epsilon, name, sizes, headline)
    ]
    write_table(fairness_path(folder, dataset, backbone, TABLE_SUFFIX), _table(rows))
    path = fairness_path(folder, dataset, backbone, RECORD_SUFFIX)
    record.write(path)
    return path


def value(method: str, epsilon: str, place: int) -> float:
    """The made-up metric of the group at a place of its attribute."""
    quality = 0.9 - 0.02 * (method == "newton") - 0.05 / (0.5 + epsilon_value(epsilon))
    return quality - 0.03 * place * (1 + 0.5 / epsilon_value(epsilon))


def _attribute(name: str, sizes: Mapping[str, int], metric: str) -> dict[str, Any]:
    return {
        "attribute": name,
        "groups": [
            {
                "group": group,
                "rows": 2 * units,
                "units": units,
                "left_out": "fewer than 10 units" if units < 10 else None,
            }
            for group, units in sizes.items()
        ],
        "compared": {metric: {"labels": [], "left_out": {}}},
    }


def _cell(
    method: str,
    epsilon: str,
    groups: Mapping[str, Mapping[str, int]],
    *,
    reference: tuple[str, str] | None,
    metric: str,
    seeds: int,
    gap: Mapping[str, Any],
) -> dict[str, Any]:
    """A cell of a record."""
    compared_with = None if reference in (None, (method, epsilon)) else reference
    return {
        "method": method,
        "epsilon": epsilon,
        "private": epsilon != "inf",
        "seeds": seeds,
        "reference": compared_with and dict(zip(("method", "epsilon"), compared_with, strict=True)),
        "overall": {metric: value(method, epsilon, 1)},
        "attributes": [
            {
                "attribute": name,
                "gaps": {
                    metric: _gap(
                        method, epsilon, [n for n in sizes.values() if n >= 10], sizes, reference
                    )
                    | dict(gap)
                },
                "parity": [
                    {
                        "threshold": threshold,
                        "label": label,
                        "demographic_parity_difference": 0.11,
                        "equal_opportunity_difference": 0.07 if label != "worst" else 0.12,
                        "equalized_odds_difference": None if threshold == "0.5" else 0.08,
                    }
                    for threshold in ("0.5", "false positive rate 0.1")
                    for label in ("edema", "effusion", "mean", "worst")
                ],
            }
            for name, sizes in groups.items()
        ],
    }


def _gap(
    method: str,
    epsilon: str,
    compared: Sequence[int],
    sizes: Mapping[str, int],
    reference: tuple[str, str] | None,
) -> dict[str, Any]:
    names: list[str | None] = [*sizes]
    names = names[: len(compared)] or [None]
    best, worst = value(method, epsilon, 0), value(method, epsilon, len(compared) - 1)
    distance = best - worst
    difference = None
    if reference is not None and reference != (method, epsilon):
        other = [value(*reference, place) for place in (0, len(compared) - 1)]
        difference = distance - (other[0] - other[1])
    return {
        "overall": value(method, epsilon, 1),
        "worst_group": names[-1],
        "worst": worst,
        "best_group": names[0],
        "best": best,
        "gap": distance,
        "low": max(0.0, distance - 0.035),
        "high": distance + 0.03,
        "std": 0.004,
        "chance_gap": 0.02 + 0.005 / epsilon_value(epsilon),
        "difference": difference,
        "difference_low": None if difference is None else difference - 0.02,
        "difference_high": None if difference is None else difference + 0.02,
        "groups": len(compared),
        "resamples": 2000,
    }


def _rows(
    method: str, epsilon: str, attribute: str, sizes: Mapping[str, int], metric: str
) -> list[dict[str, Any]]:
    rows = []
    for place, (group, units) in enumerate(sizes.items()):
        one = value(method, epsilon, place) if units >= 10 else None
        rows.append(
            {
                "method": method, "epsilon": epsilon, "attribute": attribute, "group": group,
                "label": "", "metric": metric, "value": one,
                "low": None if one is None else one - 0.02,
                "high": None if one is None else one + 0.02,
                "difference": None if one is None else one - value(method, epsilon, 1),
                "rows": 2 * units, "units": units, "positives": units // 3,
                "left_out": None if one else "fewer than 10 units",
            }
        )  # fmt: skip
    return rows


def _table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    def kind(name: str) -> pa.DataType:
        return pa.string() if name in _TEXTS else pa.int64() if name in _INTEGERS else pa.float64()

    schema = pa.schema([(name, kind(name)) for name in COLUMNS])
    return pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
