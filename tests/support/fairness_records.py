"""A fairness record and its table in the job's format, with changes that a test chooses.

`sgd` at epsilon 0.5 and 2 is compared with the ceiling, on rows with several labels. Attributes are
`ink`, with two groups, and `side`, with three groups and a small group "unknown".
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from sklearn.datasets import load_digits

from dpprobe.analyses.fairness.fairness_record import (
    FAIRNESS,
    PARITY_RATES,
    RECORD_SUFFIX,
    TABLE_SUFFIX,
    FairnessRecord,
)
from dpprobe.analyses.fairness.measure import compare_groups
from dpprobe.analyses.fairness.options import FairnessOptions
from dpprobe.files.json_files import read_json, write_json
from dpprobe.files.records import locate_record
from dpprobe.files.table_files import write_table
from tests.support.cell_files import write_cell, write_predictions
from tests.support.refusals import change_values

CELLS = (("sgd", "0.5"), ("sgd", "2"), ("nonprivate", "inf"))
# Strength of the labels' signal in a cell's scores.
QUALITY = {"0.5": 1.0, "2": 1.5, "inf": 3.0}
LABELS = ("even", "five_or_more", "has_a_hole")
HOLES = (0, 4, 6, 8, 9)
TEST_ROWS = 397


@cache
def compare_made_cells() -> tuple[FairnessRecord, pa.Table]:
    """Compares groups of handwritten digits, with made-up scores of two heads per cell.

    Attributes are the boldness of a digit, and its image side with more ink (three rows: unknown).
    """
    images, digits = (values[-TEST_ROWS:] for values in load_digits(return_X_y=True))
    labels = np.stack([digits % 2 == 0, digits >= 5, np.isin(digits, HOLES)], axis=1) * 1
    left, ink = images.reshape(-1, 8, 8)[:, :, :4].sum((1, 2)), images.sum(1)
    side = np.select([left < 0.45 * ink, left < 0.55 * ink], ["right", "middle"], "left").tolist()
    groups = {
        "group_ink": np.where(ink < 310, "thin", "bold").tolist(),
        "group_side": [*side[:-3], *["unknown"] * 3],
    }
    generator = np.random.default_rng(0)
    with TemporaryDirectory() as folder:
        paths = []
        for method, epsilon in CELLS:
            path = write_cell(
                Path(folder),
                method=method,
                epsilon=epsilon,
                seeds=2,
                multi_label=True,
                rows=TEST_ROWS,
                class_names=LABELS,
            )
            # heads are worse at the last label in the group "left"
            known = QUALITY[epsilon] * (labels - 0.5)
            known[np.array(side) == "left", 2] /= 2
            scores = generator.normal(size=(2, *labels.shape)) + known
            write_predictions(path.with_name("predictions.parquet"), scores, labels, **groups)
            if method == "sgd":
                values = read_json(path)
                write_json(path, values | {"options": {"head": "sgd", "loss": "sigmoid"}})
            paths.append(path)
        record = Path(folder) / "fairness.json"
        compare_groups(
            paths,
            options=FairnessOptions(resamples=200),
            references=[(*cell, *CELLS[-1]) for cell in CELLS[:-1]],
            table=record.with_suffix(TABLE_SUFFIX),
            record=record,
            seed=0,
            threads=1,
        )
        return FairnessRecord.read(record), pq.read_table(record.with_suffix(TABLE_SUFFIX))


# Intervals that include neither 0 nor chance.
APART = {
    "gap": 0.06,
    "low": 0.025,
    "high": 0.09,
    "chance_gap": 0.03,
    "difference": 0.03,
    "difference_low": 0.01,
    "difference_high": 0.05,
}
NO_REFERENCE = {"difference": None, "difference_low": None, "difference_high": None}
NO_INTERVAL = {"low": None, "high": None, "chance_gap": None, "std": None}


def made_record() -> FairnessRecord:
    return compare_made_cells()[0]


def write_fairness(
    results: Path,
    *,
    backbone: str = "pixels",
    names: Mapping[str, str] | None = None,
    gap: Mapping[str, Any] | None = None,
    reference: bool = True,
    compared: bool = True,
    parity: bool = False,
    changes: Mapping[str, Any] | None = None,
) -> Path:
    """Writes the record and its table below the results folder; returns the record's path.

    Args:
      names: new names of methods, epsilons, attributes and groups, by old name.
      gap: values of every gap.
      reference: False if no cell is compared with another.
      parity: True to include the gaps between rates.
      compared: False to keep only the group "unknown", which is too small to be compared.
      changes: new values of the record, by path.
    """
    made, table = compare_made_cells()
    record = made.model_dump(mode="json")
    record["backbone"] = backbone
    gap = dict(gap or {})
    if not reference:
        gap |= NO_REFERENCE
    if not compared:
        gap |= NO_REFERENCE | NO_INTERVAL
        gap |= dict.fromkeys(("worst_group", "worst", "best_group", "best", "gap")) | {"groups": 0}
        table = table.filter(pc.equal(table["group"], "unknown"))
        side = next(each for each in record["attributes"] if each["attribute"] == "side")
        side["groups"] = [each for each in side["groups"] if each["left_out"]]
        record["attributes"] = [side]
    kept = {each["attribute"] for each in record["attributes"]}
    for cell in record["cells"]:
        cell["reference"] = cell["reference"] if reference else None
        cell["attributes"] = [each for each in cell["attributes"] if each["attribute"] in kept]
        for attribute in cell["attributes"]:
            for metric in () if parity else PARITY_RATES:
                attribute["gaps"].pop(metric, None)
            for metric in attribute["gaps"]:
                attribute["gaps"][metric] |= gap
    record = _rename(change_values(record, changes or {}), names or {})
    path = locate_record(results / FAIRNESS, "digits", backbone, RECORD_SUFFIX)
    rows = _rename(table.to_pylist(), names or {})
    write_table(path.with_suffix(TABLE_SUFFIX), pa.Table.from_pylist(rows, schema=table.schema))
    FairnessRecord.model_validate(record).write(path)
    return path


def _rename(values: Any, names: Mapping[str, str]) -> Any:
    if isinstance(values, dict):
        return {names.get(key, key): _rename(value, names) for key, value in values.items()}
    if isinstance(values, list):
        return [_rename(value, names) for value in values]
    return names.get(values, values) if isinstance(values, str) else values
