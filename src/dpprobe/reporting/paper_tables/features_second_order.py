"""The main results of Mehta et al. 2023: heads trained by second-order methods."""

from __future__ import annotations

from dpprobe.exhibits.published import Published
from dpprobe.exhibits.tables import BLANK, Table, make_row, make_table
from dpprobe.reporting.paper_tables.common import (
    FEATURES,
    INTERVALS,
    TITLES,
    Run,
    deltas_text,
    epsilon_cell,
    measured_cell,
    printed_cell,
    source_cell,
    study_command,
)
from dpprobe.reporting.paper_tables.registry import SECOND_ORDER
from dpprobe.results.best_private import best_of_each
from dpprobe.study.ablations import OPTIMISERS, keep_unique

LOGISTIC = "logistic"  # the table's column for heads in `OPTIMISERS`


def second_order_heads(run: Run, published: Published) -> Table:
    """Makes the table of published DP-FC results, and of the study's second-order heads."""
    private = [
        cell for cell in run.cells if cell.private and cell.head in (*SECOND_ORDER, *OPTIMISERS)
    ]
    rows = [
        make_row(
            TITLES[number.dataset or ""],
            epsilon_cell(number.epsilon),
            source_cell(published, number.citation),
            "not named",
            BLANK,
            BLANK,
            printed_cell(number),
            BLANK,
        )
        for number in published.select_numbers(paper=FEATURES)
    ]
    best = best_of_each(private, lambda c: (c.place, LOGISTIC if c.head in OPTIMISERS else c.head))
    places = keep_unique(place for place, _ in best)
    rows += [
        make_row(
            run.dataset_title(place[0]),
            epsilon_cell(place[2]),
            run.source,
            place[1],
            *(measured_cell(best.get((place, head))) for head in (*SECOND_ORDER, LOGISTIC)),
        )
        for place in places
    ]
    notes = [
        "Accuracy in percent, or AUC as a fraction if AUC is the dataset's metric. Published: δ "
        f"8e-7. Measured: {INTERVALS}{deltas_text(private)}; if several methods have the same "
        "head, the best one by test results. Logistic: noisy gradient steps of any optimiser. "
        "The paper says that least squares is better than logistic regression for ε from 1 to "
        "10, and by more below 1. The copy that we read gives no number for this. Blank: not "
        "run."
    ]
    if any(BLANK in row for row in rows[-len(places) :]):
        notes.append(f"{study_command(FEATURES)} runs these heads.")
    return make_table(
        "features_second_order_headline",
        "Second-order heads (headline results of Mehta et al. 2023)",
        ("<Data", "ε", "<Source", "<Backbone", *(f"±{head}" for head in (*SECOND_ORDER, LOGISTIC))),
        rows,
        notes,
    )
