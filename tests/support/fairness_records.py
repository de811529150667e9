"""The record of subgroups of a real run and its table, with what a test needs otherwise.

The run of `tests/workflow/test_fairness.py` compared `sgd` at 0.5 and 2 with the ceiling, on rows
of several labels: by `ink`, of two groups, and `side`, of three and a small one, "unknown".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpprobe.analyses.fairness.fairness_record import (
    FAIRNESS,
    PARITY_RATES,
    RECORD_SUFFIX,
    TABLE_SUFFIX,
    FairnessRecord,
)
from dpprobe.artifacts import write_table
from dpprobe.records import locate_record
from tests.support.refusals import change_values
from tests.support.stored_records import FOLDER, read_stored

RECORD = FairnessRecord.model_validate(read_stored("fairness.json"))
TABLE = pq.read_table(FOLDER / "fairness.parquet")
# Intervals that stand apart from 0 and from chance.
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
    """Writes the record and its table below the folder of results; returns the record's path.

    Args:
      names: other names of methods, epsilons, attributes and groups.
      gap: values of every gap.
      reference: False where no cell is compared with another.
      parity: True for the gaps between rates too.
      compared: False for the group "unknown" alone, which is too small to be compared.
      changes: of values of the record, by their paths.
    """
    record, table = RECORD.model_dump(mode="json"), TABLE
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
