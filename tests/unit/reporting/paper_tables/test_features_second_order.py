"""The table of second-order heads."""

from __future__ import annotations

import math

from tests.support.made_grids import made_result
from tests.support.paper_tables import paper_run, rows_as_text, table_of

NAME = "features_second_order_headline"
COMMAND = "--configfile config/features_second_order.yaml"


def test_second_order_heads_are_shown_next_to_the_published_headline() -> None:
    cells = [
        made_result(0.8, 2.0, method="dpfc", head="feature_covariance"),
        made_result(0.85, 2.0, method="dpfc_2", head="feature_covariance"),
        made_result(0.5, 2.0),
        made_result(0.6, 2.0, head="adam"),
        made_result(0.9, 2.0, head="prototypes"),
        made_result(0.99, math.inf, method="free", head="newton"),
    ]
    table = table_of(paper_run([], cells=cells), NAME)
    first, second, ours = rows_as_text(table)
    assert (first["ε"], first["feature_covariance"]) == ("8", "88")
    assert (second["ε"], second["feature_covariance"]) == ("0.1", "84.3")
    assert (ours["ε"], ours["Backbone"], ours["Source"]) == ("2", "pixels", "dpprobe, mine")
    assert ours["feature_covariance"] == "85.0 ± 2.0"
    assert ours["logistic"] == "60.0 ± 2.0", "the best of SGD and Adam"
    assert ours["newton"] == ours["least_squares"] == ""
    assert any(COMMAND in note for note in table.notes)
