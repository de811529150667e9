"""The cells of a dataset as one tidy table, and the reader of a cell's record."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpprobe.artifacts import read_json, write_table
from dpprobe.errors import DataError
from dpprobe.privacy.limits import epsilon_value

CELL_FORMAT = "dpprobe-cell"
CELL_FORMAT_VERSION = 2
CEILING_HEAD = "nonprivate"  # the head whose result is the non-private ceiling of a backbone
# What each metric that may stand for a cell is called, and what it is with several labels a row.
HEADLINES = {"accuracy": "accuracy", "auc": "AUC"}
MEASURED = (
    "accuracy",
    "top5_accuracy",
    "real_accuracy",
    "macro_accuracy",
    "exact_match_accuracy",
    "expected_calibration_error",
    "auc",
    "mean_average_precision",
)

SCHEMA = pa.schema(
    [
        ("study", pa.string()),
        ("dataset", pa.string()),
        ("backbone", pa.string()),
        ("method", pa.string()),
        ("head", pa.string()),
        ("epsilon", pa.float64()),
        ("epsilon_token", pa.string()),
        ("private", pa.bool_()),
        ("delta", pa.float64()),
        ("realised_epsilon", pa.float64()),
        ("noise_multiplier", pa.float64()),
        ("train_rows", pa.int64()),
        ("test_rows", pa.int64()),
        ("dimension", pa.int64()),
        ("num_classes", pa.int64()),
        ("multi_label", pa.bool_()),
        ("headline", pa.string()),  # the column that stands for the cell in tables and figures
        ("auc_labels", pa.int64()),  # labels that have both values in the test split
        ("seed_index", pa.int64()),
        *((name, pa.float64()) for name in MEASURED),
        # Of the cell, the same in each of its rows: a bootstrap cannot be redone from seeds.
        *(
            column
            for name in HEADLINES
            for column in (
                (f"{name}_low", pa.float64()),
                (f"{name}_high", pa.float64()),
                (f"{name}_interval", pa.string()),
            )
        ),
        ("fingerprint", pa.string()),
        ("content_hash", pa.string()),
    ]
)


def summarise_cells(metrics_files: Sequence[Path], output: Path, *, study: str) -> None:
    """Writes one row a cell and seed, in the order of backbone, method, epsilon and seed.

    `private` says that the cell's method is private *and* its epsilon is finite. Metrics are
    fractions; `epsilon` of "inf" is infinity.

    Raises:
      DataError: when a file is not a cell's record, two files describe one cell, or two cells
        have another headline metric.
    """
    cells: dict[tuple[str, ...], tuple[Path, dict[str, Any]]] = {}
    for path in metrics_files:
        record = read_cell(path)
        key = cell_key(record)
        if key in cells:
            raise DataError(f"{path}: same cell as {cells[key][0]}; name each cell once")
        cells[key] = (path, record)
    headlines(cells.values())  # cells that differ in it are not to share a column
    ordered = sorted(cells, key=lambda key: (*key[:3], epsilon_value(key[3])))
    rows = [row for key in ordered for row in _rows(cells[key][1], study)]
    write_table(output, pa.Table.from_pylist(rows, schema=SCHEMA))


def read_cell(path: Path) -> dict[str, Any]:
    """A cell's `metrics.json`.

    Raises:
      DataError: when the file is missing, is not JSON or has another format or version.
    """
    try:
        record = read_json(path)
    except FileNotFoundError:
        raise DataError(f"{path}: missing; run the cell by naming this path") from None
    except ValueError:
        raise DataError(f"{path}: not valid JSON; delete it and run the cell again") from None
    found = (record.get("format"), record.get("format_version")) if type(record) is dict else None
    if found != (CELL_FORMAT, CELL_FORMAT_VERSION):
        raise DataError(
            f"{path}: not a {CELL_FORMAT} record of version {CELL_FORMAT_VERSION}; "
            "delete it and run the cell again"
        )
    return dict(record)


def cell_key(record: dict[str, Any]) -> tuple[str, str, str, str]:
    """(dataset, backbone, method, epsilon token) of a cell's record."""
    cell = record["cell"]
    return cell["dataset"], cell["backbone"], cell["method"], cell["epsilon"]


def is_private(record: dict[str, Any]) -> bool:
    """Whether the cell carries a guarantee: a private method at a finite epsilon."""
    return bool(record["private"]) and math.isfinite(epsilon_value(record["cell"]["epsilon"]))


def read_summaries(paths: Sequence[Path]) -> pa.Table:
    """Summaries written by `summarise_cells`, one after the other.

    Raises:
      DataError: when one has other columns.
    """
    tables = []
    for path in paths:
        table = pq.read_table(path)
        if not table.schema.equals(SCHEMA, check_metadata=False):
            raise DataError(f"{path}: not a summary of this version; delete it and run again")
        tables.append(table)
    return pa.concat_tables(tables) if tables else SCHEMA.empty_table()


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A cell's headline metric in percent: the mean over seeds, the ends of its 95 % interval."""

    mean: float
    low: float | None
    high: float | None
    interval: str | None
    seeds: int
    private: bool
    ceiling: bool

    @property
    def half(self) -> float | None:
        """Half the width of the interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What the numbers of a dataset are: `headline` is "accuracy" or "auc"."""

    headline: str
    multi_label: bool = False
    labels: int = 0  # that enter the mean, of `num_classes`
    num_classes: int = 0

    @classmethod
    def of(cls, record: dict[str, Any]) -> Measure:
        """What stands for a cell, from its record."""
        return cls(
            headline=record["headline"],
            multi_label=record["multi_label"],
            labels=record["auc_labels"],
            num_classes=len(record["class_names"]),
        )

    @property
    def partial(self) -> bool:
        """Whether labels are left out of the mean: those with one value in all test rows."""
        return self.multi_label and self.headline == "auc" and self.labels < self.num_classes

    @property
    def title(self) -> str:
        """For a sentence or an axis: "accuracy", "AUC", "mean AUC over 13 of 14 labels"."""
        name = HEADLINES[self.headline]
        if not self.multi_label:
            return name
        which = f"{self.labels} of {self.num_classes} labels" if self.partial else "labels"
        return f"mean {name} over {which}"


ACCURACY = Measure(headline="accuracy")


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The cells of some summaries, by row (dataset, epsilon) and column (backbone, method)."""

    rows: tuple[tuple[str, float], ...]
    columns: tuple[tuple[str, str], ...]
    entries: dict[tuple[str, float, str, str], Entry]
    deltas: dict[str, float]
    measures: dict[str, Measure]  # of each dataset

    def get(self, row: tuple[str, float], column: tuple[str, str]) -> Entry | None:
        return self.entries.get((*row, *column))


def read_grid(paths: Sequence[Path]) -> Grid:
    """The cells of summary files: datasets in the order given, epsilons rising.

    Raises:
      DataError: when a file is not a summary.
    """
    table = read_summaries(paths).to_pandas()
    entries = {}
    measures: dict[str, Measure] = {}
    for key, rows in table.groupby(["dataset", "epsilon", "backbone", "method"], sort=False):
        first = rows.iloc[0]
        name = str(first.headline)
        known = not np.isnan(first[f"{name}_low"])
        measures[key[0]] = Measure(
            headline=name,
            multi_label=bool(first.multi_label),
            labels=int(first.auc_labels),
            num_classes=int(first.num_classes),
        )
        entries[key] = Entry(
            mean=100 * float(rows[name].mean()),
            low=100 * float(first[f"{name}_low"]) if known else None,
            high=100 * float(first[f"{name}_high"]) if known else None,
            interval=first[f"{name}_interval"] if known else None,
            seeds=len(rows),
            private=bool(first.private),
            ceiling=first["head"] == CEILING_HEAD,
        )
    order = {name: index for index, name in enumerate(dict.fromkeys(table.dataset))}
    deltas = table.groupby("dataset").delta.first().dropna()
    return Grid(
        rows=tuple(sorted({key[:2] for key in entries}, key=lambda row: (order[row[0]], row[1]))),
        columns=tuple(sorted({key[2:] for key in entries})),
        entries=entries,
        deltas={str(name): float(delta) for name, delta in deltas.items()},
        measures=measures,
    )


def headlines(cells: Iterable[tuple[Path, dict[str, Any]]]) -> dict[str, Measure]:
    """What stands for the cells of each dataset, from their records and where these lie.

    Raises:
      DataError: when two cells of a dataset differ in it, as a killed run may leave them.
    """
    first: dict[str, tuple[Path, Measure]] = {}
    for path, record in cells:
        own = Measure.of(record)
        other, found = first.setdefault(record["cell"]["dataset"], (path, own))
        if found != own:
            raise DataError(
                f"{path}: shows {own.headline}, {other} shows {found.headline}, or they were "
                "tested on other rows; run the study again"
            )
    return {dataset: measure for dataset, (_, measure) in first.items()}


def _rows(record: dict[str, Any], study: str) -> list[dict[str, Any]]:
    cell = record["cell"]
    shared = {
        "study": study,
        **{name: cell[name] for name in ("dataset", "backbone", "method")},
        "head": record["head"],
        "epsilon": epsilon_value(cell["epsilon"]),
        "epsilon_token": cell["epsilon"],
        "private": is_private(record),
        "delta": record["delta"],
        "realised_epsilon": record["realised_epsilon"],
        "noise_multiplier": record["noise_multiplier"],
        "train_rows": record["rows"]["train"],
        "test_rows": record["rows"]["test"],
        "dimension": record["dimension"],
        "num_classes": len(record["class_names"]),
        "multi_label": record["multi_label"],
        "headline": record["headline"],
        "auc_labels": record["auc_labels"],
        **{
            f"{name}_{part}": record["summary"][name][part]
            for name in HEADLINES
            if name in record["summary"]
            for part in ("low", "high", "interval")
        },
        "fingerprint": record["fingerprint"],
        "content_hash": record["content_hash"],
    }
    return [
        {**shared, "seed_index": seed["index"], **{name: seed.get(name) for name in MEASURED}}
        for seed in record["seeds"]
    ]


def rounded_up(loss: float) -> float:
    """Four significant digits of a privacy loss, never less than it is."""
    shown = float(f"{loss:.4g}")
    if shown >= loss:
        return shown
    return float(f"{loss + 10.0 ** (math.floor(math.log10(loss)) - 3):.4g}")
