"""Chest radiographs beside Berrada et al. 2023."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.paper_tables import paper_cell, paper_run, rows_as_text, table_of

NAME = "medical_fine_tuning_auc"


def test_networks_parts_and_heads_have_rows_beside_the_published(tmp_path: Path) -> None:
    where: dict[str, Any] = {"dataset": "chexpert", "multi_label": True}
    whole = {"head": "fine_tune", "tune": "all", "search": None}
    part = whole | {"tune": {"blocks": 2}}
    searched = whole | {"search": {"trials": 2}}
    cells = [
        paper_cell(tmp_path, method="sgd", epsilon="8", **where),
        paper_cell(tmp_path, method="all", epsilon="8", head="fine_tune", options=whole, **where),
        paper_cell(tmp_path, method="two", epsilon="8", head="fine_tune", options=part, **where),
        paper_cell(tmp_path, method="s", epsilon="8", head="fine_tune", options=searched, **where),
        paper_cell(tmp_path, method="nonprivate", epsilon="inf", head="nonprivate", **where),
        paper_cell(tmp_path, method="accuracy", epsilon="8"),
    ]
    rows = rows_as_text(table_of(paper_run(cells), NAME))
    assert [(row["Row or method"], row["AUC"]) for row in rows[:3]] == [
        ("private", "0.8924"), ("non-private baseline", "0.8997"), ("state of the art", "0.93"),
    ]  # fmt: skip
    assert [(row["Data"], row["Tuning"], row["Row or method"], row["ε"]) for row in rows[3:]] == [
        ("CheXpert", "full", "all", "8"),
        ("CheXpert", "part", "two", "8"),
        ("CheXpert", "last layer", "sgd", "8"),
        ("CheXpert", "last layer", "nonprivate", "∞"),
    ]
    assert all(0 <= float(row["AUC"].split()[0]) <= 1 for row in rows)
