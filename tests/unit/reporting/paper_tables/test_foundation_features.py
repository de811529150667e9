"""Tables of the foundation-features paper: measured cells in their places, else blank."""

from __future__ import annotations

import re
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


def test_a_study_says_which_dataset_stands_for_a_published_one(tmp_path: Path) -> None:
    cells = [
        paper_cell(tmp_path, dataset=dataset, epsilon="0.5")
        for dataset in ("cifar10_local", "digits")
    ]
    run = paper_run(cells, names={"cifar10_local": "cifar10"})
    rows = rows_as_text(table_of(run, "foundation_features_table2"))
    (row,) = [row for row in rows if row["Data"] == "CIFAR-10" and row["pixels + sgd"]]
    assert (row["ε"], row["CNN"]) == ("0.5", "73.3")
    assert [row["Data"] for row in rows if row["Source"] == "dpprobe, mine"] == ["digits"]


def test_only_the_chosen_methods_stand_beside_published_results(tmp_path: Path) -> None:
    cells = [paper_cell(tmp_path, method=method) for method in ("sgd", "sgd_full")]
    table = table_of(paper_run(cells, methods=("sgd_full",)), "foundation_features_table2")
    assert [c.title for c in table.columns][-1] == "pixels + sgd_full"
    assert "pixels + sgd" not in [c.title for c in table.columns]


def test_an_auc_is_a_fraction_as_the_paper_prints_it(tmp_path: Path) -> None:
    path = paper_cell(
        tmp_path, dataset="chest_xray", epsilon="0.5", class_names=("ill", "well"), headline="auc",
        options={"head": "sgd"},
    )  # fmt: skip
    (row,) = [
        row
        for row in rows_as_text(table_of(paper_run([path]), "foundation_features_table2"))
        if row["Data"] == "Chest X-Ray" and row["pixels + sgd"]
    ]
    assert (row["Metric"], row["ViT+LC"]) == ("AUC", "0.94")
    assert re.fullmatch(r"0\.\d{3} ± 0\.\d{3}", row["pixels + sgd"])


def test_an_accuracy_is_in_no_published_row_of_an_auc(tmp_path: Path) -> None:
    cell = paper_cell(tmp_path, dataset="chest_xray", epsilon="0.5", class_names=("ill", "well"))
    table = table_of(paper_run([cell]), "foundation_features_table2")
    (row,) = [row for row in rows_as_text(table) if row["pixels + sgd"]]
    assert (row["Metric"], row["Source"], row["ViT+LC"]) == ("accuracy", "dpprobe, mine", "")


def test_of_two_datasets_for_a_published_row_the_one_that_ran_it_stands_there(
    tmp_path: Path,
) -> None:
    cells = [
        paper_cell(tmp_path, dataset="cifar10", epsilon="3"),
        paper_cell(tmp_path, dataset="mine", epsilon="0.5"),
    ]
    run = paper_run(cells, names={"cifar10": "cifar10", "mine": "cifar10"})
    table = table_of(run, "foundation_features_table2")
    rows = [row for row in rows_as_text(table) if row["Data"] in ("CIFAR-10", "CIFAR-10 (mine)")]
    assert [row["ε"] for row in rows if row["pixels + sgd"]] == ["0.5", "3"]
    assert len(rows) == 5, "no row of its own for what stands in a published one"


def _probe(count: int | None, mean: float) -> dict[str, Any]:
    return {"shots": count, "summary": {"accuracy": {"mean": mean, "low": mean, "high": mean}}}


@pytest.mark.parametrize("few", [True, False])
def test_blank_columns_of_shots_say_how_to_run_them(tmp_path: Path, few: bool) -> None:
    cells = [paper_cell(tmp_path, dataset="cifar10", backbone="clip", epsilon="0.5")]
    where = {"dataset": "cifar10", "backbone": "clip", "headline": "accuracy"}
    zero = where | {"summary": _probe(None, 0.625)["summary"]}
    probes = [where | {"results": [_probe(1, 0.5), _probe(None, 0.9)]}] if few else []
    table = table_of(
        paper_run(cells, few_shot=probes, zero_shot=[zero]), "foundation_features_table3"
    )
    asked = [note for note in table.notes if "few_shot:" in note]
    assert len(asked) == (0 if few else 1)
    assert all("--configfile config/foundation_features.yaml" in note for note in asked)


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


def test_zero_shot_has_its_own_metric_among_shots(tmp_path: Path) -> None:
    entry = {"mean": 0.5, "low": None, "high": None}
    zero = {"dataset": "d", "backbone": "clip", "headline": "auc", "summary": {"auc": entry}}
    probe = {"shots": 1, "summary": {"accuracy": entry, "auc": entry | {"mean": 0.9}}}
    few = {"dataset": "d", "backbone": "clip", "headline": "accuracy", "results": [probe]}
    cells = [paper_cell(tmp_path)]
    run = paper_run(cells, zero_shot=[zero], few_shot=[few])
    (row,) = rows_as_text(table_of(run, "foundation_features_table3"))
    assert (row["Metric"], row["Zero-shot"]) == ("accuracy or AUC", "0.500")
    assert row["1-shot"] == "50.0"
