"""The table of second-order heads."""

from __future__ import annotations

from pathlib import Path

from tests.support.paper_tables import paper_cell, paper_run, rows_as_text, table_of


def test_second_order_heads_stand_beside_the_published_headline(tmp_path: Path) -> None:
    options = {"head": "feature_covariance"}
    path = paper_cell(tmp_path, method="dpfc", head="feature_covariance", options=options)
    first, second, ours = rows_as_text(
        table_of(paper_run([path]), "features_second_order_headline")
    )
    assert (first["ε"], first["feature_covariance"]) == ("8", "88")
    assert (second["ε"], second["feature_covariance"]) == ("0.1", "84.3")
    assert ours["feature_covariance"]
    assert ours["newton"] == ""
    notes = table_of(paper_run([path]), "features_second_order_headline").notes
    assert any("--configfile config/features_second_order.yaml" in note for note in notes)
