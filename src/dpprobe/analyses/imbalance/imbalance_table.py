"""The tables of rare classes: the best private method at each epsilon, and all numbers as CSV."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dpprobe.analyses.imbalance.imbalance_record import (
    BreakDown,
    Estimate,
    ImbalanceRecord,
    RareCell,
)
from dpprobe.counted_nouns import count_noun
from dpprobe.exhibits.tables import BLANK, Table, TableCell, make_row, make_table
from dpprobe.privacy.risk import budget_order, budget_title
from dpprobe.study.ablations import keep_unique

NOTE = (
    "Recall of the class in percent, mean over seeds, for the private method with the highest "
    "recall. The macro accuracy follows, because a head that predicts the class too often also "
    "has a high recall. The number of seeds that never predict the class follows in brackets. The "
    "best of several methods looks better than it is, and no epsilon covers selecting it by these "
    "results. Reference: trained without privacy on the same rows. Not private: test labels are "
    "read without noise."
)


def make_imbalance_tables(records: Sequence[Path]) -> Table:
    """Makes the tables of one dataset, from its records on all backbones."""
    read = [ImbalanceRecord.read(path) for path in records]
    return replace(best_table(read, notes=in_words(read)), numbers=numbers_table(read))


def best_table(records: Sequence[ImbalanceRecord], *, notes: Iterable[str] = ()) -> Table:
    """Makes the table for readers: one row per (backbone, class, number of images)."""
    epsilons = keep_unique(
        cell.epsilon
        for cell in sorted(
            (cell for record in records for cell in record.cells if cell.private),
            key=lambda cell: budget_order(cell.epsilon),
        )
    )
    rows = []
    for record in records:
        best = best_methods(record.cells)
        kinds = keep_unique((cell.class_name, cell.fraction) for cell in record.cells)
        for class_name, fraction in sorted(kinds, key=lambda kind: (kind[0], -kind[1])):
            chosen = [best.get((class_name, fraction, epsilon)) for epsilon in epsilons]
            first = next((cell for cell in chosen if cell), None)
            if first is None:
                continue
            rows.append(
                make_row(
                    record.backbone,
                    class_name,
                    f"{first.class_rows:,}",
                    f"{100 * fraction:g}",
                    *(_best_cell(cell) for cell in chosen),
                    _describe_references(chosen),
                )
            )
    titles = [budget_title(epsilon, "epsilon ") for epsilon in epsilons]
    columns = ("<backbone", "<class", "images", "% kept", *titles, "reference")
    return make_table("imbalance", "", columns, rows, [NOTE, *notes])


def best_methods(cells: Sequence[RareCell]) -> Mapping[tuple[str, float, str], RareCell]:
    """Returns the private cell with the largest recall for each (class, fraction, epsilon).

    No privacy guarantee covers the selection of cells by test results.
    """
    best: dict[tuple[str, float, str], RareCell] = {}
    for cell in cells:
        key = (cell.class_name, cell.fraction, cell.epsilon)
        if cell.private and (key not in best or cell.recall.mean > best[key].recall.mean):
            best[key] = cell
    return best


def _describe_references(cells: Sequence[RareCell | None]) -> str:
    """Formats the recall of the reference; with several references, adds methods' names."""
    recalls = {
        cell.reference[0]: f"{100 * cell.reference_recall:.1f}"
        for cell in cells
        if cell and cell.reference and cell.reference_recall is not None
    }
    if len(recalls) < 2:
        return "".join(recalls.values())
    return ", ".join(f"{recall} {method}" for method, recall in recalls.items())


def _best_cell(cell: RareCell | None) -> TableCell:
    if cell is None:
        return BLANK
    if cell.recall.mean == 0:
        return TableCell(text="0.0 every method", value=0.0)
    never = f" ({cell.never_predicted}/{cell.seeds} never)" if cell.never_predicted else ""
    macro = f"macro {100 * cell.macro_accuracy:.1f}"
    return TableCell(text=f"{100 * cell.recall.mean:.1f} {cell.method}, {macro}{never}")


def numbers_table(records: Sequence[ImbalanceRecord]) -> Table:
    """Makes the table for programs: one row per (backbone, class, fraction, method, epsilon)."""
    titles = [
        "backbone", "class", "fraction", "class_rows", "rows", "method", "epsilon", "private",
        "seeds", "recall", "recall_std", "recall_low", "recall_high", "auc", "auc_low", "auc_high",
        "never_predicted", "macro_accuracy", "reference_recall", "drop", "drop_low", "drop_high",
    ]  # fmt: skip
    rows = [
        make_row(record.backbone, *_format_cell(cell))
        for record in records
        for cell in record.cells
    ]
    return make_table("imbalance", "", titles, rows)


def _format_cell(cell: RareCell) -> list[str]:
    recall, auc = cell.recall, cell.auc
    numbers: list[float | None] = [recall.mean, recall.std, recall.low, recall.high]
    numbers += [auc.mean, auc.low, auc.high] if isinstance(auc, Estimate) else [None] * 3
    drops = [cell.reference_recall, cell.drop, cell.drop_low, cell.drop_high]
    return [
        cell.class_name,
        f"{cell.fraction:g}",
        str(cell.class_rows),
        str(cell.rows),
        cell.method,
        cell.epsilon,
        "yes" if cell.private else "no",
        str(cell.seeds),
        *map(_format_number, numbers),
        str(cell.never_predicted),
        _format_number(cell.macro_accuracy),
        *map(_format_number, drops),
    ]


def _format_number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def in_words(records: Sequence[ImbalanceRecord]) -> list[str]:
    """Describes the break-down points of all records in sentences."""
    lines = []
    for record in records:
        parts = [
            f"{each.class_name} by {each.method} {break_down_words(each)}"
            for each in record.break_downs
        ]
        lines.append(
            f"{record.backbone}: smallest product of images and epsilon at which the method keeps "
            f"half of the reference's recall: {'; '.join(parts)}."
        )
    return lines


def break_down_words(point: BreakDown) -> str:
    """Formats a break-down point, such as "from 73, always from 146 (2.5 to 1168 tried)".

    In the example, 73 is the smallest product n_c * epsilon that suffices, and 146 is the smallest
    product such that all larger products suffice too.
    """
    if point.smallest is None:
        return point.note
    tried = f"({point.smallest:g} to {point.largest:g} tried)"
    if point.reached is None:
        return f"{point.note} {tried}"
    always = "nowhere always" if point.lasting is None else f"always from {point.lasting:g}"
    left_out = f"; {count_noun(point.left_out, 'cell')} left out" if point.left_out else ""
    return f"from {point.reached:g}, {always} {tried}{left_out}"
