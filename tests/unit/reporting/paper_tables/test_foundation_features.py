"""Tables of the foundation-features paper: measured cells in their places, else blank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpprobe.artifacts import read_json
from dpprobe.results.cell_results import read_cell_results
from tests.support.paper_tables import paper_cell, paper_run, rows_as_text, table_of


def test_measured_cells_stand_in_the_published_row_of_their_epsilon(tmp_path: Path) -> None:
    cells = [
        paper_cell(tmp_path, dataset="cifar10", backbone="clip", epsilon=epsilon)
        for epsilon in ("0.5", "1", "inf")
    ]
    table = table_of(paper_run(cells), "foundation_features_table2")
    rows = [row for row in rows_as_text(table) if row["Data"] == "CIFAR-10"]
    assert [row["ε"] for row in rows] == ["0.5", "3", "6.78", "7.53", "8", "1"]
    record = read_json(cells[0])["summary"]["accuracy"]
    half = 50 * (record["high"] - record["low"])
    assert rows[0]["clip + sgd"] == f"{100 * record['mean']:.1f} ± {half:.1f}"
    assert (rows[0]["CNN"], rows[0]["ViT+LC"]) == ("73.3", "94.0")
    assert [row["clip + sgd"] for row in rows[1:5]] == [""] * 4
    assert (rows[5]["Source"], rows[5]["CNN"]) == ("dpprobe, mine", "")
    assert rows[5]["clip + sgd"]


def test_an_epsilon_that_the_paper_does_not_state_is_marked() -> None:
    table = table_of(paper_run([]), "foundation_features_table2")
    marked = {(row["Data"], row["ε"]) for row in rows_as_text(table) if "‡" in row["ViT+LC"]}
    assert marked == {("MNIST", "1.2"), ("Fashion-MNIST", "2.7")}
    assert "is inferred" in table.notes[0]


def test_the_note_names_the_command_that_runs_what_is_blank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [paper_cell(tmp_path, dataset="cifar10", epsilon="0.5")]
    table = table_of(paper_run(cells), "foundation_features_table2")
    words = "paper_tables --cores all --configfile config/foundation_features.yaml`"
    assert f"`snakemake {words}" in table.notes[1]
    monkeypatch.chdir(tmp_path)  # not the root of a clone
    table = table_of(paper_run(cells), "foundation_features_table2")
    assert f"`dpprobe run {words}" in table.notes[1]


def _probe(count: int | None, mean: float) -> dict[str, Any]:
    return {"shots": count, "summary": {"accuracy": {"mean": mean, "low": mean, "high": mean}}}


def test_shots_stand_beside_zero_shot_and_private_heads(tmp_path: Path) -> None:
    cells = [
        paper_cell(tmp_path, dataset="cifar10", backbone="clip", epsilon=epsilon, method=method)
        for epsilon in ("0.5", "2", "8")
        for method in ("sgd", "sgd_full")
    ]
    where = {"dataset": "cifar10", "backbone": "clip", "headline": "accuracy"}
    few = where | {"results": [_probe(None, 0.9), _probe(4, 0.5), _probe(16, 0.75)]}
    zero = where | {"summary": _probe(None, 0.625)["summary"]}
    run = paper_run(cells, few_shot=[few], zero_shot=[zero])
    table = table_of(run, "foundation_features_table3")
    (row,) = rows_as_text(table)
    titles = list(row)
    assert titles[3:9] == ["Zero-shot", "4-shot", "16-shot", "Full", "DP, ε 0.5", "DP, ε 8"]
    assert [row[title] for title in titles[3:7]] == [
        "62.5 ± 0.0", "50.0 ± 0.0", "75.0 ± 0.0", "90.0 ± 0.0",
    ]  # fmt: skip
    means = [
        cell.mean
        for cell in read_cell_results(cells)
        if cell.epsilon == 8 and cell.backbone == "clip"
    ]
    assert row["DP, ε 8"].startswith(f"{100 * max(means):.1f} ")
    assert row["DP, published (ε)"] == "92.7 (0.5)"
    assert "not private" in table.notes[0]
