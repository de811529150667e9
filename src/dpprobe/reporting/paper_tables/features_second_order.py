"""The headline of Mehta et al. 2023: second-order heads."""

from __future__ import annotations

from dpprobe.exhibits.published import Published
from dpprobe.exhibits.tables import BLANK, Table, make_row
from dpprobe.reporting.paper_tables.common import (
    FEATURES,
    INTERVALS,
    TITLES,
    Run,
    deltas_text,
    epsilon_cell,
    make_table,
    measured_cell,
    printed_cell,
    source_cell,
    study_command,
)
from dpprobe.reporting.paper_tables.registry import SECOND_ORDER
from dpprobe.results.best_private import best_result
from dpprobe.study.ablations import OPTIMISERS, keep_unique


def second_order_heads(run: Run, published: Published) -> Table:
    """Makes the table of DP-FC as published, and of the second-order heads of the study."""
    private = [
        cell for cell in run.cells if cell.private and cell.head in (*SECOND_ORDER, *OPTIMISERS)
    ]
    rows = [
        make_row(
            TITLES[number.dataset or ""], epsilon_cell(number.epsilon),
            source_cell(published, number.citation), "strongest private", BLANK, BLANK,
            printed_cell(number), BLANK,
        )
        for number in published.select_numbers(paper=FEATURES)
    ]  # fmt: skip
    keys = keep_unique((cell.dataset, cell.backbone, cell.epsilon) for cell in private)
    for key in keys:
        same = [c for c in private if (c.dataset, c.backbone, c.epsilon) == key]
        heads = [*((head,) for head in SECOND_ORDER), tuple(OPTIMISERS)]
        best = [best_result(c for c in same if c.head in group) for group in heads]
        dataset, backbone, epsilon = key
        rows.append(
            make_row(
                run.dataset_title(dataset), epsilon_cell(epsilon), run.source, backbone,
                *(measured_cell(cell) for cell in best),
            )
        )  # fmt: skip
    notes = [
        "Accuracy in percent, or AUC as a fraction where that is the dataset's metric. Published: "
        f"δ 8e-7. Measured: {INTERVALS}"
        f"{deltas_text(private)}; of several methods with one head the best, chosen by its test "
        "result. Logistic: noisy gradient steps of any optimiser. The paper says that least "
        "squares is better than logistic regression for ε from 1 to 10 and more so below 1; the "
        "copy that was read has no number for it. Blank: not run."
    ]
    if any(BLANK in row for row in rows[-len(keys) :]):
        notes.append(f"{study_command(FEATURES)} runs these heads.")
    return make_table(
        "features_second_order_headline",
        "Second-order heads (headline results of Mehta et al. 2023)",
        ("<Data", "ε", "<Source", "<Backbone", *(f"±{head}" for head in SECOND_ORDER), "±logistic"),
        rows,
        notes,
    )
