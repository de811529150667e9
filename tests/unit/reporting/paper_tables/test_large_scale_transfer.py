"""Table 4 and figure 1b of Mehta et al. 2022: one change at a time, and passes over the data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from scipy import stats

from dpprobe.results.cell_results import CellResult
from tests.support.made_grids import made_ceiling, made_result
from tests.support.paper_tables import LAMB, paper_run, rows_as_text, table_of

BACKBONES = {
    "pixels": {"family": "timm", "preprocessing": {"size": 224, "crop": "centre"}},
    "clip": {"family": "timm", "preprocessing": {"size": 256, "crop": "centre"}},
}


def _cell(
    name: str,
    values: tuple[float, ...],
    epsilon: float = 1.0,
    *,
    backbone: str = "pixels",
    **options: Any,
) -> CellResult:
    options = LAMB | options
    mean = sum(values) / len(values)
    return made_result(
        mean,
        epsilon,
        method=name,
        values=values,
        options=options,
        head=options["head"],
        backbone=backbone,
    )


BASE = _cell("base", (0.5, 0.6, 0.7))
CLIPPED = _cell("clip", (0.4, 0.42, 0.5), max_grad_norm=10.0)
MOMENTUM = _cell("other", (0.7, 0.7, 0.7), head="momentum", learning_rate=1.0, beta=0.5)
CELLS = [
    BASE,
    CLIPPED,
    MOMENTUM,
    _cell("two", (0.9, 0.9, 0.9), steps=9, init="torch"),
    _cell("base", (0.8, 0.8, 0.8), backbone="clip"),
    _cell("clip", (0.9, 0.9, 0.9), backbone="clip", max_grad_norm=10.0),
    _cell("base", (0.9, 0.9, 0.9), 8.0),
    made_ceiling(0.99),
]


def _changes(
    cells: Sequence[CellResult], backbones: Any = BACKBONES, **changes: Any
) -> list[dict[str, str]]:
    run = paper_run([], cells=cells, backbones=backbones, **changes)
    rows = rows_as_text(table_of(run, "large_scale_transfer_table4"))
    return [row for row in rows if row["Source"].startswith("dpprobe")]


def test_the_ablation_has_one_change_a_row_and_its_difference() -> None:
    rows = _changes(CELLS)
    found = {row["Change"]: (row["Model"], row["Source"], row["Accuracy"]) for row in rows}
    assert found == {
        "no change": ("pixels", "dpprobe, base", "60.0 ± 2.0"),
        "max grad norm default → 10": ("pixels", "dpprobe, clip", "44.0 ± 2.0"),
        "LAMB → momentum": ("pixels", "dpprobe, other", "70.0 ± 2.0"),
        "preprocessing size 224 → 256": ("pixels", "dpprobe, base", "80.0 ± 2.0"),
    }
    assert {row["ε"] for row in rows} == {"1"}, "at 8 there is nothing to compare with"
    gaps = {row["Change"]: row["Difference"] for row in rows}
    assert gaps["no change"] == ""
    interval = stats.ttest_ind(CLIPPED.values, BASE.values, equal_var=False).confidence_interval()
    half = 50 * (interval.high - interval.low)
    assert gaps["max grad norm default → 10"] == f"-16.0 ± {half:.1f}"
    assert gaps["LAMB → momentum"].startswith("+10.0 ± ")
    assert gaps["preprocessing size 224 → 256"].startswith("+20.0 ± ")


def test_a_change_has_the_best_of_its_learning_rates() -> None:
    methods: dict[str, dict[str, Any]] = {"base": {}, "clip": {"max_grad_norm": 10.0}}
    cells = [
        _cell(f"{name}_{rate}", (mean,) * 3, learning_rate=rate, **changed)
        for name, changed in methods.items()
        for rate, mean in ((0.1, 0.5), (0.2, 0.7))
    ]
    run = paper_run([], cells=cells, base="base_0.1")
    table = table_of(run, "large_scale_transfer_table4")
    rows = [row for row in rows_as_text(table) if row["Source"].startswith("dpprobe")]
    assert [(row["Change"], row["Source"], row["Accuracy"]) for row in rows] == [
        ("no change", "dpprobe, base_0.2", "70.0 ± 2.0 (of 2)"),
        ("max grad norm default → 10", "dpprobe, clip_0.2", "70.0 ± 2.0 (of 2)"),
    ]
    assert any("differ from base_0.1 in one option" in note for note in table.notes)
    assert any("the best of this many methods" in note for note in table.notes)


def test_the_study_may_name_the_base() -> None:
    """By default, the base is the method with the most others that differ in one option."""
    cells = [BASE, CLIPPED, MOMENTUM]
    for named, base in ((None, "base"), ("clip", "clip")):
        rows = _changes(cells, base=named)
        assert (rows[0]["Change"], rows[0]["Source"]) == ("no change", f"dpprobe, {base}")


def test_passes_over_the_data_are_stated_with_accuracy() -> None:
    steps = {"head": "sgd", "batch_size": 50, "steps": 40}
    cells = [
        made_result(0.5, options=steps),
        made_result(0.7, method="more", options=steps | {"steps": 60}),
        made_result(0.9, method="closed", options={"head": "least_squares"}),
        made_result(0.95, math.inf, method="free", options=steps),
    ]
    table = table_of(paper_run([], cells=cells), "large_scale_transfer_figure1b")
    rows = rows_as_text(table)
    stated = {(row["Source"], row["ε"]): (row["Epochs"], row["Accuracy"]) for row in rows}
    assert stated["Mehta et al. 2022", "[4, 10]"] == ("1", "81.7")
    assert stated["Kurakin et al. 2022", "10"] == ("70", "47.9")
    assert stated["De et al. 2022", "1"] == ("2500", "77.1")
    (ours,) = [row for row in rows if row["Source"] == "dpprobe, mine"]
    shown = [ours[title] for title in ("Method", "Epochs", "δ", "ε", "Accuracy")]
    assert shown == ["more", "3", "1e-05", "1", "70.0 ± 2.0"], "60 steps of 50 of 1,000 rows"
