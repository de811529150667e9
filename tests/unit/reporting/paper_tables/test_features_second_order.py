"""The table of second-order heads."""

from __future__ import annotations

from pathlib import Path

from dpprobe.reporting.paper_tables.registry import SECOND_ORDER
from tests.support.paper_tables import paper_cell, paper_run, rows_as_text, table_of


def test_second_order_heads_stand_beside_the_published_headline(tmp_path: Path) -> None:
    heads = [*SECOND_ORDER, "sgd"]
    paths = [paper_cell(tmp_path, method=head, head=head) for head in heads]
    for run in range(len(heads) + 1):
        table = table_of(paper_run(paths[:run]), "features_second_order_headline")
        first, second, *ours = rows_as_text(table)
        assert (first["ε"], first["feature_covariance"]) == ("8", "88")
        assert (second["ε"], second["feature_covariance"]) == ("0.1", "84.3")
        filled = [[bool(row[head]) for head in (*SECOND_ORDER, "logistic")] for row in ours]
        assert filled == [[place < run for place in range(len(heads))]] * bool(run)
        named = any("config/features_second_order.yaml" in note for note in table.notes)
        assert named == (run < len(heads)), "heads that were not run"
