"""Tables of long tails: sub-classes, and memorisation compared with the accuracy lost to privacy.

Not private: all numbers come from private examples without noise, as the tables' notes say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpprobe.analyses.long_tail.long_tail_record import Frequencies, LongTailRecord, read_long_tails
from dpprobe.analyses.long_tail.sub_classes import FEW
from dpprobe.counted_nouns import count_noun
from dpprobe.exhibits.tables import BLANK, Table, TableCell, make_row, make_table, mean_cell
from dpprobe.privacy.risk import budget_order, budget_title, budget_token, budget_words
from dpprobe.results.best_private import best_result
from dpprobe.results.summary import Entry, Grid, read_grid

NOT_PRIVATE = "Not private: computed from training and test rows without noise."
NO_BOUND = (
    "M ln N interprets the informal theorem 3.1 of the foundation-features paper: training well "
    "on M long-tailed sub-classes of N rows would need an epsilon of about M ln N. It is not a "
    "proved bound for this data set: the theorem's assumptions may not hold, and M depends on the "
    "clustering."
)
FEWEST = 4  # the fewest points for a correlation: three points easily line up by chance
NEAR = 2.0  # the largest gap, in percentage points, that counts as near the non-private ceiling

_REFERENCE = (
    "Reference: the same number of rows per class, drawn from one normal distribution with the "
    "variances of the class's principal components, and clustered in the same way. Values close "
    "to the reference are no evidence of sub-classes."
)
_GAP = (
    "Gap: the test result of the non-private baseline minus the test result of the best private "
    "head on the same features, in percentage points. The best head was selected by its test "
    "result."
)


@dataclass(frozen=True)
class Gap:
    """The non-private ceiling minus the best private result, in percentage points."""

    dataset: str
    backbone: str
    epsilon: str
    points: float


def make_long_tail_tables(records: Sequence[Path], summaries: Sequence[Path]) -> list[Table]:
    return list_tables(read_long_tails(records), read_grid(summaries))


def list_tables(records: Sequence[LongTailRecord], grid: Grid) -> list[Table]:
    """Makes all tables of long tails, in the order of `LONG_TAIL_TABLES`."""
    return [sub_class_table(records), gap_table(records, private_gaps(grid))]


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
            gaps.append(Gap(dataset, backbone, budget_token(epsilon), points))
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
                    _number_cell(item.clusters, digits=0),
                    _number_cell(measured.sub_classes, digits=0),
                    _index_cell(measured),
                    _index_cell(plain),
                    *(mean_cell(measured.few[few]) for few in FEW),
                    mean_cell(plain.few[FEW[-1]]),
                    _number_cell(measured.effective),
                    _number_cell(plain.effective),
                    _number_cell(math.log(record.units), digits=2),
                    _number_cell(item.m_ln_n, digits=0),
                )
            )
    columns = (
        "<dataset",
        "<backbone",
        "clusters a class",
        "sub-classes",
        "±tail index",
        "±reference index",
        *(f"≤ {few} row{'s' * (few > 1)} %" for few in FEW),
        f"reference ≤ {FEW[-1]} %",
        "M",
        "reference M",
        "ln N",
        "M ln N",
    )
    return make_table(
        "long_tail",
        "Sub-classes of each class, not private",
        columns,
        rows,
        [
            f"{NOT_PRIVATE} Tail index: the share of the r-th most frequent sub-class is "
            "proportional to r^-index; an index of 0 means equally frequent sub-classes. The 95% "
            "interval is over rows, not over clusterings. ≤ 1, 2, 5 rows: the share of "
            "sub-classes with at most this many rows. M: the effective number of sub-classes, "
            f"exp(entropy). {_REFERENCE} {NO_BOUND}"
        ],
    )


def gap_table(records: Sequence[LongTailRecord], gaps: Sequence[Gap]) -> Table:
    """Makes the table of memorisation and of gaps: one row per (dataset, backbone)."""
    epsilons = sorted({gap.epsilon for gap in gaps}, key=budget_order)
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
                budget_words(near[0]) if near else BLANK,
                *(BLANK if value is None else _number_cell(value) for value in points),
            )
        )
    columns = (
        "<dataset",
        "<backbone",
        "±memorised %",
        "by chance %",
        "rows scored",
        "M ln N",
        f"within {NEAR:g} points at ε",
        *(f"gap at {budget_title(epsilon, 'ε ')}" for epsilon in epsilons),
    )
    return make_table(
        "long_tail_gap",
        "Memorised rows and the price of privacy, not private",
        columns,
        rows,
        [
            f"{NOT_PRIVATE} Memorised: the share of training rows whose label a ridge head "
            "predicts more often when it was trained on the row; the probability must rise by "
            "more than 0.25 (Feldman and Zhang 2020). By chance: the share that the same number "
            f"of heads would show if no row were memorised. {_GAP} "
            f"{NO_BOUND}{describe_correlations(records, gaps)}"
        ],
    )


def describe_correlations(records: Sequence[LongTailRecord], gaps: Sequence[Gap]) -> str:
    """Formats rank correlations of memorised rows with gaps, for epsilons with 4 or more points."""
    from scipy.stats import spearmanr  # a slow import, which other tables do not need

    shares = {(r.dataset, r.backbone): r.memorisation.share for r in records if r.memorisation}
    parts = []
    for epsilon in sorted({gap.epsilon for gap in gaps}, key=budget_order):
        here = [g for g in gaps if g.epsilon == epsilon and (g.dataset, g.backbone) in shares]
        memorised = [shares[gap.dataset, gap.backbone] for gap in here]
        points = [gap.points for gap in here]
        if len(here) >= FEWEST and len(set(memorised)) > 1 and len(set(points)) > 1:
            value = float(spearmanr(memorised, points).statistic)
            parts.append(
                f"{value:.2f} at {budget_title(epsilon, 'ε ')} ({count_noun(len(here), 'point')})"
            )
    if not parts:
        return ""
    return (
        f" Rank correlation (Spearman) of memorised rows with the gap: {', '.join(parts)}. Each "
        "point is one dataset with one backbone. A harder dataset tends to have more memorised "
        "rows and a larger gap, so the correlation does not prove a cause."
    )


def _memorisation_cells(record: LongTailRecord) -> list[TableCell]:
    scores = record.memorisation
    if scores is None:
        return [BLANK] * 3
    return [
        mean_cell(scores.share, scores.low, scores.high, digits=2),
        mean_cell(scores.chance, digits=2),
        _number_cell(scores.rows, digits=0),
    ]


def _index_cell(frequencies: Frequencies) -> TableCell:
    index = frequencies.index
    if index is None:
        return BLANK
    if index.high is None:
        return TableCell(text=f"{index.value:.2f} (above {index.low:.2f})", value=index.value)
    return mean_cell(index.value, index.low, index.high, scale=1, digits=2)


def _number_cell(value: float, *, digits: int = 1) -> TableCell:
    return TableCell(text=f"{value:,.{digits}f}", value=value)
