"""The tables of long tails: sub-classes, memorisation beside the price of privacy, correlations.

All of it is made from private examples without noise, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpprobe.analyses.long_tail.long_tail_record import (
    LONG_TAIL_TABLES,
    Frequencies,
    LongTailRecord,
    read_long_tails,
)
from dpprobe.analyses.long_tail.sub_classes import FEW
from dpprobe.artifacts import write_text
from dpprobe.exhibits import tables
from dpprobe.exhibits.tables import BLANK, Column, Table, TableCell, make_row, mean_cell
from dpprobe.privacy.limits import epsilon_token, epsilon_value
from dpprobe.results.best_private import best_result
from dpprobe.results.summary import Entry, Grid, read_grid

NOT_PRIVATE = "Not private: from training rows, and test rows, without noise."
NO_BOUND = (
    "M ln N is a reading of the foundation-features paper's informal theorem 3.1: training well on "
    "M long-tailed sub-classes of N rows would take an epsilon of so much. It is no proved bound "
    "for this data set: the theorem's assumptions are not known to hold, and M depends on the "
    "clustering."
)
FEWEST = 4  # points of a correlation: of three any order is likely by chance
NEAR = 2.0  # points below the ceiling within which a private result counts as near it

_REFERENCE = (
    "Reference: as many rows, drawn from one normal distribution a class with the variances of its "
    "principal components, clustered alike. What stands beside it is no sign of sub-classes unless "
    "it differs from it."
)
_GAP = (
    "Gap: percentage points of test results between the non-private ceiling and the best private "
    "head on the same features, which was chosen by its test result."
)


@dataclass(frozen=True)
class Gap:
    """The distance of the best private result from the ceiling, in percentage points."""

    dataset: str
    backbone: str
    epsilon: str
    points: float


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman's correlation of some points.

    Attributes:
      value: None below four points, and where a variable is the same at all of them.
      low, high: of a 95% interval; None with the value.
    """

    points: int
    value: float | None
    low: float | None = None
    high: float | None = None


def write_long_tail_tables(
    records: Sequence[Path],
    summaries: Sequence[Path],
    *,
    csv: Sequence[Path],
    markdown: Sequence[Path],
) -> None:
    """Writes each table as <name>.csv and <name>.md."""
    made = list_tables(read_long_tails(records), read_grid(summaries))
    for name, comma_separated, page in zip(LONG_TAIL_TABLES, csv, markdown, strict=True):
        write_text(comma_separated, tables.comma_separated(made[name]))
        write_text(page, tables.write_markdown(made[name]))


def list_tables(records: Sequence[LongTailRecord], grid: Grid) -> dict[str, Table]:
    """Makes the tables, by name."""
    gaps = private_gaps(grid)
    made = (sub_class_table(records), gap_table(records, gaps), correlation_table(records, gaps))
    return {table.name: table for table in made}


def private_gaps(grid: Grid) -> list[Gap]:
    """Returns the gap of each (dataset, backbone) that has a ceiling, at each finite epsilon."""
    results: dict[tuple[str, str, float], list[float]] = {}
    ceilings: dict[tuple[str, str], list[Entry]] = {}
    for (dataset, epsilon, backbone, _), entry in grid.entries.items():
        if entry.private:
            results.setdefault((dataset, backbone, epsilon), []).append(entry.mean)
        elif entry.ceiling:
            ceilings.setdefault((dataset, backbone), []).append(entry)
    gaps = []
    for (dataset, backbone, epsilon), means in sorted(results.items()):
        ceiling = best_result(ceilings.get((dataset, backbone), []))
        if ceiling is not None:
            points = ceiling.mean - max(means)
            gaps.append(Gap(dataset, backbone, epsilon_token(epsilon), points))
    return gaps


def sub_class_table(records: Sequence[LongTailRecord]) -> Table:
    """Makes the table of sub-classes: one row per (dataset, backbone, clusters)."""
    rows = []
    for record in records:
        for item in sorted(record.sub_classes, key=lambda part: part.clusters):
            measured, plain = item.measured, item.reference
            rows.append(
                make_row(
                    record.dataset,
                    record.backbone,
                    _count_cell(item.clusters),
                    _count_cell(measured.sub_classes),
                    _index_cell(measured),
                    _index_cell(plain),
                    *(_percent_cell(measured.few[few]) for few in FEW),
                    _percent_cell(plain.few[FEW[-1]]),
                    _number_cell(measured.effective),
                    _number_cell(plain.effective),
                    _number_cell(math.log(record.units), digits=2),
                    _number_cell(item.m_ln_n, digits=0),
                )
            )
    titles = [
        "clusters a class",
        "sub-classes",
        "tail index",
        "reference index",
        *(f"≤ {few} row{'s' * (few > 1)} %" for few in FEW),
        f"reference ≤ {FEW[-1]} %",
        "M",
        "reference M",
        "ln N",
        "M ln N",
    ]
    return Table(
        name="long_tail",
        title="Sub-classes of each class, not private",
        columns=(
            *_name_columns(),
            *(Column(title=title, interval="index" in title) for title in titles),
        ),
        rows=rows,
        notes=[
            f"{NOT_PRIVATE} Tail index: the r-th most frequent sub-class of a class has a share in "
            "proportion to r^-index, 0 where all are equally frequent; the interval (95%) is over "
            "rows, not over clusterings. ≤ 1, 2, 5 rows: the share of sub-classes with so few. M: "
            f"the effective number of sub-classes, exp(entropy). {_REFERENCE} {NO_BOUND}",
        ],
    )


def gap_table(records: Sequence[LongTailRecord], gaps: Sequence[Gap]) -> Table:
    """Makes the table of memorisation and of gaps: one row per (dataset, backbone)."""
    epsilons = sorted({gap.epsilon for gap in gaps}, key=epsilon_value)
    by_place = {(gap.dataset, gap.backbone, gap.epsilon): gap.points for gap in gaps}
    rows = []
    for record in records:
        place = record.dataset, record.backbone
        points = [by_place.get((*place, epsilon)) for epsilon in epsilons]
        near = [
            epsilon
            for epsilon, value in zip(epsilons, points, strict=True)
            if value is not None and value <= NEAR
        ]
        rows.append(
            make_row(
                *place,
                *_memorisation_cells(record),
                _number_cell(record.finest.m_ln_n, digits=0),
                near[0] if near else BLANK,
                *(BLANK if value is None else _number_cell(value) for value in points),
            )
        )
    titles = ["memorised %", "by chance %", "accuracy lost", "rows scored", "M ln N"]
    titles += [f"within {NEAR:g} points at ε"] + [f"gap at ε {epsilon}" for epsilon in epsilons]
    intervals = ("memorised %", "accuracy lost")
    return Table(
        name="long_tail_gap",
        title="Memorised rows and the price of privacy, not private",
        columns=(
            *_name_columns(),
            *(Column(title=each, interval=each in intervals) for each in titles),
        ),
        rows=rows,
        notes=[
            f"{NOT_PRIVATE} Memorised: training rows that a ridge head is right about more often "
            "with them than without, by over 0.25 (Feldman and Zhang 2020); by chance: the share "
            "that as many heads show where no row is memorised. Accuracy lost: test accuracy, in "
            "points, without these rows, below that without as many random ones. "
            f"{_GAP} {NO_BOUND}",
        ],
    )


MEASURES: Mapping[str, Callable[[LongTailRecord], float | None]] = {
    "memorised %": lambda record: getattr(record.memorisation, "share", None),
    "tail index": lambda record: getattr(record.finest.measured.index, "value", None),
    f"≤ {FEW[-1]} rows %": lambda record: record.finest.measured.few[FEW[-1]],
    "M": lambda record: record.finest.measured.effective,
}


def correlate_measures(
    records: Sequence[LongTailRecord], gaps: Iterable[Gap]
) -> dict[tuple[str, str], RankCorrelation]:
    """Correlates each measure of a long tail with the gap, over (dataset, backbone).

    Returns:
      By measure and epsilon.
    """
    by_place = {(record.dataset, record.backbone): record for record in records}
    known = [gap for gap in gaps if (gap.dataset, gap.backbone) in by_place]
    epsilons = sorted({gap.epsilon for gap in known}, key=epsilon_value)
    results = {}
    for name, measure in MEASURES.items():
        for epsilon in epsilons:
            points = [
                (value, gap.points)
                for gap in known
                if gap.epsilon == epsilon
                and (value := measure(by_place[gap.dataset, gap.backbone])) is not None
            ]
            results[name, epsilon] = rank_correlation(
                [one for one, _ in points], [other for _, other in points]
            )
    return results


def correlation_table(records: Sequence[LongTailRecord], gaps: Sequence[Gap]) -> Table:
    """Makes the table of correlations: one row per measure and epsilon."""
    rows = []
    for (measure, epsilon), result in correlate_measures(records, gaps).items():
        cell = BLANK
        if result.value is not None:
            cell = _interval_cell(result.value, result.low, result.high)
        rows.append(make_row(measure, epsilon, _count_cell(result.points), cell))
    return Table(
        name="long_tail_correlation",
        title="Long tails against the price of privacy, not private",
        columns=(
            Column(title="measure", align="left"),
            Column(title="ε"),
            Column(title="points"),
            Column(title="rank correlation", interval=True),
        ),
        rows=rows,
        notes=[
            f"{NOT_PRIVATE} Spearman's correlation of each measure (at the most clusters) with the "
            "gap at that epsilon; a point is a (dataset, backbone). The 95% interval (Bonett and "
            "Wright 2000; none below four points) takes points for independent. Those of one "
            "dataset share its rows, so it is too narrow; and harder datasets have more of both, "
            f"so a correlation names no cause. {_GAP}",
        ],
    )


def _name_columns() -> tuple[Column, Column]:
    return Column(title="dataset", align="left"), Column(title="backbone", align="left")


def _memorisation_cells(record: LongTailRecord) -> list[TableCell]:
    """Makes the cells of a record's memorisation; blank where there is none."""
    scores = record.memorisation
    if scores is None:
        return [BLANK] * 4
    lost = scores.removal
    return [
        mean_cell(scores.share, scores.low, scores.high, digits=2),
        _percent_cell(scores.chance, digits=2),
        mean_cell(lost.lost, lost.low, lost.high, digits=2) if lost else BLANK,
        _count_cell(scores.rows),
    ]


def _index_cell(frequencies: Frequencies) -> TableCell:
    index = frequencies.index
    if index is None:
        return BLANK
    if index.high is None:
        return TableCell(text=f"{index.value:.2f} (above {index.low:.2f})", value=index.value)
    return _interval_cell(index.value, index.low, index.high)


def _interval_cell(value: float, low: float | None, high: float | None) -> TableCell:
    return mean_cell(value, low, high, scale=1, digits=2)


def _count_cell(value: int) -> TableCell:
    return TableCell(text=f"{value:,}", value=value)


def _number_cell(value: float, *, digits: int = 1) -> TableCell:
    return TableCell(text=f"{value:,.{digits}f}", value=value)


def _percent_cell(share: float, *, digits: int = 1) -> TableCell:
    return TableCell(text=f"{100 * share:.{digits}f}", value=100 * share)


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> RankCorrelation:
    """Computes Spearman's correlation and its interval.

    The interval is that of Fisher's transformation with the variance of Bonett and Wright (2000),
    for points that are independent of each other. If all ranks agree, it is taken at the middle
    between 1 and the largest value below it, which is of two neighbours exchanged: at 1 itself it
    would have no width.
    """
    from scipy.stats import spearmanr  # heavy, for a start of Snakemake

    points = len(first)
    if points < FEWEST or len(set(first)) == 1 or len(set(second)) == 1:
        return RankCorrelation(points, None)
    value = float(spearmanr(first, second).statistic)
    largest = 1 - 6 / (points * (points**2 - 1))
    inner = float(np.clip(value, -largest, largest))
    reach = 1.959964 * math.sqrt((1 + inner**2 / 2) / (points - 3))
    middle = math.atanh(inner)
    low, high = math.tanh(middle - reach), math.tanh(middle + reach)
    return RankCorrelation(points, value, min(low, value), max(high, value))
