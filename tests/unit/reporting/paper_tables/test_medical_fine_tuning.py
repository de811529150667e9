"""Chest radiographs, compared with Berrada et al. 2023."""

from __future__ import annotations

import math
from typing import Any

from dpprobe.results.cell_record import Measure
from dpprobe.results.cell_results import CellResult
from tests.support.made_grids import made_ceiling, made_result
from tests.support.paper_tables import paper_run, rows_as_text, table_of

WHERE: dict[str, Any] = {
    "dataset": "chexpert",
    "measure": Measure(headline="auc", multi_label=True, labels=5, num_classes=5),
}


def _network(mean: float, method: str, tune: Any, epsilon: float = 8.0, **more: Any) -> CellResult:
    options = {"head": "fine_tune", "tune": tune, "search": None}
    given = {"head": "fine_tune", "options": options, "network": True}
    return made_result(mean, epsilon, method=method, **WHERE | given | more)


def test_networks_parts_and_heads_have_rows_next_to_the_published() -> None:
    cells = [
        made_result(0.7, 8.0, **WHERE),
        made_result(0.75, 8.0, method="better", **WHERE),
        _network(0.8, "all", "all"),
        _network(0.81, "two", {"blocks": 2}),
        _network(0.99, "searched", "all", private=False, unpriced=True),
        _network(0.9, "free", "all", math.inf),
        _network(0.6, "head", "head", 2.0),
        made_ceiling(0.85, **WHERE),
        made_result(0.9, 8.0, method="accuracy"),
        made_result(0.65, 0.5, **WHERE | {"dataset": "mimic_cxr"}),
    ]
    rows = rows_as_text(table_of(paper_run([], cells=cells), "medical_fine_tuning_auc"))
    assert [(row["Row or method"], row["AUC"]) for row in rows[:3]] == [
        ("private", "0.8924"),
        ("non-private baseline", "0.8997"),
        ("state of the art", "0.93"),
    ]
    titles = ("Data", "Tuning", "Row or method", "ε", "AUC")
    assert [tuple(row[title] for title in titles) for row in rows[3:]] == [
        ("CheXpert", "full", "all", "8", "0.800 ± 0.020"),
        ("CheXpert", "full", "free", "∞", "0.900 ± 0.020"),
        ("CheXpert", "part", "two", "8", "0.810 ± 0.020"),
        ("CheXpert", "last layer", "head", "2", "0.600 ± 0.020"),
        ("CheXpert", "last layer", "better", "8", "0.750 ± 0.020"),
        ("CheXpert", "last layer", "nonprivate", "∞", "0.850 ± 0.020"),
        ("MIMIC-CXR", "last layer", "sgd", "0.5", "0.650 ± 0.020"),
    ]
