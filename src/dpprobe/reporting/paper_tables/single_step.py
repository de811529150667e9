"""Figures 1b and 4 of Mehta et al. 2022 as tables: passes over the data, ReaL labels."""

from __future__ import annotations

import math

from dpprobe.exhibits.published import Number, Published
from dpprobe.exhibits.tables import BLANK, Table, TableCell, make_row
from dpprobe.reporting.paper_tables.common import (
    INTERVALS,
    TITLES,
    TRANSFER,
    Run,
    deltas_text,
    epsilon_cell,
    make_table,
    measured_cell,
    printed_cell,
    scaled_cell,
    source_cell,
)
from dpprobe.results.best_private import best_of_each

ACCURACIES, EPOCHS = "abstract and figure 1", "figure 1b"


def passes_table(run: Run, published: Published) -> Table:
    """Makes the table of figure 1b: epsilon, passes over the data, and accuracy."""
    rows = [
        make_row(
            TITLES[number.dataset or ""], number.model or "",
            source_cell(published, number.citation),
            epsilon_cell(number.epsilon), _delta_cell(number.delta),
            printed_cell(_find_epochs(published, number)), "", printed_cell(number),
        )
        for number in published.select_numbers(paper=TRANSFER, table=ACCURACIES)
    ]  # fmt: skip
    ours = []
    private = [cell for cell in run.cells if cell.private and cell.epochs is not None]
    for best in best_of_each(private, lambda cell: cell.place).values():
        ours.append(
            make_row(
                run.dataset_title(best.dataset), best.backbone, run.source,
                epsilon_cell(best.epsilon),
                _delta_cell(best.delta), TableCell(text=f"{best.epochs:.3g}", value=best.epochs),
                best.method, measured_cell(best),
            )
        )  # fmt: skip
    notes = [
        "Passes over the data: published as stated, measured in expectation over Poisson batches. "
        f"Measured: {INTERVALS}; of the study's gradient heads the best at each ε, chosen by its "
        "test result. AUC as a fraction where that is the dataset's metric. The paper's curve over "
        "other ε stands in a picture and is not here."
    ]
    return make_table(
        "large_scale_transfer_figure1b",
        "Passes over the data (figure 1b of Mehta et al. 2022)",
        ("<Data", "<Model", "<Source", "ε", "δ", "Epochs", "<Method", "±Accuracy"),
        [*rows, *ours],
        notes,
    )


def _find_epochs(published: Published, number: Number) -> Number | None:
    """Finds the passes that the paper states for the source of an accuracy."""
    same = published.select_numbers(paper=TRANSFER, table=EPOCHS, citation=number.citation)
    return same[0] if same else None


def _delta_cell(delta: float | None) -> TableCell:
    return BLANK if delta is None else TableCell(text=f"{delta:g}", value=delta)


def real_labels(run: Run, published: Published) -> Table:
    """Makes the table of figure 4: the same heads against ImageNet's and against ReaL's labels."""
    del published  # the paper's curve stands in a picture
    known = [cell for cell in run.cells if cell.real is not None]
    shown = (cell for cell in known if cell.private or math.isinf(cell.epsilon))
    best = best_of_each(shown, lambda cell: cell.place)
    rows = [
        make_row(
            run.dataset_title(cell.dataset), cell.backbone, run.source, epsilon_cell(cell.epsilon),
            cell.method, measured_cell(cell),
            scaled_cell(cell.real.mean, cell.real.low, cell.real.high, "accuracy"),
        )
        for _, cell in sorted(best.items())
        if cell.real is not None
    ]  # fmt: skip
    notes = [
        "The best method of the study at each ε, chosen by its test result against the dataset's "
        "labels; ∞ is without privacy. ReaL's labels name all that is to be seen on an image, and "
        f"an answer among them is right. Measured: {INTERVALS}{deltas_text(known)}. The paper's "
        "numbers stand in a picture and are not here."
    ]
    return make_table(
        "large_scale_transfer_figure4",
        "Accuracy against ReaL labels (figure 4 of Mehta et al. 2022)",
        ("<Data", "<Model", "<Source", "ε", "<Method", "±Accuracy", "±ReaL accuracy"),
        rows,
        notes,
    )
