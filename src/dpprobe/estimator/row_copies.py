"""Warns the owner of private rows if some rows are copies, as a study warns of copied images."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpprobe.data.promise_facts import PromiseFacts
from dpprobe.estimator.array_inputs import warn_caller
from dpprobe.estimator.known_rows import digest_rows
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.row_source import RowSource

_PRIVATE = (
    "Keep this message private, as its numbers have no noise; no statement or bundle has them"
)


def warn_of_copies(
    rows: npt.NDArray[np.float32] | RowSource, units: Units | None, promise: PromiseFacts | None
) -> None:
    """Warns if a row occurs twice, or with `units`, if a row occurs in two units.

    Two images of one picture may have different features, so the counts in `promise` are used too.
    """
    copied, most = count_copies(rows, units)
    unit = "image" if units is None else "patient"
    counted = None if promise is None else promise.count_copies(unit)
    if counted is not None:
        copied, most = max(copied, counted["rows"]), max(most, counted["most"])
    if not copied:
        return
    if units is None:
        message = (
            f"X: {copied} rows repeat another row, and one row occurs {most} times. A row that "
            "occurs k times has only the protection of a group of k, about k times the epsilon. If "
            "one person has several rows, set unit='group' and pass groups, or keep one row per "
            "person"
        )
    else:
        message = (
            f"X: {copied} rows repeat a row of another group, and one row occurs in "
            f"{most} groups. A row in k groups has only the protection of k groups, "
            "about k times the epsilon. If these groups are one person, give them one name"
        )
    warn_caller(f"{message}. {_PRIVATE}")


def count_copies(rows: npt.NDArray[np.float32] | RowSource, units: Units | None) -> tuple[int, int]:
    """Counts rows that repeat a row of another unit, and the largest number of units with one row.

    Rows that contain only NaN are null examples, not copies.
    """
    digests = digest_rows(rows)
    dimension = rows.shape[1] if isinstance(rows, np.ndarray) else rows.dimension
    null = digest_rows(np.full((1, dimension), np.nan, np.float32))[0]
    codes = np.arange(len(digests)) if units is None else units.unit_of_rows()
    pairs = np.unique(np.stack([digests, codes.astype(np.uint64)])[:, digests != null], axis=1)
    _, counts = np.unique(pairs[0], return_counts=True)
    return int((counts - 1).sum()), int(counts.max(initial=0))
