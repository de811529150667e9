"""Table 4 of Mehta et al. 2022, and its figure 1b as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dpprobe.exhibits.published import Number, Published
from dpprobe.exhibits.tables import BLANK, Table, TableCell, make_row, make_table, mean_cell
from dpprobe.reporting.paper_tables.common import (
    CHOICE_NOTE,
    INTERVALS,
    OURS,
    TITLES,
    TRANSFER,
    Run,
    best_of_cell,
    epsilon_cell,
    measured_cell,
    printed_cell,
    result_title,
    row_numbers,
    source_cell,
    study_command,
)
from dpprobe.results.best_private import best_of_each, best_result
from dpprobe.results.cell_results import CellResult, compare_means
from dpprobe.study.ablations import LEARNING_RATE, OPTIMISERS, best_base, find_changes

NO_CHANGE = "no change"


def ablation_table(run: Run, published: Published) -> Table:
    """Makes table 4: results with one changed option each, and the difference from the base."""
    rows = []
    for row in published.of_table(TRANSFER, "4").rows:
        numbers = row_numbers(published, "4", row.row)
        accuracy = numbers["accuracy"]
        rows.append(
            make_row(
                TITLES["imagenet"],
                accuracy.model or "",
                epsilon_cell(accuracy.epsilon),
                row.row,
                source_cell(published, accuracy.citation),
                printed_cell(accuracy),
                printed_cell(numbers["change"]),
            )
        )
    gradient = {c.method: c.options for c in run.cells if c.head in OPTIMISERS}
    base = run.base or best_base(gradient)
    ours = [] if base is None else _changed_rows(run, base)
    notes = [
        "Accuracy in percent (AUC as a fraction); each difference is from the closest row above "
        "without a change. Published differences are as printed, rounded separately. Measured "
        "differences have ± half of their 95% interval (Welch's t) if seeds differ."
    ]
    if ours:
        notes.append(
            f"Measured: methods of study {run.study} that differ from {base} in one option, and "
            "backbones that differ from the first backbone in one option. Each has its own "
            "learning rate."
        )
        if any(" (of " in row[-2].text for row in ours):
            notes.append(CHOICE_NOTE)
    else:
        notes.append(
            f"Study {run.study} has no two gradient methods that differ in one option, so there "
            f"are no measured rows; {study_command(TRANSFER)} runs some."
        )
    return make_table(
        "large_scale_transfer_table4",
        "One change at a time (table 4 of Mehta et al. 2022)",
        ("<Data", "<Model", "ε", "<Change", "<Source", result_title(run.cells), "±Difference"),
        [*rows, *ours],
        notes,
    )


def _changed_rows(run: Run, base: str) -> list[tuple[TableCell, ...]]:
    """Makes rows for private cells of the base method, and for cells that differ in one option.

    A row of the base method shows the first backbone and the best of several learning rates.
    """
    rows = []
    cells = [cell for cell in run.cells if cell.method == base and cell.private]
    backbone = next((name for name in run.backbones if any(c.backbone == name for c in cells)), "")
    for cell in (cell for cell in cells if cell.backbone == backbone):
        changed = _one_change_away(run, cell)
        same = [cell, *changed.pop(NO_CHANGE, [])]
        first = best_result(same)
        assert first is not None
        for change, others in {NO_CHANGE: same, **changed}.items() if changed else ():
            best = best_result(others)
            assert best is not None
            gap = BLANK if change == NO_CHANGE else _difference_cell(first, best)
            rows.append(
                make_row(
                    run.dataset_title(cell.dataset),
                    cell.backbone,
                    epsilon_cell(cell.epsilon),
                    change,
                    f"{OURS}, {best.method}",
                    best_of_cell(others),
                    gap,
                )
            )
    return rows


def _one_change_away(run: Run, first: CellResult) -> dict[str, list[CellResult]]:
    """Maps each change of one option of method or backbone to the cells with this change.

    The learning rate may differ too, because each change may need another learning rate.
    """
    neighbours: dict[str, list[CellResult]] = {}
    for other in (cell for cell in run.cells if cell.head in OPTIMISERS):
        if (other.dataset, other.epsilon) != (first.dataset, first.epsilon):
            continue
        rest, moved = (
            {key: value for key, value in cell.options.items() if key != LEARNING_RATE}
            for cell in (first, other)
        )
        changed = find_changes(rest, moved)
        if other.backbone != first.backbone:
            if changed:
                continue
            options = (run.backbones[cell.backbone] for cell in (first, other))
            changed = find_changes(*map(_flatten_options, options))
            if "preprocessing.crop" in changed:
                changed.pop("preprocessing.crops", None)  # another crop has another number of crops
        elif other.method == first.method:
            continue
        if len(changed) < 2:
            text = _describe_changes(changed) if changed else NO_CHANGE
            neighbours.setdefault(text, []).append(other)
    return neighbours


def _difference_cell(first: CellResult, other: CellResult) -> TableCell:
    gap, half = compare_means(first.values, other.values)
    scale, digits = (1.0, 3) if first.measure.headline == "auc" else (100.0, 1)
    ends = (None, None) if half is None else (gap - half, gap + half)
    cell = mean_cell(gap, *ends, scale=scale, digits=digits)
    return replace(cell, text=cell.text if gap < 0 else f"+{cell.text}")


def _flatten_options(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in options.items():
        if isinstance(value, Mapping):
            flat |= _flatten_options(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _describe_changes(changed: Mapping[str, tuple[Any, Any]]) -> str:
    """Formats changes, such as "LAMB → momentum" or "max grad norm 1 → 10"."""
    parts = []
    for key, (before, after) in changed.items():
        if key == "head":
            parts.append(f"{OPTIMISERS.get(before, before)} → {OPTIMISERS.get(after, after)}")
        else:
            name = key.replace("_", " ").replace(".", " ")
            parts.append(f"{name} {_shorten_value(before)} → {_shorten_value(after)}")
    return ", ".join(parts)


def _shorten_value(value: Any) -> str:
    if value is None:
        return "default"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return str(value.get("kind", value))
    return str(value)


def passes_table(run: Run, published: Published) -> Table:
    """Makes the table of figure 1b: epsilon, passes over the data, and accuracy."""
    rows = [
        make_row(
            TITLES[number.dataset or ""],
            number.model or "",
            source_cell(published, number.citation),
            epsilon_cell(number.epsilon),
            _delta_cell(number.delta),
            printed_cell(_find_epochs(published, number)),
            "",
            printed_cell(number),
        )
        for number in published.select_numbers(paper=TRANSFER, table="abstract and figure 1")
    ]
    ours = []
    private = [cell for cell in run.cells if cell.private and cell.epochs is not None]
    for best in best_of_each(private, lambda cell: cell.place).values():
        ours.append(
            make_row(
                run.dataset_title(best.dataset),
                best.backbone,
                run.source,
                epsilon_cell(best.epsilon),
                _delta_cell(best.delta),
                TableCell(text=f"{best.epochs:.3g}", value=best.epochs),
                best.method,
                measured_cell(best),
            )
        )
    notes = [
        "Passes over the data: published as stated, measured in expectation over Poisson "
        f"batches. Measured: {INTERVALS}; the best gradient head of the study at each ε, chosen "
        "by its test result. AUC as a fraction if AUC is the dataset's metric. The paper shows "
        "other ε only in a figure, so they are left out."
    ]
    return make_table(
        "large_scale_transfer_figure1b",
        "Passes over the data (figure 1b of Mehta et al. 2022)",
        ("<Data", "<Model", "<Source", "ε", "δ", "Epochs", "<Method", result_title(run.cells)),
        [*rows, *ours],
        notes,
    )


def _find_epochs(published: Published, number: Number) -> Number | None:
    same = published.select_numbers(paper=TRANSFER, table="figure 1b", citation=number.citation)
    return same[0] if same else None


def _delta_cell(delta: float | None) -> TableCell:
    return BLANK if delta is None else TableCell(text=f"{delta:g}", value=delta)
