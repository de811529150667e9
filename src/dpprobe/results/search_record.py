"""The record of an unpriced search over a method's options: all trials and the best trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from dpprobe.data.options import Headline
from dpprobe.files.records import Record, RecordPart
from dpprobe.finetune.unpriced_search import NOT_PRICED, Trial
from dpprobe.results.cell_record import CellName

SEARCHES = "searches"


class HeldOut(RecordPart):
    """How many training examples were held out to score trials: share, rows, and units."""

    share: float
    rows: int
    units: int


class SearchRecord(Record):
    """The file of a search, which no privacy guarantee covers.

    Attributes:
      fingerprint: hash of the trials' inputs: options, plan, rows, device, versions.
      device: the kind of device on which trials were trained.
      metric: the metric by which trials were scored.
      seed: the study's seed; trials and held-out units derive from it.
      best: the trial whose options are used to train the cell's networks.
    """

    format: Literal["dpprobe-search"] = "dpprobe-search"
    format_version: Literal[1] = 1
    note: str = NOT_PRICED
    cell: CellName
    fingerprint: str
    device: str
    metric: Headline
    seed: int
    held_out: HeldOut
    best: Trial
    trials: tuple[Trial, ...]


def search_path(searches: Path | str, cell: CellName) -> Path:
    return Path(searches, cell.dataset, cell.backbone, cell.method, f"eps-{cell.epsilon}.json")


def read_searched_values(path: Path | None) -> dict[str, Any]:
    """Returns the option values that a search chose for a method; empty without a search."""
    return {} if path is None else dict(SearchRecord.read(path).best.values)
