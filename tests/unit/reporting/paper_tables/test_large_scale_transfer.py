"""Tables of Mehta et al. 2022: batch sizes, model sizes, changes and rates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpprobe.artifacts import read_json
from dpprobe.results.cell_results import compare_means, read_cell_results
from tests.support.paper_tables import (
    ablation_cells,
    batch_cells,
    paper_cell,
    paper_run,
    rows_as_text,
    table_of,
)


def test_batch_sizes_share_a_row_with_and_without_privacy(tmp_path: Path) -> None:
    table = table_of(paper_run(batch_cells(tmp_path)), "large_scale_transfer_table2")
    assert [c.title for c in table.columns][5:9] == ["Best", "2^6", "2^8", "1,000"]
    free, private = (row for row in rows_as_text(table) if row["Data"] == "digits")
    assert (free["ε"], private["ε"]) == ("∞", "8")
    assert all(private[title] for title in ("2^6", "2^8", "1,000"))
    assert free["Best"]
    assert private["Best"] == private["2^20"] == ""
    printed = next(row for row in rows_as_text(table) if row["Model"].startswith("ResNet50x4"))
    assert (printed["Best"], printed["2^20"], printed["2^6"]) == ("85.3", "72.6", "")
    assert any("--configfile config/large_scale_transfer.yaml" in note for note in table.notes)


def test_the_model_sizes_take_the_largest_batch(tmp_path: Path) -> None:
    table = table_of(paper_run(batch_cells(tmp_path)), "large_scale_transfer_table3")
    (row,) = [row for row in rows_as_text(table) if row["Data"] == "digits"]
    assert (row["Batch"], row["ε"], row["Features"]) == ("1,000", "8", "64")
    full = read_json(tmp_path / "cells/digits/pixels/lamb_full/eps-8/metrics.json")
    assert row["Private"].startswith(f"{100 * full['summary']['accuracy']['mean']:.1f} ")


def test_the_ablation_has_one_change_a_row_and_its_difference(tmp_path: Path) -> None:
    backbones: dict[str, Any] = {
        "pixels": {"family": "timm", "preprocessing": {"size": 224, "crop": "centre"}},
        "clip": {"family": "timm", "preprocessing": {"size": 256, "crop": "centre"}},
    }
    paths = ablation_cells(tmp_path)
    table = table_of(paper_run(paths, backbones=backbones), "large_scale_transfer_table4")
    ours = [row for row in rows_as_text(table) if row["Source"].startswith("dpprobe")]
    differences = {row["Change"]: row["Difference"] for row in ours if row["Model"] == "pixels"}
    assert list(differences) == [
        "no change", "max grad norm default → 10", "LAMB → momentum",
        "preprocessing size 224 → 256",
    ]  # fmt: skip
    assert differences["no change"] == ""
    base, clip = (cell.values for cell in read_cell_results(paths[:2]))
    gap, half = compare_means(base, clip)
    assert half is not None
    assert differences["max grad norm default → 10"] == f"{100 * gap:.1f} ± {100 * half:.1f}"
    assert differences["preprocessing size 224 → 256"].startswith("+")
    assert "dpprobe, two" not in {row["Source"] for row in ours}
    # the number of crops is part of the change of crop
    backbones["pixels"] = {"preprocessing": {"size": 256, "crop": "inception", "crops": 4}}
    del backbones["clip"]["family"]
    table = table_of(paper_run(paths, backbones=backbones), "large_scale_transfer_table4")
    changes = {row["Change"] for row in rows_as_text(table)}
    assert "preprocessing crop inception → centre" in changes


def test_passes_over_the_data_are_stated_with_accuracy(tmp_path: Path) -> None:
    options = {"head": "sgd", "batch_size": 50, "steps": 40}
    table = table_of(
        paper_run([paper_cell(tmp_path, options=options)]), "large_scale_transfer_figure1b"
    )
    rows = rows_as_text(table)
    stated = {(row["Source"], row["ε"]): (row["Epochs"], row["Accuracy"]) for row in rows}
    assert stated["Mehta et al. 2022", "[4, 10]"] == ("1", "81.7")
    assert stated["Kurakin et al. 2022", "10"] == ("70", "47.9")
    assert stated["De et al. 2022", "1"] == ("2500", "77.1")
    assert rows[-1]["Epochs"] == "2", "40 steps of 50 of 1,000 rows"
