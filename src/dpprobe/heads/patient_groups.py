"""Units of privacy with several rows, such as patients: their rows, and the rows' weights.

A row of a unit with m rows has weight 1 / m. Each row's contribution to a released sum is first
clipped by itself, then weighted. So a unit contributes a mean of clipped vectors, no longer than
one clipped vector. Sensitivities and privacy costs equal those of units with one row; n counts
units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpprobe.data.people.person_names import find_equal_numbers, person_name
from dpprobe.errors import PrivacyError

Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Units:
    """The units of a training set's rows.

    Attributes:
      members: int64 [rows], the rows of unit 0, of unit 1 and so on.
      starts: int64 [units + 1], the position in `members` at which each unit begins.
      weights: float32 [rows], the largest equal weights with a sum of at most 1 over a unit's rows.

    Example:
      >>> units = Units.number_units(["ann", "bob", "ann", "eve"])  # four images of three patients
      >>> units.count, units.weights.tolist()
      (3, [0.5, 1.0, 0.5, 1.0])
      >>> Units.number_units(["7", "07"])
      Traceback (most recent call last):
          ...
      dpprobe.errors.PrivacyError: units of privacy: '07' is '7' in other rows, and each would
      count as one person; use one name per person
    """

    members: Index
    starts: Index
    weights: npt.NDArray[np.float32]

    @classmethod
    def number_units(cls, names: Sequence[str]) -> Units:
        """Groups rows into units by the name of each row's unit.

        Raises PrivacyError for a missing name, or if two names are equal as numbers.
        """
        # Objects, because NumPy's text arrays drop trailing NUL characters and so merge names.
        known, codes, sizes = np.unique(
            np.asarray(names, dtype=object), return_inverse=True, return_counts=True
        )
        _check_names(known.tolist())
        weights = (1 / sizes).astype(np.float32)
        over = weights.astype(np.float64) * sizes > 1  # exact: 24 bits times up to 28 bits
        weights[over] = np.nextafter(weights[over], np.float32(0))
        return cls(
            members=np.argsort(codes, kind="stable"),
            starts=np.concatenate([[0], np.cumsum(sizes)]),
            weights=weights[codes],
        )

    @property
    def count(self) -> int:
        """The number of units, which is public."""
        return len(self.starts) - 1

    def unit_of_rows(self) -> Index:
        """Returns the number of each row's unit, int64 [rows]."""
        units = np.empty(len(self.members), dtype=np.int64)
        units[self.members] = np.repeat(np.arange(self.count), np.diff(self.starts))
        return units

    def rows_of(self, units: Index, sizes: Index) -> tuple[Index, Index]:
        """Converts batches of units to batches of rows; returns rows, and rows per batch."""
        counts = self.starts[units + 1] - self.starts[units]
        stops = np.concatenate([[0], np.cumsum(counts)])
        shifts = np.repeat(self.starts[units] - stops[:-1], counts)
        rows = self.members[np.arange(stops[-1]) + shifts]
        return rows, np.diff(stops[np.concatenate([[0], np.cumsum(sizes)])])


def _check_names(names: Sequence[str]) -> None:
    if missing := [name for name in names if not person_name(name)]:
        raise PrivacyError(
            f"units of privacy: {missing[0]!r} is not a name, so the row's person is unknown; "
            "name the person, or leave the row out"
        )
    for name, other in find_equal_numbers(names).items():
        raise PrivacyError(
            f"units of privacy: {name!r} is {other!r} in other rows, and each would count as one "
            "person; use one name per person"
        )
