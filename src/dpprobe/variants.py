"""The cells of a study as numbers with options, and which of them differ in one option alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from scipy.special import stdtrit

from dpprobe import config
from dpprobe.artifacts import canonical_json
from dpprobe.config import epsilon_value
from dpprobe.heads.gradient_options import GradientOptions
from dpprobe.metrics import CONFIDENCE
from dpprobe.summary import CEILING_HEAD, Measure, is_private, read_cell

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One cell: its headline metric as a fraction, and what it was made with.

    Attributes:
      values: the metric of each seed; `low` and `high` the ends of its 95 % interval, None where
        the cell has none.
      seconds: of training all seeds; None where a search hides its number of trials.
    """

    dataset: str
    backbone: str
    method: str
    epsilon: float
    head: str
    private: bool
    ceiling: bool
    measure: Measure
    values: tuple[float, ...]
    mean: float
    low: float | None
    high: float | None
    delta: float | None
    options: Mapping[str, Any]
    train_rows: int
    dimension: int
    seconds: float | None

    @property
    def batch_size(self) -> int | None:
        """Expected rows a gradient step; None for a head that takes none."""
        size = self.options.get("batch_size")
        return self.train_rows if size == "full" else size

    @property
    def visited_rows(self) -> float | None:
        """Rows that the gradient steps of all seeds took in expectation; None for other heads."""
        options = config.method_options(self.options)
        if not isinstance(options, GradientOptions):
            return None
        rows = self.train_rows
        return float(len(self.values) * options.step_count(rows) * options.batch(rows))


def read_measured(paths: Iterable[Path]) -> list[Measured]:
    """The cells that these `metrics.json` describe.

    Raises:
      DataError: when one is missing or is not a cell's record.
    """
    return [_measured(read_cell(path)) for path in paths]


def _measured(record: Mapping[str, Any]) -> Measured:
    cell, name = record["cell"], record["headline"]
    entry = record["summary"][name]
    return Measured(
        dataset=cell["dataset"],
        backbone=cell["backbone"],
        method=cell["method"],
        epsilon=epsilon_value(cell["epsilon"]),
        head=record["head"],
        private=is_private(dict(record)),
        ceiling=record["head"] == CEILING_HEAD,
        measure=Measure.of(dict(record)),
        values=tuple(seed[name] for seed in record["seeds"]),
        mean=entry["mean"],
        low=entry["low"],
        high=entry["high"],
        delta=record["delta"],
        options=record["options"],
        train_rows=record["rows"]["train"],
        dimension=record["dimension"],
        seconds=record["seconds"],
    )


def families(
    options: Mapping[str, Mapping[str, Any]], varying: Sequence[str]
) -> list[tuple[str, ...]]:
    """Names whose options are equal save for the varying ones, the largest family first.

    Args:
      options: by name.
      varying: options that may differ.

    Returns:
      Families of any size, one of a single name too, each in the order given.
    """
    groups: dict[str, list[str]] = {}
    for name, own in options.items():
        rest = {key: value for key, value in own.items() if key not in varying}
        groups.setdefault(canonical_json(rest), []).append(name)
    return sorted((tuple(group) for group in groups.values()), key=lambda group: -len(group))


def changes(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Options that differ: name -> (base's, the other's), None where one does not have it.

    Between two heads the options that only one of them knows belong to the head, and so does the
    learning rate: an optimiser's is another's only by chance.
    """
    found = {
        key: (base.get(key), other.get(key))
        for key in dict.fromkeys([*base, *other])
        if base.get(key) != other.get(key)
    }
    if "head" not in found:
        return found
    return {
        key: pair
        for key, pair in found.items()
        if key == "head" or (key in base and key in other and key != "learning_rate")
    }


def best_base(options: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The name from which most others differ in one option; of equals the first; None without."""
    counts = {
        name: sum(len(changes(own, other)) == 1 for other in options.values())
        for name, own in options.items()
    }
    if not counts or max(counts.values()) == 0:
        return None
    return max(counts, key=lambda name: counts[name])


def difference(base: Sequence[float], other: Sequence[float]) -> tuple[float, float | None]:
    """Mean of `other` minus mean of `base`, and half of its 95 % interval (Welch's t).

    The half is None where either has one value, or neither varies.
    """
    first, second = np.asarray(base, dtype=np.float64), np.asarray(other, dtype=np.float64)
    gap = float(second.mean() - first.mean())
    if len(first) < 2 or len(second) < 2:
        return gap, None
    parts = [values.var(ddof=1) / len(values) for values in (first, second)]
    spread = sum(parts)
    if spread <= 0:
        return gap, None
    freedom = spread**2 / sum(
        part**2 / (len(values) - 1) for part, values in zip(parts, (first, second), strict=True)
    )
    return gap, float(stdtrit(freedom, (1 + CONFIDENCE) / 2) * spread**0.5)


def unique(items: Iterable[T]) -> list[T]:
    """The items, each once, in the order of their first appearance."""
    return list(dict.fromkeys(items))
