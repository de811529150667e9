"""Training rows are checked; units of several rows have weights and are drawn as a whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.errors import DataError
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.training_set import TrainingSet
from tests.support.linear_heads import Source

LABELS = torch.tensor([0, 1, 2, 1])
SEVERAL = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]], dtype=torch.uint8)


@pytest.mark.parametrize(
    ("rows", "labels", "message"),
    [
        (torch.zeros(4, 5, dtype=torch.float64), LABELS, "float64"),
        (torch.zeros(4), LABELS, "training features"),
        (torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64), "training features"),
        (torch.zeros(3, 5), LABELS, "training labels"),
        (Source(np.zeros((5, 5), np.float32)), LABELS, "training labels"),
        (torch.zeros(4, 5), LABELS.float(), "training labels"),
        (torch.zeros(4, 5), LABELS + 1, "one is not a number from 0 to 2"),
        (torch.zeros(4, 5), LABELS - 1, "one is not a number from 0 to 2"),
        (torch.zeros(4, 5), SEVERAL[:, :2], "training labels"),
        (torch.zeros(4, 5), SEVERAL.long(), "training labels"),
        (torch.zeros(4, 5), SEVERAL + 1, "one is not a number from 0 to 1"),
        (torch.zeros(4, 5), LABELS[:, None, None], "training labels"),
        (torch.zeros(4, 5), LABELS, "training rows: 4 units of privacy, more than n = 3"),
        (torch.zeros(4, 5), LABELS, "units: given for 2 rows, but there are 4"),
    ],
)
def test_wrong_input_is_refused(rows: Any, labels: torch.Tensor, message: str) -> None:
    units = Units.number_units(["a", "b"]) if message.startswith("units") else None
    assert TrainingSet(torch.zeros(4, 5), LABELS, 3, public_n=9).n == 9
    with pytest.raises(DataError, match=message):
        TrainingSet(rows, labels, 3, units=units, public_n=3 if "n = 3" in message else None)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=200))
def test_a_unit_s_weights_sum_to_at_most_one(codes: list[int]) -> None:
    units = Units.number_units([str(code) for code in codes])
    assert units.count == len(set(codes))
    assert sorted(units.members.tolist()) == list(range(len(codes)))
    for code in range(units.count):
        rows = units.members[units.starts[code] : units.starts[code + 1]]
        assert len({codes[row] for row in rows}) == 1
        weights = units.weights[rows].astype(np.float64)
        assert len(set(weights)) == 1
        # The product is exact: a float32 times a number below 2^29 fits into a float64.
        assert 1 - 2.0**-23 <= weights[0] * len(rows) <= 1


@pytest.mark.parametrize("size", [2, 3, 7, 41, 49, 107, 1000, 99_991])
def test_the_weight_of_one_row_of_many_is_not_rounded_up(size: int) -> None:
    (weight,) = set(Units.number_units(["a"] * size).weights.tolist())
    assert weight * size <= 1 < float(np.nextafter(np.float32(weight), np.float32(1))) * size


def test_batches_of_units_are_batches_of_their_rows() -> None:
    units = Units.number_units(["b", "a", "b", "c", "a", "b"])
    chosen = np.array([1, 0, 2, 1])
    rows, sizes = units.rows_of(chosen, np.array([2, 0, 1, 1]))
    assert sizes.tolist() == [5, 0, 1, 3]
    assert rows.tolist() == [0, 2, 5, 1, 4, 3, 0, 2, 5]
    empty = units.rows_of(np.zeros(0, dtype=np.int64), np.array([0, 0]))
    assert [part.tolist() for part in empty] == [[], [0, 0]]
