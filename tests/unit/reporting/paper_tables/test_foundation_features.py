"""Tables of the foundation-features paper: measured cells at their positions, others blank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from dpprobe.exhibits.tables import Table
from dpprobe.results.cell_record import Measure
from dpprobe.results.cell_results import CellResult
from tests.support.made_grids import made_ceiling, made_result
from tests.support.paper_tables import paper_run, rows_as_text, table_of

CIFAR: dict[str, Any] = {"dataset": "cifar10", "backbone": "clip"}
COMMAND = "--configfile config/foundation_features.yaml"


def _table(cells: Sequence[CellResult], number: int = 2, **changes: Any) -> Table:
    return table_of(paper_run([], cells=cells, **changes), f"foundation_features_table{number}")


def _filled(table: Table, column: str = "pixels + sgd") -> list[dict[str, str]]:
    return [row for row in rows_as_text(table) if row[column]]


def test_measured_cells_are_shown_in_the_published_row_of_the_same_epsilon() -> None:
    cells = [
        *(made_result(mean, epsilon, **CIFAR) for mean, epsilon in ((0.5, 0.5), (0.6, 1.0))),
        made_result(0.9, math.inf, **CIFAR),
    ]
    rows = [row for row in rows_as_text(_table(cells)) if row["Data"] == "CIFAR-10"]
    assert [row["ε"] for row in rows] == ["0.5", "3", "6.78", "7.53", "8", "1"]
    assert rows[0]["clip + sgd"] == "50.0 ± 2.0"
    assert (rows[0]["CNN"], rows[0]["ViT+LC"]) == ("73.3", "94.0")
    assert [row["clip + sgd"] for row in rows[1:5]] == [""] * 4
    assert (rows[5]["Source"], rows[5]["CNN"]) == ("dpprobe, mine", "")
    assert rows[5]["clip + sgd"] == "60.0 ± 2.0"
    assert any(COMMAND in note for note in _table(cells).notes)


def test_an_epsilon_that_the_paper_does_not_state_is_marked() -> None:
    table = _table([])
    marked = {(row["Data"], row["ε"]) for row in rows_as_text(table) if "‡" in row["ViT+LC"]}
    assert marked == {("MNIST", "1.2"), ("Fashion-MNIST", "2.7")}
    assert "is inferred" in table.notes[0]


def test_a_dataset_mapped_to_a_published_one_is_shown_in_its_published_row() -> None:
    cells = [made_result(0.5, 0.5, dataset=name) for name in ("cifar10_local", "digits")]
    rows = _filled(_table(cells, names={"cifar10_local": "cifar10"}))
    assert [(row["Data"], row["Source"] == "dpprobe, mine") for row in rows] == [
        ("CIFAR-10", False),
        ("digits", True),
    ]
    assert rows[0]["CNN"] == "73.3"


@pytest.mark.parametrize(
    ("headline", "metric", "shown", "published"),
    [("auc", "AUC", "0.500 ± 0.020", "0.94"), ("accuracy", "accuracy", "50.0 ± 2.0", "")],
)
def test_an_accuracy_is_in_no_published_row_of_an_auc(
    headline: Any, metric: str, shown: str, published: str
) -> None:
    measure = Measure(headline=headline)
    cell = made_result(0.5, 0.5, dataset="chest_xray", measure=measure)
    (row,) = _filled(_table([cell]))
    assert (row["Data"], row["Metric"], row["ViT+LC"]) == ("Chest X-Ray", metric, published)
    assert row["pixels + sgd"] == shown
    assert (row["Source"] == "dpprobe, mine") is (headline == "accuracy")


def _probe(count: int | None, mean: float) -> dict[str, Any]:
    entry = {"mean": mean, "low": mean - 0.01, "high": mean + 0.01}
    return {"shots": count, "summary": {"accuracy": entry, "auc": entry}}


WHERE = CIFAR | {"headline": "accuracy"}
ZERO = WHERE | {"summary": _probe(None, 0.625)["summary"]}


def test_few_shot_results_are_shown_next_to_zero_shot_and_private_heads() -> None:
    cells = [
        made_result(mean, epsilon, method=method, **CIFAR)
        for epsilon, means in ((0.5, (0.5, 0.6)), (2.0, (0.7, 0.7)), (8.0, (0.8, 0.75)))
        for method, mean in zip(("sgd", "sgd_full"), means, strict=True)
    ]
    cells.append(made_ceiling(0.99, **CIFAR))
    few = WHERE | {"results": [_probe(None, 0.9), _probe(4, 0.5), _probe(16, 0.75)]}
    other = WHERE | {"backbone": "pixels", "results": [_probe(16, 0.3)]}
    table = _table(cells, 3, few_shot=[few, other], zero_shot=[ZERO])
    row, second = rows_as_text(table)
    assert row["Data"] == "CIFAR-10"
    assert list(row.items())[2:] == [
        ("Backbone", "clip"),
        ("Zero-shot", "62.5 ± 1.0"),
        ("4-shot", "50.0 ± 1.0"),
        ("16-shot", "75.0 ± 1.0"),
        ("Full", "90.0 ± 1.0"),
        ("DP, ε 0.5", "60.0 ± 2.0"),
        ("DP, ε 8", "80.0 ± 2.0"),
        ("DP method", "sgd_full, sgd"),
        ("DP, published (ε)", "92.7 (0.5)"),
    ]
    filled = {title for title, text in second.items() if text}
    assert filled == {"Data", "Metric", "Backbone", "16-shot", "DP, published (ε)"}
    assert "not private" in table.notes[0]
    assert any(COMMAND in note for note in table.notes), "some cells are blank"
