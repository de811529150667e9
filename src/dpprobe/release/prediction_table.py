"""Writes predictions as CSV or parquet: ids, classes, probabilities, faults, origin."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpprobe.errors import ConfigError
from dpprobe.extras import OptionalModule
from dpprobe.files.atomic_writes import atomic_path
from dpprobe.files.output_paths import check_output_path
from dpprobe.release.bundle import BundleFacts, check_outside
from dpprobe.release.probabilities import SetRule
from dpprobe.shown_text import spreadsheet_text
from dpprobe.similar_names import suggest_names

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    pa = OptionalModule("pyarrow")
    pq = OptionalModule("pyarrow.parquet")

SUFFIXES = (".csv", ".parquet")
SEPARATOR = "|"  # between several labels of an image
THRESHOLD = 0.5  # default threshold: labels with a higher probability are named
GROUP_ROWS = 4096  # fewest rows in a row group of a parquet file
METADATA_KEY = "dpprobe"  # key of a parquet file's metadata that holds the origin as JSON


class Prediction(NamedTuple):
    """The predicted class and the probabilities of one image, or the reason for no prediction.

    Attributes:
      held: the set of classes, joined by "|", with True to abstain; None without calibration.
    """

    id: str
    label: str | None
    values: npt.NDArray[np.float32] | None
    error: str | None
    held: tuple[str, bool] | None = None


Write = Callable[[Sequence[Prediction]], None]


class Origin(NamedTuple):
    """The bundle that made a table of predictions, dpprobe's version, and the classes' thresholds.

    Attributes:
      bundle: the release's name.
      bundle_sha256: the SHA-256 of the bundle's SHA256SUMS, as in the ledger.
      prevalence: the class frequencies to which probabilities were adapted; None if they were not.
    """

    bundle: str
    bundle_sha256: str
    dpprobe: str
    thresholds: Mapping[str, float]
    prevalence: Mapping[str, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the values by name, without an absent prevalence."""
        values = self._asdict()
        if self.prevalence is None:
            del values["prevalence"]
        return values


def check_thresholds(
    given: Mapping[str, float], facts: BundleFacts, *, link: str | None = None
) -> dict[str, float]:
    """Checks and returns thresholds: the probability from which each class is named.

    `link` converts scores to probabilities, by default as the head's link does. Raises
    ConfigError for a head without probabilities, an unknown class, or a value outside 0 to 1.
    Thresholds of all classes are refused if an image has exactly one class.
    """
    thresholds = dict(given)
    names = facts.class_names
    if thresholds and (link or facts.head.link) == "none":
        raise ConfigError(
            f"thresholds: the head of {facts.name} gives scores, not probabilities; leave "
            "thresholds out, and compare the columns score_<class> with your own limits"
        )
    for name, value in thresholds.items():
        if name not in names:
            raise ConfigError(
                f"threshold of {name}: {facts.name} has no class with this name; "
                f"{suggest_names(name, names)}: the classes are {', '.join(names[:20])}"
            )
        if not 0 <= value <= 1:
            raise ConfigError(f"threshold of {name}: {value}; must be a probability from 0 to 1")
    if not facts.multi_label and len(thresholds) == len(names):
        raise ConfigError(
            f"thresholds: all {len(names)} classes have a threshold, so an image below all of "
            "them would have no class; leave out the threshold of the default class"
        )
    return thresholds


def label_of(
    values: npt.NDArray[np.float32],
    facts: BundleFacts,
    thresholds: Mapping[str, float] | None = None,
) -> str:
    """Names the class of an image, or joins the names of its labels.

    With several labels per image, a label is named if its probability reaches its threshold, or
    exceeds 1/2 without a threshold. With one class per image, the most probable class that
    reaches its threshold is named, else the most probable class without a threshold.

    Args:
      values: probabilities [classes]; scores if the head has no probabilities.
      thresholds: from `check_thresholds`.
    """
    names, thresholds = facts.class_names, thresholds or {}
    # In float32 like the probabilities, so that a shown probability of 0.7 reaches threshold 0.7.
    reached = [
        index
        for index, name in enumerate(names)
        if name in thresholds and values[index] >= np.float32(thresholds[name])
    ]
    free = [index for index, name in enumerate(names) if name not in thresholds]
    if facts.multi_label:
        reached += [index for index in free if values[index] > THRESHOLD]
        return SEPARATOR.join(names[index] for index in sorted(reached))
    return names[max(reached or free, key=lambda index: values[index])]


def value_columns(class_names: Sequence[str], link: str) -> list[str]:
    """Returns the names of the columns of probabilities, or of scores if `link` is "none"."""
    return [f"{'score' if link == 'none' else 'probability'}_{name}" for name in class_names]


def check_output(output: Path | None, inputs: Sequence[Path]) -> None:
    """Raises ConfigError if a table of predictions cannot be written to `output`."""
    if output is None:
        return
    if output.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"output: {output}: use a name that ends in {' or '.join(SUFFIXES)}")
    check_output_path(output, "output:")
    check_outside(output)
    for path in inputs:
        if output.exists() and path.exists() and output.samefile(path):
            raise ConfigError(f"output: {output} is one of the inputs; name another file")


@contextmanager
def open_predictions(
    output: Path | None, columns: Sequence[str], origin: Origin, *, with_sets: bool = False
) -> Iterator[Write]:
    """Opens a table, which will be complete or absent; yields the function that appends rows.

    Args:
      output: a CSV or parquet file; None for CSV on standard output.
      origin: CSV repeats the origin in each row, so that sorted or joined tables retain the
        origin; parquet has the origin in the schema's metadata.
      with_sets: True to add the columns `set` (classes joined by "|") and `abstain`.
    """
    if output is None:
        yield _csv_rows(sys.stdout, columns, origin, with_sets)
        sys.stdout.flush()
        return
    with atomic_path(output) as temporary:
        if output.suffix.lower() == ".csv":
            with temporary.open("w", encoding="utf-8", newline="") as stream:
                yield _csv_rows(stream, columns, origin, with_sets)
        else:
            with _parquet_rows(temporary, columns, origin, with_sets) as write:
                yield write


def name_set(
    values: npt.NDArray[np.float32], rule: SetRule, names: Sequence[str]
) -> tuple[str, bool]:
    """Returns the classes of an image's set, joined by "|", and True to abstain."""
    held, abstain = rule.apply_to(values)
    return SEPARATOR.join(names[index] for index in held), abstain


def _csv_rows(stream: IO[str], columns: Sequence[str], origin: Origin, with_sets: bool) -> Write:
    rows = csv.writer(stream, lineterminator="\n")
    more = ["set", "abstain"] if with_sets else []
    rows.writerow(["id", "class", *columns, *more, "error", *origin.to_dict()])
    constant = [
        each if isinstance(each, str) else _join_values(each) for each in origin.to_dict().values()
    ]

    def write_rows(predictions: Sequence[Prediction]) -> None:
        for one in predictions:
            # `str` writes the fewest digits that identify the float32.
            values = [""] * len(columns) if one.values is None else map(str, one.values)
            held = [""] * len(more)
            if with_sets and one.held is not None:
                held = [spreadsheet_text(one.held[0]), str(one.held[1]).lower()]
            name, label, error = map(spreadsheet_text, (one.id, one.label or "", one.error or ""))
            rows.writerow([name, label, *values, *held, error, *constant])

    return write_rows


def _join_values(values: Mapping[str, float]) -> str:
    return spreadsheet_text(SEPARATOR.join(f"{name}={value}" for name, value in values.items()))


@contextmanager
def _parquet_rows(
    path: Path, columns: Sequence[str], origin: Origin, with_sets: bool
) -> Iterator[Write]:
    fields = [("id", pa.string()), ("class", pa.string())]
    fields += [(name, pa.float32()) for name in columns]
    fields += [("set", pa.string()), ("abstain", pa.bool_())] if with_sets else []
    metadata = {METADATA_KEY: json.dumps(origin.to_dict())}
    schema = pa.schema([*fields, ("error", pa.string())], metadata=metadata)

    def make_table(predictions: Sequence[Prediction]) -> pa.Table:
        missing = np.full(len(columns), None)
        values = np.stack([missing if each.values is None else each.values for each in predictions])
        ids, labels, _, errors, held = zip(*predictions, strict=True)
        sets = zip(*(each or (None, None) for each in held), strict=True) if with_sets else ()
        return pa.table([ids, labels, *values.T, *sets, errors], schema=schema)

    with (
        path.open("wb") as stream,  # pyarrow can open only file names in UTF-8
        pq.ParquetWriter(stream, schema, compression="zstd") as writer,
    ):
        pending: list[Prediction] = []

        def write_rows(predictions: Sequence[Prediction]) -> None:
            pending.extend(predictions)
            if len(pending) >= GROUP_ROWS:
                flush_rows()

        def flush_rows() -> None:
            if pending:
                writer.write_table(make_table(pending))
                pending.clear()

        yield write_rows
        flush_rows()
