"""Theorem 3.1 of the foundation-features paper: training examples and the price of privacy."""

from __future__ import annotations

import math

from dpprobe.exhibits.published import Published
from dpprobe.exhibits.tables import BLANK, Table, TableCell, make_row, mean_cell
from dpprobe.reporting.paper_tables.common import (
    INTERVALS,
    Run,
    deltas_text,
    epsilon_cell,
    make_table,
    measured_cell,
    metric_name,
)
from dpprobe.results.best_private import best_ceiling, best_of_each

THEOREM = (
    "Theorem 3.1 as the paper states it, informally: with M sub-classes in a long-tailed "
    "distribution, sufficiently well-behaving algorithms are ε-differentially private with ε ≥ M "
    "ln N only. Its full version was not read: what well-behaving and long-tailed mean, and M, are "
    "not known, so ln N, which is M = 1, is no bound for a dataset. By the paper's reading, "
    "private results near those without privacy at an ε far below ln N say that the features are "
    "not long-tailed."
)


def training_rows(run: Run, published: Published) -> Table:
    """Makes the table beside theorem 3.1: training examples, their logarithm, loss by privacy."""
    del published  # the paper prints no number for it
    rows = []
    private = [cell for cell in run.cells if cell.private]
    results = best_of_each(private, lambda cell: cell.place)
    for dataset, backbone in _by_size(run):
        same = [c for c in run.cells if (c.dataset, c.backbone) == (dataset, backbone)]
        smallest = min(cell.epsilon for cell in same if cell.private)
        best = results[dataset, backbone, smallest]
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
