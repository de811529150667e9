"""Facts about a cell's headline metric: why it was chosen, the worst class, and the baseline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpprobe.results.cell_record import CellRecord


@dataclass(frozen=True, kw_only=True)
class Least:
    """The worst class by mean recall over seeds, or the worst label by mean AUC over seeds."""

    name: str
    value: float


def least_class(record: CellRecord) -> Least | None:
    name = "per_label_auc" if record.multi_label else "per_class_recall"
    columns = [seed[name] for seed in record.seeds if name in seed]
    if not columns:
        return None
    values = np.array(columns, dtype=np.float64).mean(axis=0)  # None becomes NaN
    if np.isnan(values).all():
        return None
    worst = int(np.nanargmin(values))
    return Least(name=record.class_names[worst], value=float(values[worst]))


def constant_headline(record: CellRecord) -> float | None:
    """Returns the majority-class baseline's headline metric; None if unknown.

    The baseline always predicts one class, with recall 1. Its scores are equal: the AUC is 0.5.
    """
    if record.headline == "accuracy":
        return record.constant_accuracy
    if record.headline == "auc":
        return 0.5
    tested = sum(count > 0 for count in record.test_counts)
    return 1 / tested if tested else None


def resting_rows(record: CellRecord) -> float:
    """Returns the effective number of test examples, or patients, behind a headline's variance.

    For an accuracy, the effective number is the number of units. The variance of a macro accuracy
    or an AUC is a sum over classes, with a term proportional to 1 / m for a class of m units. By
    Satterthwaite (1946), the effective number is (sum 1 / m)^2 / sum 1 / m^3, with sums over the
    classes: K m for K classes of m units, and about m if one class is rare, with m units.
    """
    total = record.rows.test
    units = total if record.units is None else record.units.test
    if record.headline == "accuracy":
        return units
    counts = np.array(record.test_counts, dtype=np.float64)
    if record.multi_label:  # the rows with a label, and the rows without it
        counts = counts[(counts > 0) & (counts < total)]
        counts = np.append(counts, total - counts)
    counts = counts[counts > 0] * units / total
    if len(counts) == 0:
        return units
    return min(float(np.sum(1 / counts) ** 2 / np.sum(1 / counts**3)), units)


def headline_reason(record: CellRecord, metric_of: str = "the study or the catalog") -> str:
    """Names a cell's headline metric, with the reason; `metric_of` is where a study may set it."""
    counts = record.test_counts
    title = record.measure.title
    if record.metric_named:
        return f"Metric: {title} (set by {metric_of})."
    if record.multi_label:
        return f"Metric: {title} (an image may have several labels)."
    present = [count for count in counts if count]
    if len(present) < 2:
        return f"Metric: {title}. All test examples are of one class, so it says little."
    images = f"{min(present):,} to {max(present):,} test examples each"
    if max(present) == min(present):
        images = f"{max(present):,} test examples each"
    if record.headline == "accuracy":
        return f"Metric: {title} (classes are balanced: {images})."
    first, *_, second = record.class_names
    means = {
        "auc": f"the chance that a {second} image scores above a {first} one",
        "macro_accuracy": "the mean of the recalls of the classes",
    }
    return (
        f"Metric: {title}, {means[record.headline]}. Classes are imbalanced ({images}): accuracy "
        "would reward always predicting the majority class."
    )
