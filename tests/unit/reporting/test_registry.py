"""Exhibits of analyses stand in their places among those of cells."""

from __future__ import annotations

from collections import Counter

from dpprobe.analysis_registry import load_analyses
from dpprobe.reporting.registry import EXHIBITS

ORDER = [
    "plot_tsne_grid",
    "plot_datasets",
    "plot_comparison",
    "plot_audit",
    "plot_membership",
    "plot_long_tail",
    "plot_law",
    "plot_fairness",
    "plot_imbalance",
    "plot_tsne",
    "write_dataset_table",
    "write_fairness_table",
    "write_law_tables",
    "write_imbalance_tables",
    "write_tables",
]


def test_reports_show_exhibits_in_their_order() -> None:
    assert [exhibit.name for exhibit in EXHIBITS if exhibit.name in ORDER] == ORDER


def test_every_exhibit_of_an_analysis_stands_once() -> None:
    count = Counter(exhibit.name for exhibit in EXHIBITS)
    assert set(count.values()) == {1}
    assert count.keys() >= {each.name for analysis in load_analyses() for each in analysis.exhibits}
