"""Table 1 and theorem 3.1 of the foundation-features paper: dimensions, and training rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dpprobe.exhibits.published import Published
from dpprobe.exhibits.tables import BLANK, Table, TableCell, make_row, mean_cell
from dpprobe.reporting.paper_tables.common import (
    FOUNDATION,
    INTERVALS,
    Run,
    deltas_text,
    epsilon_cell,
    make_table,
    measured_cell,
    metric_name,
    printed_cell,
    source_cell,
    study_command,
)
from dpprobe.results.best_private import best_ceiling, best_result
from dpprobe.study.ablations import keep_unique

THEOREM = (
    "Theorem 3.1 as the paper states it, informally: with M sub-classes in a long-tailed "
    "distribution, sufficiently well-behaving algorithms are ε-differentially private with ε ≥ M "
    "ln N only. Its full version was not read: what well-behaving and long-tailed mean, and M, are "
    "not known, so ln N, which is M = 1, is no bound for a dataset. By the paper's reading, "
    "private results near those without privacy at an ε far below ln N say that the features are "
    "not long-tailed."
)


def dimensions_table(run: Run, published: Published) -> Table:
    """Makes table 1: the dimension of each extractor's features, published and measured."""
    rows = [
        make_row(
            number.model or "", "", source_cell(published, number.citation), printed_cell(number)
        )
        for number in published.select_numbers(paper=FOUNDATION, table="1")
    ]
    for backbone, options in run.backbones.items():
        widths = keep_unique(
            cell.dimension for cell in run.cells if cell.backbone == backbone and not cell.network
        )
        rows += [
            make_row(
                backbone, _architecture_name(options), run.source,
                TableCell(text=str(width), value=width),
            )
            for width in widths
        ]  # fmt: skip
    notes = [
        "Numbers an image. Measured: of the stored features that the heads of the study were "
        "trained on."
    ]
    if not run.cells:
        notes.append(f"Nothing was run; {study_command(FOUNDATION)} runs the paper's backbones.")
    return make_table(
        "foundation_features_table1",
        "Dimensions of the features (table 1 of the foundation-features paper)",
        ("<Backbone", "<Model", "<Source", "Dimension"),
        rows,
        notes,
    )


def _architecture_name(options: Mapping[str, Any]) -> str:
    return str(options.get("model") or options.get("family") or "")


def training_rows(run: Run, published: Published) -> Table:
    """Makes the table beside theorem 3.1: training rows, their logarithm, the price of privacy."""
    del published  # the paper prints no number for it
    rows = []
    private = [cell for cell in run.cells if cell.private]
    for dataset, backbone in _by_size(run):
        same = [c for c in run.cells if (c.dataset, c.backbone) == (dataset, backbone)]
        smallest = min(cell.epsilon for cell in same if cell.private)
        best = best_result(c for c in same if c.private and c.epsilon == smallest)
        assert best is not None
        ceiling = best_ceiling(same)
        auc = best.measure.headline == "auc"
        gap = BLANK
        if ceiling is not None:
            gap = mean_cell(
                ceiling.mean - best.mean, None, None, scale=1.0 if auc else 100.0,
                digits=3 if auc else 1,
            )  # fmt: skip
        rows.append(
            make_row(
                run.dataset_title(dataset), TableCell(text=f"{best.n:,}", value=best.n),
                mean_cell(math.log(best.n), None, None, scale=1.0, digits=2), backbone,
                metric_name(best.measure.headline), measured_cell(ceiling), epsilon_cell(smallest),
                measured_cell(best), gap, best.method,
            )
        )  # fmt: skip
    notes = [
        THEOREM,
        "N: training rows, or patients where they are the unit of privacy. Smallest ε of the study "
        "with its best private method, chosen by its test result; below: points (AUC as a "
        "fraction) below the non-private ceiling. Datasets differ in more than N. Measured: "
        f"{INTERVALS}{deltas_text(private)}.",
    ]
    if not rows:
        notes.append(f"Nothing private was run; {study_command(FOUNDATION)} runs seven datasets.")
    return make_table(
        "foundation_features_theorem",
        "Training rows and the price of privacy (beside theorem 3.1 of the foundation-features "
        "paper)",
        (
            "<Data", "N", "ln N", "<Backbone", "<Metric", "±Without privacy", "Smallest ε",
            "±Private", "Below", "<Method",
        ),
        rows,
        notes,
    )  # fmt: skip


def _by_size(run: Run) -> list[tuple[str, str]]:
    """Lists (dataset, backbone) with private cells, datasets of few rows first."""
    sizes = {(cell.dataset, cell.backbone): cell.n for cell in run.cells if cell.private}
    return sorted(sizes, key=lambda key: sizes[key])
