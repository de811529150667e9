"""The record of a long tail: the names of its files, and its JSON as a typed object.

This module imports nothing heavy, because each start of Snakemake imports it. A record is not
private: all its numbers are computed from training examples, without noise.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from dpprobe.files.records import Record, RecordPart

LONG_TAIL = "long_tail"  # the folder of all results, <folder>/<dataset>/<backbone><suffix>
LONG_TAIL_TABLES = ("long_tail", "long_tail_gap")
RECORD_SUFFIX, ROWS_SUFFIX = ".json", ".parquet"
# A job writes its record last, so a record marks complete results.
SUFFIXES = (ROWS_SUFFIX, RECORD_SUFFIX)


class Index(RecordPart):
    """A tail index (Zipf exponent) and its 95% interval; `high` is null if it exceeds 5.

    The interval covers random sampling of rows, but not other clusterings.
    """

    value: float
    low: float
    high: float | None


class Frequencies(RecordPart):
    """Frequencies of sub-classes, in the features or in the reference without sub-classes.

    Attributes:
      sub_classes: the number of clusters of all classes.
      index: the tail index; None if no class has two sub-classes.
      few: the share of sub-classes with at most k rows, for each k.
      effective: the effective number M of sub-classes.
      shares: for each rank, a sub-class's share of its class's rows, as a mean over classes.
    """

    sub_classes: int
    index: Index | None
    few: dict[int, float]
    effective: float
    shares: tuple[float, ...]


class SubClasses(RecordPart):
    """A clustering of each class, its reference, and M ln N for M sub-classes and N units."""

    clusters: int
    measured: Frequencies
    reference: Frequencies
    m_ln_n: float


class Above(RecordPart):
    """The share of rows with a score above each threshold, and the share expected by chance."""

    thresholds: tuple[float, ...]
    share: tuple[float, ...]
    chance: tuple[float, ...]


class Scores(RecordPart):
    """Memorisation scores.

    Attributes:
      trained_share: the share of the scored units on which each head is trained.
      rows, units: numbers of scored rows and units.
      accuracy: the heads' accuracy on rows that were not in their training data.
      share: the share of rows with a score above `threshold`.
      chance: the value of `share` that is expected if no row is memorised.
      low, high: the 95% interval of `share`, over units.
      standard_error: the median of the scores' standard errors.
    """

    heads: int
    trained_share: float
    rows: int
    units: int
    ridge: float
    accuracy: float
    threshold: float
    share: float
    chance: float
    low: float
    high: float
    standard_error: float
    above: Above
    seconds: float


class LongTailRecord(Record):
    """The long tail of the features of one (dataset, backbone).

    Attributes:
      rows, units: numbers of rows and units of the training split.
      classes: the number of classes among the clustered rows.
      variance_kept: the share of the variance in the clustered components, over all classes.
      memorisation: None if the options omit memorisation scores, or for a reason in `notes`.
    """

    format: Literal["dpprobe-long-tail"] = "dpprobe-long-tail"
    format_version: Literal[2] = 2
    private: Literal[False] = False
    dataset: str
    backbone: str
    rows: int
    units: int
    clustered: int
    classes: int
    dimension: int
    variance_kept: float
    sub_classes: tuple[SubClasses, ...]
    memorisation: Scores | None
    notes: tuple[str, ...]
    seconds: float

    @property
    def finest(self) -> SubClasses:
        return max(self.sub_classes, key=lambda item: item.clusters)


def read_long_tails(paths: Iterable[Path]) -> list[LongTailRecord]:
    """Reads records, in the order of datasets and backbones."""
    records = map(LongTailRecord.read, paths)
    return sorted(records, key=lambda record: (record.dataset, record.backbone))
