"""Where rare classes break down, and the intervals of their recalls."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.analyses.imbalance.imbalance_record import ImbalanceRecord, RareCell
from dpprobe.analyses.imbalance.measure import (
    break_down,
    estimate_share,
    least_reference,
    retained_recall,
)
from dpprobe.results.intervals import wilson_interval
from tests.support.imbalance_records import imbalance_record, lawful_cells, rare_cell

# Estimates


def test_an_interval_covers_seeds_and_test_rows() -> None:
    alike = estimate_share([0.0] * 5, 100)
    assert (alike.mean, alike.std, alike.low) == (0.0, 0.0, 0.0)
    assert (
        alike.high == wilson_interval(0.0, 100)[1] > 0.03
    )  # five seeds at 0 of 100 rows are no proof of 0
    spread = estimate_share([0.1, 0.5, 0.9], 10_000)
    assert spread.low == 0.0
    assert spread.high == 1.0
    one = estimate_share([0.5], 100)
    assert one.std is None
    assert (one.low, one.high) == wilson_interval(0.5, 100)


# Break-down


def points(*recalls: tuple[int, str, float]) -> list[RareCell]:
    return [rare_cell(recall, class_rows=rows, epsilon=eps) for rows, eps, recall in recalls]


@pytest.mark.parametrize(
    ("recalls", "note"),
    [
        ((0.0, 0.1), "above the largest product"),
        ((0.7, 0.8), "at or below the smallest product"),
        ((0.8, 0.1), "the largest product of the study fails again"),
    ],
)
def test_what_the_grid_cannot_tell_is_said(recalls: tuple[float, float], note: str) -> None:
    cells = points((50, "1", recalls[0]), (100, "1", recalls[1]))
    assert note in break_down(cells, class_name="cat", method="sgd").note


@pytest.mark.parametrize(("classes", "reference"), [(10, 0.15), (2, 0.95), (4, 0.5)])
def test_what_guessing_keeps_is_not_compared(classes: int, reference: float) -> None:
    """A head of noise alone keeps one in `classes` rows, at every epsilon: half of these."""
    assert 1 / classes >= reference / 2
    assert reference <= least_reference(classes)
    assert least_reference(10) < 0.8
    assert least_reference(1000) == 0.1


@given(st.lists(st.tuples(st.integers(1, 50), st.sampled_from(["0.5", "1", "2"]),
                          st.floats(0, 0.8)), min_size=1, max_size=12))  # fmt: skip
def test_break_down_by_brute_force(cells: list[tuple[int, str, float]]) -> None:
    made = points(*cells)
    point = break_down(made, class_name="cat", method="sgd")
    held = {rows * float(eps): True for rows, eps, _ in cells}
    for cell, (rows, eps, _) in zip(made, cells, strict=True):
        held[rows * float(eps)] &= retained_recall(cell) >= 0.5
    good = [rows * float(e) for c, (rows, e, _) in zip(made, cells, strict=True)
            if retained_recall(c) >= 0.5]  # fmt: skip
    lasting = [p for p in held if all(held[q] for q in held if q >= p)]
    assert point.reached == min(good, default=None)
    assert point.lasting == min(lasting, default=None)


# The record


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = imbalance_record(lawful_cells())
    record.write(tmp_path / "pixels.json")
    assert ImbalanceRecord.read(tmp_path / "pixels.json") == record
    text = (tmp_path / "pixels.json").read_text(encoding="utf-8")
    assert "NaN" not in text
