"""Refuses useless heads before any epsilon is spent.

A release is compared with the study's benchmark of its method, backbone and epsilon. At 95%
confidence the benchmark's head must be better than a constant prediction in its headline metric,
and rank images better than chance. The benchmark's heads must also predict each class. Without a
benchmark, the planner decides from public facts. If only one of benchmark and released head
balances classes, only the benchmark's AUC is checked. Checks of usefulness publish nothing;
`parts/choice` bounds the cost of using a benchmark.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpprobe.data.options import IMBALANCED, Headline, compute_imbalance
from dpprobe.errors import PrivacyError
from dpprobe.heads.facts import DataFacts
from dpprobe.planner.predicted_accuracy import Setting, n_that_would_do, too_few
from dpprobe.results.cautions import never_remedy
from dpprobe.results.cell_record import HEADLINES, CellRecord, read_cell
from dpprobe.results.headline_metric import constant_headline

CLASSES_NAMED = 5


def check_usefulness(
    name: str, *, benchmark: Path | None, facts: DataFacts, balanced: bool | None = None
) -> None:
    """Raises PrivacyError with reasons if a head is no better than a constant prediction.

    `benchmark` is `metrics.json` of the study's cell of equal method, backbone and epsilon; if the
    study has no such cell, the planner decides from public facts. `balanced` is True if the
    released head balances classes; None if it balances classes whenever the benchmark does.
    """
    record = None if benchmark is None else read_cell(benchmark)
    alike = record is None or balanced is None or record.balanced == balanced
    if record is None or not (alike or "auc" in record.summary):
        faults, source = list(_planner_faults(facts)), "the planner says"
    else:
        list_faults = benchmark_faults if alike else _ranking_faults
        faults, source = list(list_faults(record)), f"its benchmark {benchmark} shows"
    if faults:
        raise PrivacyError(
            f"release {name}: this head would be useless, {source}: {'; '.join(faults)}. No "
            "epsilon was spent. Use a larger epsilon, more images or another method, or set "
            "`allow_useless: true` in the release to make it anyway"
        )


def benchmark_faults(record: CellRecord) -> Iterator[str]:
    constant, summary = constant_headline(record), record.summary
    low = summary[record.headline].both_low
    if constant is not None and (low is None or low <= constant):
        begins = "no interval is known" if low is None else f"its 95% CI begins at {low:.3f}"
        yield (
            f"its {HEADLINES[record.headline]} is not better than the majority-class baseline, "
            f"{constant:.3f} ({begins})"
        )
    if record.headline != "auc":
        yield from _ranking_faults(record)
    if not record.multi_label:  # a label may rank well, although never predicted
        yield from _never_predicted(record)


def _ranking_faults(record: CellRecord) -> Iterator[str]:
    """Yields a fault for an AUC that may be chance; class balancing hardly changes an AUC."""
    low = record.summary["auc"].both_low if "auc" in record.summary else None
    if low is not None and low <= 0.5:
        yield f"the 95% CI of its AUC begins at {low:.3f}, so the ranking may be chance"


def _never_predicted(record: CellRecord) -> Iterator[str]:
    """Yields a fault that names classes which at least half of the seeds never predict."""
    seeds = [set(seed.get("never_predicted", ())) for seed in record.seeds]
    rarely = [
        name
        for index, name in enumerate(record.class_names)
        if 2 * sum(index in each for each in seeds) >= len(seeds)
    ]
    if rarely:
        more = f" and {len(rarely) - CLASSES_NAMED} more" if len(rarely) > CLASSES_NAMED else ""
        remedy = never_remedy(balanced=record.balanced)
        named = f"{', '.join(rarely[:CLASSES_NAMED])}{more}"
        yield f"it never predicts {named} ({remedy[0].lower()}{remedy[1:]})"


def _planner_faults(facts: DataFacts) -> Iterator[str]:
    """Yields a fault if public learning curves (with one label per example) require more units."""
    if facts.multi_label:
        return
    setting = Setting(
        n=facts.n,
        classes=facts.classes,
        epsilon=facts.epsilon,
        delta=facts.delta,
        dimension=facts.dimension,
    )
    if too_few(setting):
        enough = n_that_would_do(setting)
        would_do = f"; about {enough:,} are enough" if enough else ""
        yield (
            f"{facts.n:,} training {facts.unit}s are too few for {facts.classes} classes at "
            f"epsilon {facts.epsilon:g}{would_do}"
        )


def check_metric(name: str, metric: Headline, labels: npt.NDArray[Any]) -> None:
    """Raises PrivacyError if accuracy would hide a rare class; labels are [n] or [n, labels]."""
    if metric != "accuracy":
        return
    if labels.ndim == 2:
        positive = labels.sum(axis=0)
        ratio = max(compute_imbalance([each, len(labels) - each]) for each in positive)
        telling = "auc"
    else:
        counts = np.bincount(labels)
        ratio = compute_imbalance(counts.tolist())
        telling = "macro_accuracy" if len(counts) > 2 else "auc` or `metric: macro_accuracy"
    if ratio > IMBALANCED:
        raise PrivacyError(
            f"release {name}: its classes are unequal, so accuracy would hide the rare class; "
            f"write `metric: {telling}` in `evaluate`. No epsilon was spent"
        )
