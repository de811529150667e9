"""Warns the holder of private rows if some rows are copies, as a study warns of images."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from dpprobe.data.copy_counts import CopyCounter
from dpprobe.estimator.array_inputs import SCORED_BYTES, MappedRows, warn_caller
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.training_set import RowSource

_PRIVATE = (
    "Keep this message private, as its numbers have no noise; no statement or bundle has them"
)


def warn_of_copies(rows: npt.NDArray[np.float32] | RowSource, units: Units | None) -> None:
    """Warns if a row occurs twice, or with `units`, if a row occurs in two units."""
    counts = _count_copies(rows, units)
    if not counts["rows"]:
        return
    if units is None:
        message = (
            f"X: {counts['rows']} rows repeat another row, and one row occurs {counts['most']} "
            "times. A row that occurs k times has only the protection of a group of k, about k "
            "times the epsilon. If one person has several rows, write unit='group' and pass "
            "groups, or keep one row per person"
        )
    else:
        message = (
            f"X: {counts['rows']} rows repeat a row of another group, and one row occurs in "
            f"{counts['most']} groups. A row in k groups has only the protection of k groups, "
            "about k times the epsilon. If these groups are one person, give them one name"
        )
    warn_caller(f"{message}. {_PRIVATE}")


def _count_copies(rows: npt.NDArray[np.float32] | RowSource, units: Units | None) -> dict[str, int]:
    source = MappedRows(rows) if isinstance(rows, np.ndarray) else rows
    unit_of = np.empty(0, np.int64) if units is None else units.unit_of_rows()
    counter, first = CopyCounter(), dict[bytes, int]()
    for start, block in source.read_blocks(SCORED_BYTES // (4 * source.dimension) + 1):
        for place, row in enumerate(block + np.float32(0), start=start):  # -0 becomes 0
            content = hashlib.blake2b(row.tobytes(), digest_size=16).digest()
            unit = place if units is None else int(unit_of[place])
            if (first_unit := first.setdefault(content, unit)) != unit:
                counter.add_copy(content, unit, first_unit=first_unit)
    return counter.by_unit
