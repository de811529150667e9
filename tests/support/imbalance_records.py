"""Made-up records of rare classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpprobe.analyses.imbalance.imbalance_record import Estimate, ImbalanceRecord, RareCell
from dpprobe.analyses.imbalance.imbalance_record import TrainingSet as Trained
from dpprobe.analyses.imbalance.measure import break_down, least_reference
from dpprobe.privacy.limits import INFINITE


def share(value: float) -> Estimate:
    return Estimate(mean=value, std=0.01, low=max(0.0, value - 0.02), high=min(1.0, value + 0.02))


def rare_cell(
    recall: float, *, class_rows: int = 100, epsilon: str = "1", **changes: Any
) -> RareCell:
    """Returns a private cell whose reference has a recall of 0.8."""
    values: dict[str, Any] = {
        "training_set": f"digits_{class_rows}",
        "class_name": "cat",
        "fraction": class_rows / 5000,
        "class_rows": class_rows,
        "rows": 45_000 + class_rows,
        "method": "sgd",
        "epsilon": epsilon,
        "private": epsilon != INFINITE,
        "seeds": 5,
        "recall": share(recall),
        "auc": share(0.9),
        "never_predicted": 5 if recall == 0 else 0,
        "macro_accuracy": 0.75,
        "reference": ("nonprivate", INFINITE),
        "reference_recall": 0.8,
        "drop": 0.8 - recall,
        "drop_low": 0.75 - recall,
        "drop_high": 0.85 - recall,
    } | changes
    recalled = values["reference_recall"] or 0.0
    values.setdefault("reference_learnt", recalled > least_reference(10))
    return RareCell(**values)


def imbalance_record(cells: Sequence[RareCell]) -> ImbalanceRecord:
    """Returns the record of these cells."""
    names = list(dict.fromkeys(cell.class_name for cell in cells))
    methods = list(dict.fromkeys(cell.method for cell in cells if cell.private))
    whole = Trained(
        name="digits", class_name=None, fraction=1.0, rows=50_000, per_class=(5000, 5000)
    )
    return ImbalanceRecord(
        dataset="digits",
        backbone="pixels",
        classes=tuple(names),
        cells=tuple(cells),
        class_names=(*names, *(f"other {k}" for k in range(10 - len(names)))),
        training_sets=(whole,),
        break_downs=tuple(
            break_down(cells, class_name=name, method=method)
            for name in names
            for method in methods
        ),
    )
