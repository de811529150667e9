"""Tables of Mehta et al. 2022: batch sizes, model sizes, changes and rates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpprobe.results.cell_results import compare_means, read_cell_results
from tests.support.paper_tables import (
    ablation_cells,
    paper_run,
    rows_as_text,
    table_of,
)


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
