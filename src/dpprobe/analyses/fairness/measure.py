"""The fairness job: compares subgroups in all cells of one (dataset, backbone).

Not private: results are computed from labels, groups and scores of test examples, without noise.
All cells and attributes share resamples of the test units, so that the difference of two cells'
gaps is a paired difference. Gaps are computed for each head of a cell and then averaged, because a
release publishes one head. The parquet table is written first, the record last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpprobe.analyses.fairness.comparison import (
    Comparison,
    gap_of,
    group_rows,
    left_out_rows,
    make_comparisons,
    measure_comparison,
    no_gap,
)
from dpprobe.analyses.fairness.fairness_record import (
    COLUMNS,
    Attribute,
    CellAttribute,
    FairnessCell,
    FairnessRecord,
    Gap,
    Group,
    Minimum,
    Reference,
)
from dpprobe.analyses.fairness.gaps import Groups
from dpprobe.analyses.fairness.group_metrics import Head, Layout, Resamples
from dpprobe.analyses.fairness.groupings import Grouping, TestRows, make_groupings
from dpprobe.analyses.fairness.options import FairnessOptions
from dpprobe.data.people.group_columns import GROUP_PREFIX
from dpprobe.errors import DataError
from dpprobe.files.table_files import write_table
from dpprobe.heads.registry import method_options
from dpprobe.privacy.risk import find_risk
from dpprobe.progress import Progress
from dpprobe.results.cell_files import PREDICTIONS_FILE
from dpprobe.results.cell_record import CellRecord, check_file, read_cell
from dpprobe.results.metrics import ranked_labels
from dpprobe.results.unit_counts import unit_codes

_NUMBERS = ("value", "low", "high", "difference")
_COUNTS = ("rows", "units", "positives")
TABLE = pa.schema(
    [
        (name, pa.float64() if name in _NUMBERS else pa.int64() if name in _COUNTS else pa.string())
        for name in COLUMNS
    ]
)

Key = tuple[str, str]  # method and epsilon token
# Maps (attribute, metric) to the groups of each head of a cell.
Heads = Mapping[tuple[str, str], tuple[Groups, ...]]


def compare_groups(
    metrics: Sequence[Path],
    *,
    options: FairnessOptions,
    references: Sequence[Sequence[str]],
    table: Path,
    record: Path,
    seed: int,
    threads: int,
) -> None:
    """Compares groups of the test examples in all cells of a (dataset, backbone).

    Args:
      metrics: the path of metrics.json of each cell, in the folder of the cell's predictions.
      references: (method, epsilon, reference method, reference epsilon) per cell with a reference.

    Raises:
      DataError: if the cells were tested on different rows, a score is not finite, or the rows
        have none of the groups that the options name.
    """
    read = [(read_cell(path), check_file(path.with_name(PREDICTIONS_FILE))) for path in metrics]
    compared_with = {(method, epsilon): (of, at) for method, epsilon, of, at in references}
    first, predictions = read[0]
    rows = read_rows(first, predictions)
    work = _Work(rows=rows, options=options, seed=seed, threads=threads)
    described: dict[Key, FairnessCell] = {}
    lines: dict[Key, list[dict[str, Any]]] = {}
    kept: dict[Key, Heads] = {}
    label = f"groups of {first.cell.dataset}, {first.cell.backbone}"
    with Progress(len(read), label=label, unit="cells") as progress:
        # Reference cells are measured before other cells, which are compared with a reference.
        for cell, path in sorted(
            read, key=lambda item: _cell_key(item[0]) not in compared_with.values()
        ):
            key = _cell_key(cell)
            reference = compared_with.get(key)
            others = kept[reference] if reference else {}
            measured = work.measure_cell(read_heads(cell, path, rows), others)
            described[key] = work.describe_cell(cell, measured, reference)
            lines[key] = [{"method": key[0], "epsilon": key[1], **line} for line in measured.lines]
            if key in compared_with.values():
                kept[key] = measured.heads
            progress.advance_by(1)
    keys = [_cell_key(cell) for cell, _ in read]
    write_table(table, pa.Table.from_pylist([line for key in keys for line in lines[key]], TABLE))
    work.make_record(first, [described[key] for key in keys]).write(record, table)


def _cell_key(cell: CellRecord) -> Key:
    return cell.cell.method, cell.cell.epsilon


def read_rows(cell: CellRecord, predictions: Path) -> TestRows:
    """Reads labels, units and groups of the test examples from a cell's predictions."""
    table = pq.read_table(predictions, filters=[("seed_index", "==", cell.seeds[0]["index"])])
    units = unit_codes(table["unit"].to_pylist()) if "unit" in table.column_names else None
    return TestRows(
        labels=_read_labels(table["label"], cell.multi_label, len(cell.class_names)),
        class_names=tuple(cell.class_names),
        units=np.arange(table.num_rows) if units is None else units,
        named_units=units is not None,
        groups={
            name: table[name].to_pylist()
            for name in table.column_names
            if name.startswith(GROUP_PREFIX)
        },
    )


def _read_labels(column: pa.ChunkedArray, multi_label: bool, classes: int) -> np.ndarray:
    if not multi_label:
        return np.asarray(column.to_numpy(), dtype=np.int64)
    flat = column.combine_chunks().flatten().to_numpy()
    return np.asarray(flat.reshape(-1, classes) != 0)


def read_heads(cell: CellRecord, predictions: Path, rows: TestRows) -> list[Head]:
    """Reads scores of a cell's heads; raises DataError for other test rows or infinite scores."""
    table = pq.read_table(predictions, columns=["label", "scores"])
    heads, classes = len(cell.seeds), len(cell.class_names)
    labels = _read_labels(table["label"], cell.multi_label, classes)
    scores = table["scores"].combine_chunks().flatten().to_numpy()
    if not np.array_equal(labels, np.concatenate([rows.labels] * heads)):
        raise DataError(
            f"{predictions}: the test rows differ from the test rows of the first cell of this "
            "dataset and backbone; run the study again"
        )
    if not np.isfinite(scores).all():
        raise DataError(f"{predictions}: a score is not finite; delete this file and run again")
    link = method_options(cell.options).link_on(cell.multi_label)
    shaped = scores.reshape(heads, len(rows.labels), classes)
    return [Head(rows=rows, scores=of_head, link=link) for of_head in shaped]


@dataclass(frozen=True, kw_only=True)
class _Measured:
    overall: dict[str, float]
    gaps: list[dict[str, Gap]]
    lines: list[dict[str, Any]]
    heads: Heads


class _Work:
    """The rows, attributes and resamples that all cells of a job share."""

    def __init__(
        self, *, rows: TestRows, options: FairnessOptions, seed: int, threads: int
    ) -> None:
        self.rows = rows
        self.confidence = options.confidence
        self.minimum = Minimum.model_validate(options.minimum.model_dump())
        self.attributes = [
            (grouping, make_comparisons(rows, grouping, self.minimum, seed=seed))
            for grouping in make_groupings(
                rows, groups=options.groups, pairs=options.pairs, minimum=self.minimum
            )
        ]
        self.resamples = Resamples(rows.count, options.resamples, seed=seed, threads=threads)
        self.once = Resamples(rows.count, 0, seed=seed)

    def measure_cell(self, heads: Sequence[Head], reference: Heads) -> _Measured:
        """Measures one cell's gaps between groups, and compares them with the reference's gaps."""
        gaps, lines, groups = [], [], {}
        for grouping, comparisons in self.attributes:
            title = grouping.attribute
            of_metric: dict[str, Gap] = {}
            for item in comparisons:
                if item.metric not in heads[0].metrics:
                    continue
                of_metric[item.metric] = no_gap(item)
                made = list(left_out_rows(item))
                if item.kept:
                    measured = measure_comparison(
                        item, heads, self.resamples, self.once, self.confidence
                    )
                    groups[title, item.metric] = measured.heads
                    made = [*group_rows(measured, self.confidence), *made]
                    if item.is_possible:
                        other = reference.get((title, item.metric))
                        of_metric[item.metric] = gap_of(measured, other, self.confidence)
                lines += [{"attribute": title, **line} for line in made]
            gaps.append(of_metric)
        overall = self._measure_overall(heads)
        return _Measured(overall=overall, gaps=gaps, lines=lines, heads=groups)

    def _measure_overall(self, heads: Sequence[Head]) -> dict[str, float]:
        """Computes each metric over all rows, as a mean over heads and over defined labels."""
        rows = self.rows
        layout = Layout.layout_whole(len(rows.labels))
        ranked = [rows.class_names[i] for i in ranked_labels(rows.labels, len(rows.class_names))]
        labels = {
            "auc": ranked,
            "accuracy": list(rows.class_names),
            "recall": [name for name in rows.recalled_labels if rows.rows_with(name).any()],
            "calibration_error": [],
        }
        return {
            metric: float(
                np.mean(
                    [head.compute_metric(metric, layout, names, self.once)[0] for head in heads]
                )
            )
            for metric, names in labels.items()
            if metric in heads[0].metrics and (names or metric == "calibration_error")
        }

    def describe_cell(
        self, cell: CellRecord, measured: _Measured, reference: Key | None
    ) -> FairnessCell:
        return FairnessCell(
            method=cell.cell.method,
            epsilon=cell.cell.epsilon,
            epsilon_at_delta=cell.realised_epsilon if find_risk(cell.cell.epsilon) else None,
            private=cell.guaranteed,
            seeds=len(cell.seeds),
            reference=Reference(method=reference[0], epsilon=reference[1]) if reference else None,
            overall=measured.overall,
            attributes=tuple(
                CellAttribute(attribute=grouping.attribute, gaps=gaps)
                for (grouping, _), gaps in zip(self.attributes, measured.gaps, strict=True)
            ),
        )

    def make_record(self, first: CellRecord, cells: Sequence[FairnessCell]) -> FairnessRecord:
        return FairnessRecord(
            dataset=first.cell.dataset,
            backbone=first.cell.backbone,
            class_names=self.rows.class_names,
            multi_label=self.rows.multi_label,
            # Macro accuracy does not compare groups, because a group may lack classes.
            headline="auc" if first.headline == "auc" else "accuracy",
            cell_headline=first.headline,
            rows=len(self.rows.labels),
            units=self.rows.count if self.rows.named_units else None,
            resamples=self.resamples.count,
            confidence=self.confidence,
            minimum=self.minimum,
            attributes=tuple(_describe_attribute(*attribute) for attribute in self.attributes),
            cells=tuple(cells),
        )


def _describe_attribute(grouping: Grouping, comparisons: Sequence[Comparison]) -> Attribute:
    return Attribute(
        attribute=grouping.attribute,
        groups=tuple(
            Group(group=name, rows=rows, units=units, left_out=grouping.left_out.get(name))
            for name, rows, units in zip(
                grouping.names, grouping.rows.tolist(), grouping.units.tolist(), strict=True
            )
        ),
        compared={item.metric: item.compared for item in comparisons},
    )
