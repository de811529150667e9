"""The cells of a dataset as one tidy table, and as the grid for tables and figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpprobe.errors import DataError
from dpprobe.extras import OptionalModule
from dpprobe.files.table_files import read_table, write_table
from dpprobe.privacy.limits import ABOVE_MARK, delta_above, rounded_up
from dpprobe.privacy.risk import RiskEpsilon, find_risk, read_budget
from dpprobe.results.best_head_price import choice_price
from dpprobe.results.cell_files import STATEMENT_FILE
from dpprobe.results.cell_record import (
    CEILING_HEAD,
    HEADLINES,
    CellRecord,
    Measure,
    read_cell,
    read_measures,
)
from dpprobe.results.headline_metric import (
    constant_headline,
    headline_reason,
    least_class,
    resting_rows,
)
from dpprobe.results.metrics import SCALAR_METRICS
from dpprobe.results.uncertainty import SEED_INTERVAL

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = OptionalModule("pyarrow")

ENDS = (
    "low",
    "high",
    "interval",
    "rows_low",
    "rows_high",
    "rows_interval",
    "both_low",
    "both_high",
    "both_interval",
)
_TEXT, _NUMBER, _COUNT, _FLAG = "string", "double", "int64", "bool"
# Names of columns in their order, with their type in Arrow.
_COLUMNS = [
    ("study dataset backbone method head", _TEXT),
    ("network balanced", _FLAG),  # the cell trains a part of the backbone; balances its classes
    ("epsilon", _NUMBER),
    ("epsilon_token", _TEXT),
    ("private", _FLAG),
    ("delta realised_epsilon noise_multiplier", _NUMBER),
    # n: training units of privacy; train_units, test_units: patients, or null
    ("n train_rows test_rows train_units test_units dimension num_classes", _COUNT),
    ("multi_label", _FLAG),
    ("headline headline_reason", _TEXT),  # the metric in tables and figures; why it was chosen
    # effective number of test rows; headline and accuracy of the majority-class baseline
    ("resting_rows constant constant_accuracy", _NUMBER),
    ("auc_labels seed_index", _COUNT),  # auc_labels: labels that only some test rows have
    (" ".join(SCALAR_METRICS), _NUMBER),
    # intervals of a cell's metric, equal in all rows of the cell
    *(
        (f"{name}_{part}", _TEXT if part.endswith("interval") else _NUMBER)
        for name in HEADLINES
        for part in ENDS
    ),
    ("least", _NUMBER),  # a cell's mean recall of its worst class, or AUC of its worst label
    ("least_class", _TEXT),
    # classes that a seed never predicts; a seed's headline on both halves of each split
    ("never_predicted", _TEXT),
    ("half_values", _NUMBER),
    # number of private cells with this dataset and epsilon; epsilon of publishing the best
    ("candidates", _COUNT),
    ("choice_epsilon", _NUMBER),
    ("fingerprint content_hash", _TEXT),
]
_TYPES = {name: kind for names, kind in _COLUMNS for name in names.split()}
_LISTS = ("never_predicted", "half_values")

# Columns that copy a field of the cell's record.
SAME_NAMES = _TYPES.keys() & CellRecord.model_fields.keys() - {"private"}


def table_schema() -> pa.Schema:
    """Returns the columns of a summary."""
    types = {name: pa.type_for_alias(kind) for name, kind in _TYPES.items()}
    return pa.schema(types | {name: pa.list_(types[name]) for name in _LISTS})


def summarise_cells(
    metrics_files: Sequence[Path],
    output: Path,
    *,
    study: str,
    metric_of: str = "the study or the catalog",
) -> None:
    """Writes one row per cell and seed, in the order of backbone, method, epsilon and seed.

    Also reads each private cell's privacy statement, a file in the record's folder. The column
    `choice_epsilon` contains the epsilon of publishing the best private cell of the dataset and
    epsilon (`best_head_price`), or null if there is only one private cell. The column `private` is
    true for a private method at a finite epsilon. Metrics are fractions. `metric_of` describes
    where a study may set the metric. Raises DataError if a file is not a cell's record, or if
    headline metrics differ within a dataset.
    """
    cells = [(path, read_cell(path)) for path in metrics_files]
    read_measures(cells)  # raises DataError if headline metrics differ
    records = sorted(
        (record for _, record in cells),
        key=lambda record: (*record.cell.key[:3], record.cell.order),
    )
    epsilons = number_budgets(records)
    candidates: dict[tuple[str, str], list[Path]] = {}
    for path, record in cells:
        if record.guaranteed:
            of = candidates.setdefault((record.cell.dataset, record.cell.epsilon), [])
            of.append(path.with_name(STATEMENT_FILE))
    choices = {
        key: {"candidates": len(paths), "choice_epsilon": choice_price(paths)}
        for key, paths in candidates.items()
    }
    rows = [
        row | (choices[record.cell.dataset, record.cell.epsilon] if record.guaranteed else {})
        for record in records
        for row in _make_rows(record, study, metric_of, epsilons)
    ]
    write_table(output, pa.Table.from_pylist(rows, schema=table_schema()))


def number_budgets(records: Sequence[CellRecord]) -> dict[tuple[str, str], float]:
    """Maps (dataset, budget's token) to epsilon; a permitted risk gets its cells' largest epsilon.

    A permitted risk's epsilon is rounded up to four digits. If another budget of the dataset has
    the same epsilon, it is raised by 0.01%, because tables have one row per epsilon.
    """
    epsilons: dict[tuple[str, str], float] = {}
    largest: dict[tuple[str, str], float] = {}
    deltas = {record.cell.dataset: record.delta for record in records if record.delta}
    for record in records:
        key, epsilon = (record.cell.dataset, record.cell.epsilon), epsilon_of(record)
        if isinstance(epsilon, RiskEpsilon):
            largest[key] = max(largest.get(key, 0.0), epsilon)
        else:
            epsilons[key] = epsilon
    for key in sorted(largest):
        value = float(largest[key])
        while value in {other for (of, _), other in epsilons.items() if of == key[0]}:
            value = rounded_up(value * 1.0001)
        epsilons[key] = RiskEpsilon(value, key[1], deltas.get(key[0]))
    return epsilons


def epsilon_of(record: CellRecord) -> float:
    """Returns a cell's epsilon: the target, or the epsilon that follows from a permitted risk."""
    budget = read_budget(record.cell.epsilon)
    if isinstance(budget, float):
        return budget
    return RiskEpsilon(rounded_up(record.realised_epsilon or 0.0), budget.token, record.delta)


def read_summaries(paths: Sequence[Path]) -> pa.Table:
    """Reads files written by `summarise_cells` into one table.

    Raises DataError if a file has other columns or is damaged.
    """
    tables = []
    for path in paths:
        table = read_table(path)
        if not table.schema.equals(table_schema(), check_metadata=False):
            raise DataError(
                f"{path}: not a summary of this dpprobe version; delete the file and run the study "
                "again"
            )
        tables.append(table)
    return pa.concat_tables(tables) if tables else table_schema().empty_table()


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A cell's headline metric in percent: the mean over seeds, and the ends of 95% intervals.

    Attributes:
      low, high, rows_low, ...: ends of intervals, as in `cell_record.MetricSummary`.
      values: the metric of each seed.
      halves: each seed's metric on both halves of each split, [seeds, splits, 2]; NaN if undefined.
      accuracy: the mean accuracy over seeds, even if another metric is the headline.
      constant, constant_accuracy: headline metric and accuracy of the majority-class baseline.
      least, least_class: the worst class or label, and its `least_title`, a mean over seeds.
      never: maps each class to the number of seeds that never predict it, if any.
      test_units: the number of test examples, or of test patients.
      resting: the effective number of test units behind the variance of the headline.
      patients: True if each test patient counts once, and a bootstrap draws whole patients.
      network: True if a part of the backbone was trained.
      balanced: True if the head's options compensate for unequal class frequencies.
      unpriced: True at a finite epsilon that does not hold because of an unpriced search.
      epsilon: the cell's own epsilon if its budget is a permitted risk, else None. In tables, the
        row of a permitted risk has the largest epsilon of its cells.
    """

    mean: float
    low: float | None
    high: float | None
    interval: str | None
    rows_low: float | None = None
    rows_high: float | None = None
    rows_interval: str | None = None
    both_low: float | None = None
    both_high: float | None = None
    both_interval: str | None = None
    values: tuple[float, ...] = ()
    halves: np.ndarray | None = field(default=None, compare=False, repr=False)
    accuracy: float | None = None
    constant: float | None = None
    constant_accuracy: float | None = None
    least: float | None = None
    least_class: str | None = None
    least_title: str = ""
    never: Mapping[str, int] = field(default_factory=dict)
    test_units: int = 0
    resting: float | None = None
    patients: bool = False
    seeds: int
    private: bool
    ceiling: bool
    network: bool = False
    balanced: bool = False
    unpriced: bool = False
    epsilon: float | None = None

    @property
    def over_seeds(self) -> bool:
        return self.interval == SEED_INTERVAL

    @property
    def rows_reach(self) -> float | None:
        """The longer side of the interval over test examples, in percentage points."""
        if self.rows_low is None or self.rows_high is None:
            return None
        return max(self.mean - self.rows_low, self.rows_high - self.mean)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The selection of the best private cell of a dataset and epsilon.

    Attributes:
      candidates: the number of private cells.
      epsilon: an upper bound, at the cells' delta, for publishing the best cell; None for one cell.
    """

    candidates: int
    epsilon: float | None


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The cells of some summaries, by row (dataset, epsilon) and column (backbone, method)."""

    rows: tuple[tuple[str, float], ...]
    columns: tuple[tuple[str, str], ...]
    entries: dict[tuple[str, float, str, str], Entry]
    deltas: dict[str, float]
    above: frozenset[str]  # names of datasets whose delta is above 1/n
    measures: dict[str, Measure]  # of each dataset
    choices: dict[tuple[str, float], Choice]  # of each dataset and finite epsilon
    reasons: dict[str, str]  # why each dataset has its headline metric, as a sentence

    @property
    def risks(self) -> list[float]:
        """The epsilons of all cells whose budget is a permitted risk."""
        return [e.epsilon for e in self.entries.values() if e.epsilon is not None]

    @property
    def patients(self) -> bool:
        return any(entry.patients for entry in self.entries.values())

    @property
    def unpriced(self) -> set[str]:
        return {key[3] for key, entry in self.entries.items() if entry.unpriced}

    @property
    def tested(self) -> str:
        """The units of intervals over test examples: "test rows", "test patients", or both."""
        kinds = {entry.patients for entry in self.entries.values()}
        names = {True: "test patients", False: "test rows"}
        return " or ".join(names[kind] for kind in sorted(kinds)) or names[False]

    def delta_text(self, dataset: str) -> str | None:
        """Formats a dataset's delta, marked if it is above 1/n; None without a delta."""
        if dataset not in self.deltas:
            return None
        return f"{self.deltas[dataset]:g}{ABOVE_MARK if dataset in self.above else ''}"

    def get(self, row: tuple[str, float], column: tuple[str, str]) -> Entry | None:
        return self.entries.get((*row, *column))


def read_grid(paths: Sequence[Path]) -> Grid:
    """Reads summary files: datasets in the given order, epsilons ascending.

    Raises DataError if a file is not a summary.
    """
    table = read_summaries(paths).to_pandas()
    entries = {}
    reasons: dict[str, str] = {}
    shown: dict[str, Measure] = {}
    for key, rows in table.groupby(["dataset", "epsilon", "backbone", "method"], sort=False):
        first = rows.iloc[0]
        key = key[0], _row_epsilon(first), *key[2:]
        if first.headline_reason:
            reasons[key[0]] = first.headline_reason
        shown[key[0]] = Measure(
            headline=first.headline,
            multi_label=bool(first.multi_label),
            labels=int(first.auc_labels),
            num_classes=int(first.num_classes),
        )
        entries[key] = _make_entry(rows, shown[key[0]])
    order = {name: index for index, name in enumerate(dict.fromkeys(table.dataset))}
    deltas = table.groupby("dataset").delta.first().dropna()
    return Grid(
        rows=tuple(sorted({key[:2] for key in entries}, key=lambda row: (order[row[0]], row[1]))),
        columns=tuple(sorted({key[2:] for key in entries})),
        entries=entries,
        deltas={str(name): float(delta) for name, delta in deltas.items()},
        above=frozenset(
            str(name)
            for name, delta, n in zip(table.dataset, table.delta, table.n, strict=True)
            if delta_above(delta, n)
        ),
        measures=shown,
        reasons=reasons,
        choices={
            (row.dataset, _row_epsilon(row)): Choice(
                candidates=int(row.candidates),
                epsilon=None if math.isnan(row.choice_epsilon) else row.choice_epsilon,
            )
            for row in table[table.private].drop_duplicates(["dataset", "epsilon"]).itertuples()
        },
    )


def _make_entry(rows: Any, measure: Measure) -> Entry:
    """Makes a cell's entry from the cell's rows in a summary, one row per seed."""
    first, name = rows.iloc[0], measure.headline
    ceiling = first["head"] == CEILING_HEAD
    return Entry(
        mean=100 * float(rows[name].mean()),
        **{part: _to_percent(first[f"{name}_{part}"]) for part in ENDS},
        values=tuple(100 * rows[name]),
        halves=_halves_in_percent(rows.half_values),
        accuracy=_to_percent(rows.accuracy.mean()),
        constant=_to_percent(first.constant),
        constant_accuracy=_to_percent(first.constant_accuracy),
        least=_to_percent(first.least),
        # pandas reads null as NaN
        least_class=first.least_class if isinstance(first.least_class, str) else None,
        least_title=measure.least_title,
        never=Counter(
            label for names in rows.never_predicted if names is not None for label in names
        ),
        patients=not np.isnan(first.test_units),
        test_units=int(first.test_rows if np.isnan(first.test_units) else first.test_units),
        resting=None if np.isnan(first.resting_rows) else float(first.resting_rows),
        seeds=len(rows),
        private=bool(first.private),
        ceiling=ceiling,
        network=bool(first.network),
        balanced=bool(first.balanced),
        epsilon=own_epsilon(first),
        unpriced=math.isfinite(first.epsilon) and not first.private and not ceiling,
    )


def _row_epsilon(row: Any) -> float:
    """Returns the epsilon of a summary's row, with its permitted risk if there is one."""
    if find_risk(row.epsilon_token) is None:
        return float(row.epsilon)
    return RiskEpsilon(row.epsilon, row.epsilon_token, row.delta)


def own_epsilon(row: Any) -> float | None:
    """Returns a cell's own epsilon if a permitted risk determines it; else None."""
    if find_risk(row.epsilon_token) is None:
        return None
    return RiskEpsilon(rounded_up(row.realised_epsilon), row.epsilon_token, row.delta)


def _to_percent(value: Any) -> Any:
    if isinstance(value, str):
        return value
    return None if value is None or math.isnan(value) else 100 * float(value)


def _halves_in_percent(values: Iterable[np.ndarray | None]) -> np.ndarray | None:
    """Returns the seeds' values on halves in percent, [seeds, splits, 2]."""
    known = [value for value in values if value is not None and len(value)]
    if not known:
        return None
    return 100 * np.stack(known).astype(np.float64).reshape(len(known), -1, 2)


def _make_rows(
    record: CellRecord, study: str, metric_of: str, epsilons: Mapping[tuple[str, str], float]
) -> list[dict[str, Any]]:
    cell = record.cell
    least = least_class(record)
    shared = {
        "study": study,
        **cell.model_dump(exclude={"epsilon"}),
        **record.model_dump(include=SAME_NAMES),
        "network": record.tunes_network,
        "balanced": record.balanced,
        "epsilon": epsilons[cell.dataset, cell.epsilon],
        "epsilon_token": cell.epsilon,
        "private": record.guaranteed,
        "train_rows": record.rows.train,
        "test_rows": record.rows.test,
        "train_units": record.units.train if record.units else None,
        "test_units": record.units.test if record.units else None,
        "num_classes": len(record.class_names),
        "headline_reason": headline_reason(record, metric_of),
        "constant": constant_headline(record),
        "resting_rows": resting_rows(record),
        "least": least.value if least else None,
        "least_class": least.name if least else None,
        **{
            f"{name}_{part}": getattr(record.summary[name], part)
            for name in HEADLINES
            if name in record.summary
            for part in ENDS
        },
    }
    return [
        {
            **shared,
            "seed_index": seed["index"],
            **{name: seed.get(name) for name in SCALAR_METRICS},
            "never_predicted": _class_names(record, seed.get("never_predicted")),
            "half_values": [value for pair in seed["halves"] for value in pair],
        }
        for seed in record.seeds
    ]


def _class_names(record: CellRecord, indices: Sequence[int] | None) -> list[str] | None:
    return None if indices is None else [record.class_names[index] for index in indices]
