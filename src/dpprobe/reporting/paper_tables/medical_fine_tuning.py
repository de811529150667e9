"""AUCs of Berrada et al. 2023 on chest radiographs, compared with a study's networks and heads."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpprobe.exhibits.published import Published
from dpprobe.exhibits.tables import Table, TableCell, make_row, make_table
from dpprobe.reporting.headline import upper_first
from dpprobe.reporting.paper_tables.common import (
    INTERVALS,
    MEDICAL,
    TITLES,
    Run,
    deltas_text,
    epsilon_cell,
    measured_cell,
    printed_cell,
    source_cell,
)
from dpprobe.results.best_private import best_of_each
from dpprobe.results.cell_results import CellResult
from dpprobe.study.ablations import keep_unique

HEADS, FULL, BLOCKS = "last layer", "full", "part"


def radiographs_table(run: Run, published: Published) -> Table:
    """Makes a table of published and measured AUCs: one row per network and epsilon."""
    rows = [
        make_row(
            TITLES[number.dataset or ""],
            number.model or "",
            number.tuning or "",
            source_cell(published, number.citation),
            number.row,
            epsilon_cell(number.epsilon),
            printed_cell(number),
        )
        for number in published.select_numbers(paper=MEDICAL)
    ]
    cells = [cell for cell in run.cells if cell.measure.headline == "auc" and not cell.unpriced]
    ours = []
    for dataset, backbone in keep_unique((cell.dataset, cell.backbone) for cell in cells):
        same = [c for c in cells if (c.dataset, c.backbone) == (dataset, backbone)]
        for tuning in (FULL, BLOCKS, HEADS):
            ours += _make_rows(run, [cell for cell in same if _tuned_part(cell) == tuning], tuning)
    notes = [
        "AUC as a fraction, the mean over several labels. Published: δ is 1/N. The summary that "
        "we read does not say whether the networks were pretrained on ImageNet-21K or JFT-4B, "
        "nor who holds the state of the art. It has no AUC for MIMIC-CXR. Measured: the best "
        "method of each tuned part at each ε, chosen by its test result; ∞ is without privacy. "
        f"{upper_first(INTERVALS)}{deltas_text(cells)}."
    ]
    return make_table(
        "medical_fine_tuning_auc",
        "Chest radiographs (results of Berrada et al. 2023)",
        ("<Data", "<Model", "<Tuning", "<Source", "<Row or method", "ε", "±AUC"),
        [*rows, *ours],
        notes,
    )


def _make_rows(run: Run, cells: Sequence[CellResult], tuning: str) -> list[tuple[TableCell, ...]]:
    """Makes one row per epsilon from the cells that fine-tune one part of a network."""
    shown = (cell for cell in cells if cell.private or math.isinf(cell.epsilon))
    best = best_of_each(shown, lambda cell: cell.epsilon)
    return [
        make_row(
            run.dataset_title(cell.dataset),
            cell.backbone,
            tuning,
            run.source,
            cell.method,
            epsilon_cell(epsilon),
            measured_cell(cell),
        )
        for epsilon, cell in sorted(best.items())
    ]


def _tuned_part(cell: CellResult) -> str:
    tuned = cell.base_options.get("tune") if cell.network else "head"
    return HEADS if tuned == "head" else FULL if tuned == "all" else BLOCKS
