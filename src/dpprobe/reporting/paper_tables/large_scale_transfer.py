"""Tables 1 to 4, 8 and 9 of Mehta et al. 2022."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dpprobe.reporting.paper_tables.common import (
    INTERVALS,
    OURS,
    TITLES,
    TRANSFER,
    Run,
    deltas_text,
    epsilon_cell,
    make_table,
    measured_cell,
    nothing_measured,
    printed_cell,
    source_cell,
    study_command,
)
from dpprobe.reporting.published import Number, Published
from dpprobe.reporting.tables import BLANK, Table, TableCell, make_row, mean_cell
from dpprobe.results.best_private import best_ceiling, best_result
from dpprobe.results.cell_results import CellResult, difference
from dpprobe.study.ablations import best_base, changes, families, unique

# Gradient heads as the papers write them.
HEADS = {"sgd": "SGD", "momentum": "momentum", "adam": "Adam", "lamb": "LAMB"}
RATE_NOTE = (
    "What is compared: the published rates are images a second on one TPUv4 core, each visit a "
    "pass through the whole network (images are augmented); the measured ones are rows a second of "
    "the training job on this machine, all seeds together, from features that were extracted once. "
    "Extraction is not in them."
)


@dataclass(kw_only=True)
class _BatchRow:
    """One model at one epsilon.

    Attributes:
      best: the non-private ceiling, in the row without privacy.
      cells: by batch size.
      dimension: of the features, where measured.
      chosen: True if a cell is the best of several.
    """

    dataset: str
    model: str
    tuning: str
    source: TableCell
    epsilon: Any
    best: TableCell = BLANK
    cells: dict[int, TableCell] = field(default_factory=dict)
    dimension: int | None = None
    chosen: bool = False


def batch_sizes(run: Run, published: Published, table: str) -> Table:
    """Makes the table of one optimiser: a row a model and epsilon, a column a batch size."""
    printed = published.of_table(TRANSFER, table)
    assert printed.optimiser is not None
    rows = [*_printed_batches(published, table), *_measured_batches(run, printed.optimiser)]
    if table == "9":
        for row in rows:
            row.cells = {size: cell for size, cell in row.cells.items() if size < 2**17}
        rows = [row for row in rows if row.cells]
    sizes = sorted({size for row in rows for size in row.cells})
    best = any(row.best.text for row in rows)
    body = [
        make_row(
            row.dataset, row.model, row.tuning, row.source, epsilon_cell(row.epsilon),
            *([row.best] if best else []), *(row.cells.get(size, BLANK) for size in sizes),
        )
        for row in rows
    ]  # fmt: skip
    small = " and batches below 2^17" if table == "9" else ""
    return make_table(
        f"large_scale_transfer_table{table}",
        f"{printed.title} (table {table} of Mehta et al. 2022)",
        (
            "<Data", "<Model", "<Tuning", "<Source", "ε", *(["±Best"] if best else []),
            *(f"±{_size(size)}" for size in sizes),
        ),
        body,
        _batch_notes(run, rows, sizes, wanted=f"head {printed.optimiser}{small}"),
    )  # fmt: skip


def _batch_notes(
    run: Run, rows: Sequence[_BatchRow], sizes: Sequence[int], *, wanted: str
) -> list[str]:
    """Writes the notes of a table of batch sizes.

    Args:
      wanted: the methods that a study needs for measured rows.
    """
    notes = [
        "Test accuracy in percent (AUC as a fraction where that is the dataset's metric) by "
        "expected batch size; ∞ is without privacy. Published: δ 1e-6, fixed-size batches, top-1. "
        f"Measured: Poisson batches, frozen features, {INTERVALS}"
        f"{deltas_text(run.cells)}. Blank: not run at that batch size."
    ]
    measured_rows = [row for row in rows if not row.source.citation]
    if any(size not in row.cells for row in measured_rows for size in sizes):
        notes.append(
            "A measured row has the batch sizes of its methods' `batch_size:`; "
            f"{study_command(TRANSFER)} runs a sweep."
        )
    if any(row.best.text for row in rows):
        notes[0] += (
            " Best, published: momentum, batch size 512, without privacy; measured: logistic "
            "regression to convergence."
        )
    notes += _chosen(rows)
    if all(row.source.citation for row in rows):
        notes.append(nothing_measured(run, f"no method with {wanted}"))
    return notes


def _printed_batches(published: Published, table: str) -> list[_BatchRow]:
    """Makes the published rows of a table."""
    rows: dict[tuple[str, Any], _BatchRow] = {}
    for number in published.select(paper=TRANSFER, table=table):
        assert number.model is not None
        assert number.tuning is not None
        assert number.batch_size is not None
        assert number.dataset is not None
        row = rows.setdefault(
            (number.row, number.epsilon),
            _BatchRow(
                dataset=TITLES[number.dataset],
                model=number.model,
                tuning=number.tuning,
                source=source_cell(published, number.citation),
                epsilon=number.epsilon,
            ),
        )
        if number.column == "best":
            row.best = printed_cell(number)
        else:
            row.cells[number.batch_size] = printed_cell(number)
    return list(rows.values())


def _measured_batches(run: Run, head: str) -> list[_BatchRow]:
    """Makes the measured rows; methods that differ in batch size and learning rate share one.

    Methods of a single batch size have rows only where no methods of several sizes do: they are
    about something else.
    """
    options = {cell.method: cell.options for cell in run.cells if cell.head == head}
    groups = families(options, ("batch_size", "learning_rate"))
    groups = [group for group in groups if len(group) > 1] or groups
    rows = []
    for group in groups:
        cells = [cell for cell in run.cells if cell.method in group]
        keys = unique((c.dataset, c.backbone, c.epsilon) for c in cells)
        for dataset, backbone, epsilon in sorted(keys, key=lambda key: (key[0], key[1], -key[2])):
            same = [
                c
                for c in cells
                if (c.dataset, c.backbone, c.epsilon) == (dataset, backbone, epsilon)
            ]
            sizes = _by_batch_size(same)
            rows.append(
                _BatchRow(
                    dataset=run.title(dataset),
                    model=backbone,
                    tuning="last layer",
                    source=TableCell(text=f"{OURS}, {_group_name(group)}"),
                    epsilon=epsilon,
                    best=_ceiling(run, dataset, backbone) if math.isinf(epsilon) else BLANK,
                    cells={size: measured_cell(best_result(of)) for size, of in sizes.items()},
                    dimension=same[0].dimension,
                    chosen=any(len(of) > 1 for of in sizes.values()),
                )
            )
    return rows


def _by_batch_size(cells: Sequence[CellResult]) -> dict[int, list[CellResult]]:
    sizes: dict[int, list[CellResult]] = {}
    for cell in cells:
        if cell.batch_size:
            sizes.setdefault(cell.batch_size, []).append(cell)
    return sizes


def _chosen(rows: Iterable[_BatchRow]) -> list[str]:
    """Writes a note where methods share a batch size, as in a sweep of learning rates."""
    if not any(row.chosen for row in rows):
        return []
    return [
        "Measured, where several methods of a row have one batch size: the best of several by its "
        "test result, at each ε on its own."
    ]


def _group_name(group: Sequence[str]) -> str:
    return group[0] if len(group) == 1 else f"{group[0]} … {group[-1]}"


def _ceiling(run: Run, dataset: str, backbone: str) -> TableCell:
    cells = (cell for cell in run.cells if (cell.dataset, cell.backbone) == (dataset, backbone))
    return measured_cell(best_ceiling(cells))


def _size(size: int) -> str:
    exponent = round(math.log2(size))
    return f"2^{exponent}" if 2**exponent == size else f"{size:,}"


def model_sizes(run: Run, published: Published) -> Table:
    """Makes table 3: the largest batch of DP-LAMB, a row a model, without and with privacy."""
    rows = []
    for row in published.of_table(TRANSFER, "3").rows:
        numbers = _row_numbers(published, "3", row.row)
        private = numbers["dp_20"]
        rows.append(
            make_row(
                TITLES["imagenet"], private.model or "", BLANK, private.tuning or "",
                source_cell(published, private.citation), printed_cell(numbers["best"]),
                _size(2**20), printed_cell(numbers["inf_20"]), epsilon_cell(private.epsilon),
                printed_cell(private),
            )
        )  # fmt: skip
    measured_rows = _measured_batches(run, "lamb")
    ours = _largest_batches(measured_rows)
    notes = [
        "Test accuracy in percent (AUC as a fraction) at the largest batch of DP-LAMB; Best as in "
        "table 2. The published models were trained on JFT, which is not public."
    ]
    notes += _chosen(measured_rows)
    if not ours:
        notes.append(nothing_measured(run, "no method with head lamb"))
    return make_table(
        "large_scale_transfer_table3",
        "DP-LAMB by model size (table 3 of Mehta et al. 2022)",
        (
            "<Data", "<Model", "Features", "<Tuning", "<Source", "±Best, ε ∞", "Batch", "±ε ∞", "ε",
            "±Private",
        ),
        [*rows, *ours],
        notes,
    )  # fmt: skip


def _row_numbers(published: Published, table: str, row: str) -> dict[str, Number]:
    """Returns the numbers of a published row by column."""
    numbers = published.select(paper=TRANSFER, table=table, row=row)
    return {number.column: number for number in numbers}


def _largest_batches(batches: Sequence[_BatchRow]) -> list[tuple[TableCell, ...]]:
    """Makes a row for each model, method and finite epsilon, at the largest batch size."""
    groups: dict[tuple[str, str, str], list[_BatchRow]] = {}
    for batch in batches:
        groups.setdefault((batch.dataset, batch.model, batch.source.text), []).append(batch)
    rows = []
    for (dataset, model, source), group in groups.items():
        size = max(size for batch in group for size in batch.cells)
        largest = {batch.epsilon: batch for batch in group if size in batch.cells}
        free = largest.pop(math.inf, None)
        for epsilon, batch in sorted(largest.items()):
            rows.append(
                make_row(
                    dataset, model, TableCell(text=str(batch.dimension), value=batch.dimension),
                    "last layer", source, free.best if free else BLANK, _size(size),
                    free.cells[size] if free else BLANK, epsilon_cell(epsilon), batch.cells[size],
                )
            )  # fmt: skip
    return rows


def ablation(run: Run, published: Published) -> Table:
    """Makes table 4: one change at a time, with its difference to the base."""
    rows = []
    for row in published.of_table(TRANSFER, "4").rows:
        numbers = _row_numbers(published, "4", row.row)
        accuracy = numbers["accuracy"]
        rows.append(
            make_row(
                TITLES["imagenet"], accuracy.model or "", epsilon_cell(accuracy.epsilon), row.row,
                source_cell(published, accuracy.citation), printed_cell(accuracy),
                printed_cell(numbers["change"]),
            )
        )  # fmt: skip
    gradient = {c.method: c.options for c in run.cells if c.head in HEADS}
    base = run.base or best_base(gradient)
    ours = [] if base is None else _changed_rows(run, base)
    notes = [
        "Accuracy in percent (AUC as a fraction); a difference is to the row above it in which "
        "nothing changes. Published differences as printed, rounded on their own; measured ones ± "
        "half of the 95 % interval of the difference (Welch's t), where seeds vary."
    ]
    if ours:
        notes.append(
            f"Measured: methods of study {run.study} whose options differ from those of {base} in "
            "one, and backbones whose options differ from the first one's in one. Another "
            "optimiser comes with its own learning rate."
        )
    else:
        notes.append(nothing_measured(run, "no two gradient methods that differ in one option"))
    return make_table(
        "large_scale_transfer_table4",
        "One change at a time (table 4 of Mehta et al. 2022)",
        ("<Data", "<Model", "ε", "<Change", "<Source", "±Accuracy", "±Difference"),
        [*rows, *ours],
        notes,
    )


def _changed_rows(run: Run, base: str) -> list[tuple[TableCell, ...]]:
    """Makes rows for each private cell of the base method, and for the cells one change away.

    Of several backbones the first is the base.
    """
    rows = []
    cells = [cell for cell in run.cells if cell.method == base and cell.private]
    backbone = next((name for name in run.backbones if any(c.backbone == name for c in cells)), "")
    for first in (cell for cell in cells if cell.backbone == backbone):
        same = _one_change_away(run, first)
        for change, cell in [("no change", first), *same] if same else []:
            gap = BLANK if cell is first else _gap(first, cell)
            rows.append(
                make_row(
                    run.title(cell.dataset), first.backbone, epsilon_cell(cell.epsilon), change,
                    f"{OURS}, {cell.method}", measured_cell(cell), gap,
                )
            )  # fmt: skip
    return rows


def _one_change_away(run: Run, first: CellResult) -> list[tuple[str, CellResult]]:
    """Finds the cells that differ in one option of method or backbone, and describes it."""
    neighbours = []
    for other in run.cells:
        if (other.dataset, other.epsilon) != (first.dataset, first.epsilon) or not other.private:
            continue
        if other.backbone == first.backbone:
            changed = changes(first.options, other.options)
        elif other.method == first.method:
            changed = _deep_changes(run.backbones[first.backbone], run.backbones[other.backbone])
        else:
            continue
        if len(changed) == 1:
            neighbours.append((_described(changed), other))
    return neighbours


def _gap(first: CellResult, other: CellResult) -> TableCell:
    """Makes the cell of a difference, with its sign."""
    gap, half = difference(first.values, other.values)
    scale, digits = (1.0, 3) if first.measure.headline == "auc" else (100.0, 1)
    ends = (None, None) if half is None else (gap - half, gap + half)
    cell = mean_cell(gap, *ends, scale=scale, digits=digits)
    return replace(cell, text=cell.text if gap < 0 else f"+{cell.text}")


def _deep_changes(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return changes(_flat(base), _flat(other))


def _flat(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Names nested options by dotted names."""
    flat: dict[str, Any] = {}
    for key, value in options.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _described(changed: Mapping[str, tuple[Any, Any]]) -> str:
    """Writes changes as "LAMB → momentum" or "max grad norm 1 → 10"."""
    parts = []
    for key, (before, after) in changed.items():
        if key == "head":
            parts.append(f"{HEADS.get(before, before)} → {HEADS.get(after, after)}")
        else:
            name = key.replace("_", " ").replace(".", " ")
            parts.append(f"{name} {_brief(before)} → {_brief(after)}")
    return ", ".join(parts)


def _brief(value: Any) -> str:
    if value is None:
        return "default"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return str(value.get("kind", value))
    return str(value)


def throughput(run: Run, published: Published) -> Table:
    """Makes table 8: full fine-tuning against the last layer, and rows a second as measured."""
    rows = []
    for row in published.of_table(TRANSFER, "8").rows:
        numbers = _row_numbers(published, "8", row.row)
        ratio = numbers["speed_up"]
        rows.append(
            make_row(
                row.row, source_cell(published, ratio.citation), "DP-LAMB",
                printed_cell(numbers["full"]), printed_cell(numbers["last"]),
                TableCell(text=f"{ratio.text}×", value=ratio.value), BLANK, BLANK,
            )
        )  # fmt: skip
    ours = _rates(run)
    notes = [
        RATE_NOTE,
        "The measured rate is the median over a method's private cells of seeds × steps × batch "
        "size by the seconds of fitting, with what is recorded on the way, to two digits. Full "
        "fine-tuning is not part of this project: its measured column stays blank.",
    ]
    if not ours:
        notes.append(nothing_measured(run, "no private gradient head"))
    return make_table(
        "large_scale_transfer_table8",
        "Throughput, full fine-tuning against the last layer (table 8 of Mehta et al. 2022)",
        (
            "<Model", "<Source", "<Method", "Full, images/s/core", "Last layer, images/s/core",
            "Speed-up", "Features", "Last layer, rows/s of a job",
        ),
        [*rows, *ours],
        notes,
    )  # fmt: skip


def _rates(run: Run) -> list[tuple[TableCell, ...]]:
    """Makes a row for each backbone and private method, with its rows a second."""
    rates: dict[tuple[str, str, int], list[float]] = {}
    for cell in run.cells:
        visited = cell.visited_rows if cell.private and cell.seconds else None
        if cell.seconds and visited:
            key = cell.backbone, cell.method, cell.dimension
            rates.setdefault(key, []).append(visited / cell.seconds)
    rows = []
    for (backbone, method, dimension), values in rates.items():
        middle = float(f"{sorted(values)[len(values) // 2]:.2g}")
        rows.append(
            make_row(
                backbone, run.source, method, BLANK, BLANK, BLANK,
                TableCell(text=str(dimension), value=dimension),
                TableCell(text=f"{middle:,.0f}", value=middle),
            )
        )  # fmt: skip
    return rows
