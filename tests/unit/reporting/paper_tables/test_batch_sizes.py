"""Tables 1, 2, 3 and 9 of Mehta et al. 2022: batch sizes, and models with one optimiser."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dpprobe.exhibits.tables import Table
from dpprobe.results.cell_results import CellResult
from tests.support.made_grids import made_ceiling, made_result
from tests.support.paper_tables import LAMB, paper_run, rows_as_text, table_of

SWEEP = "--configfile config/large_scale_transfer.yaml"
CHOICE = "or another number: the best of this many methods"


def _lamb(mean: float, size: Any, epsilon: float = 8.0, **changes: Any) -> CellResult:
    """Returns a cell of DP-LAMB named by its batch size; `options` in `changes` adds options."""
    options = LAMB | {"batch_size": size, "head": "lamb"} | changes.pop("options", {})
    given = {"method": f"lamb_{size}", "head": "lamb", "options": options}
    return made_result(mean, epsilon, **given | changes)


def _table(cells: Sequence[CellResult], number: int = 2, **changes: Any) -> Table:
    return table_of(paper_run([], cells=cells, **changes), f"large_scale_transfer_table{number}")


def _ours(table: Table) -> list[dict[str, str]]:
    rows = rows_as_text(table)
    return [
        {title: text for title, text in row.items() if text}
        for row in rows
        if row["Source"].startswith("dpprobe")
    ]


CELLS = [
    *(
        _lamb(mean, size, epsilon)
        for size, means in ((64, (0.5, 0.8)), (256, (0.6, 0.85)), ("full", (0.7, 0.9)))
        for mean, epsilon in zip(means, (8.0, math.inf), strict=True)
    ),
    _lamb(0.4, 64, 2.0),
    made_ceiling(0.95),
    made_ceiling(0.93),
    made_ceiling(0.99, backbone="clip"),
    made_ceiling(0.98, dataset="other"),
]


def test_batch_sizes_share_a_row_per_epsilon_next_to_the_ceiling() -> None:
    table = _table(CELLS)
    free, private, small = _ours(table)
    assert list(free) == ["Data", "Model", "Tuning", "Source", "ε", "Best", "2^6", "2^8", "1,000"]
    assert (free["Data"], free["Model"], free["Tuning"]) == ("digits", "pixels", "last layer")
    assert free["Source"] == "dpprobe, lamb_64 … lamb_full"
    assert [free[title] for title in ("ε", "Best", "2^6", "2^8", "1,000")] == [
        "∞",
        "95.0 ± 2.0",
        "80.0 ± 2.0",
        "85.0 ± 2.0",
        "90.0 ± 2.0",
    ]
    assert [private.get(title) for title in ("ε", "Best", "2^6", "1,000")] == [
        "8",
        None,
        "50.0 ± 2.0",
        "70.0 ± 2.0",
    ]
    assert (small["ε"], small["2^6"], small.get("2^8")) == ("2", "40.0 ± 2.0", None)
    printed = next(row for row in rows_as_text(table) if row["Model"].startswith("ResNet50x4"))
    assert (printed["Best"], printed["2^20"], printed["2^6"]) == ("85.3", "72.6", "")
    assert any(SWEEP in note for note in table.notes), "2^20 was not measured"
    assert not any(CHOICE in note for note in table.notes)
    assert "δ 1e-05" in table.notes[0]


def test_the_model_sizes_take_the_largest_batch() -> None:
    free, *_ = [cell for cell in CELLS if cell.method == "lamb_full"]
    table = _table([*CELLS, free], 3)
    (row,) = _ours(table)
    shown = ("Batch", "Features", "Best, ε ∞", "ε ∞", "ε", "Private")
    assert [row[title] for title in shown] == [
        "1,000",
        "64",
        "95.0 ± 2.0",
        "90.0 ± 2.0",
        "8",
        "70.0 ± 2.0 (of 2)",
    ]
    printed = [row for row in rows_as_text(table) if row["Source"] == "Mehta et al. 2022"]
    assert {row["Batch"] for row in printed} == {"2^20"}
    assert printed[-1]["Private"] == "81.0", "ViT-H/14 - 4B"
