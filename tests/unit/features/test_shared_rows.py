"""Rows that two stores share are recognised after reordering, scaling and rounding."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from dpprobe.features.aligned_rows import LINE, empty_rows
from dpprobe.features.shared_rows import MOST_SHARED, PublicRows

Rows = npt.NDArray[np.float32]
ROWS, DIMENSION = 400, 32


class Store:
    """Rows in memory with the methods of a store."""

    def __init__(self, features: Rows) -> None:
        self.features = features
        self.dimension = features.shape[1]

    @property
    def rows(self) -> int:
        return len(self.features)

    def read_blocks(self, rows: int) -> Iterator[tuple[int, Rows]]:
        for start in range(0, len(self.features), min(rows, 37)):
            yield start, self.features[start : start + min(rows, 37)].copy()

    def read_rows(self, rows: npt.NDArray[np.int64]) -> Rows:
        assert (np.diff(rows) > 0).all()
        return self.features[rows]


def rows_of(seed: int, rows: int = ROWS, *, dimension: int = DIMENSION, mean: float = 0.0) -> Rows:
    return np.random.default_rng(seed).normal(mean, size=(rows, dimension)).astype(np.float32)


def shared(public: Rows, private: Rows) -> float:
    return PublicRows(Store(public)).shared_with(Store(private))


def bfloat16(rows: Rows) -> Rows:
    bits = (rows.view(np.uint32).astype(np.uint64) + 0x8000) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32)


def changed(rows: Rows, part: float) -> Rows:
    noise = np.random.default_rng(7).normal(size=rows.shape)
    return (rows * (1 + part * noise)).astype(np.float32)


@pytest.mark.parametrize("mean", [0.0, 3.0])
@pytest.mark.parametrize("dimension", [3, DIMENSION])
def test_equal_rows_are_one_in_any_order_and_company(mean: float, dimension: int) -> None:
    private = rows_of(0, dimension=dimension, mean=mean)
    assert shared(private[::-1], private) == 1
    assert shared(private[7:8], private) == 1
    assert shared(private[:100], private) == 1
    crowd = np.concatenate([rows_of(1, 50 * ROWS, dimension=dimension, mean=mean), private])
    assert shared(crowd, private) > 0.9
    assert shared(private.astype(np.float16).astype(np.float32), private) > 0.9


@pytest.mark.parametrize("mean", [0.0, 3.0])
def test_rows_that_were_scaled_or_rounded_are_still_one(mean: float) -> None:
    private = rows_of(0, mean=mean)
    ulp = private.astype(np.float16)
    ulp[:, 0] = np.nextafter(ulp[:, 0], np.float16(9))
    lengths = np.random.default_rng(2).uniform(0.1, 10, size=(ROWS, 1)).astype(np.float32)
    for other in (lengths * private, ulp.astype(np.float32), bfloat16(private)):
        assert shared(other, private) > 0.7
    assert shared(changed(private, 1e-6), private) > 0.98
    assert shared(changed(private, 0.01), private) > 2 * MOST_SHARED


@pytest.mark.parametrize("mean", [0.0, 3.0])
def test_rows_that_were_negated_or_shifted_are_still_one(mean: float) -> None:
    """In earlier versions, each of these copies passed for public data."""
    private = rows_of(0, mean=mean)
    generator = np.random.default_rng(3)
    scales, shifts = generator.uniform(-5, 5, size=(2, ROWS, 1)).astype(np.float32)
    one_row = generator.normal(size=DIMENSION).astype(np.float32) * 4
    seven, three = np.float32(7), np.float32(3)
    moved = [private + seven, private + one_row, scales * private + shifts]
    for copy in (-private, *moved, three - 2 * private, one_row - 0.5 * private):
        assert shared(copy[::-1], private) > 0.4
        assert shared(copy.astype(np.float16).astype(np.float32), private) > 0.4
    assert shared(3 - 2 * private[:40], private) > 0.9, "a part of them too"
    assert shared(-rows_of(0, dimension=3), rows_of(0, dimension=3)) == 1
    few = [rows_of(0, dimension=dimension, mean=mean) for dimension in (15, 16)]
    assert [shared(rows + seven, rows) > 0.4 for rows in few] == [False, True]


@pytest.mark.parametrize("mean", [0.0, 3.0])
def test_similar_but_different_rows_are_not_counted_as_shared(mean: float) -> None:
    private = rows_of(0, 20 * ROWS, mean=mean)
    assert shared(rows_of(1, 20 * ROWS, mean=mean), private) == 0
    assert shared(-rows_of(1, 20 * ROWS, mean=mean), private) == 0
    assert shared(changed(private, 0.5), private) == 0
    narrow = np.float32(1e3) + rows_of(2)  # all cosines above 1 - 1e-5
    assert shared(np.float32(1e3) + rows_of(3), narrow) == 0
    assert shared(narrow[::-1], narrow) == 1


def test_few_numbers_a_row_are_compared_one_by_one() -> None:
    private = rows_of(0, 20 * ROWS, dimension=2)
    assert shared(rows_of(1, 20 * ROWS, dimension=2), private) < MOST_SHARED
    assert shared(2 * private, private) < MOST_SHARED


def test_the_part_is_of_the_smaller_side_s_different_rows() -> None:
    private = rows_of(0)
    for copies in (20, 21):
        both = np.concatenate([private[:copies], rows_of(1, 5 * ROWS)])
        assert shared(both, private) == pytest.approx(copies / ROWS)
        assert (shared(both, private) > MOST_SHARED) == (copies == 21)
    repeated = np.concatenate([np.repeat(private[:1], 50, axis=0), rows_of(1)])
    assert shared(repeated, private) == pytest.approx(1 / ROWS)


def test_zero_and_nonfinite_rows_are_never_shared_and_hide_no_shared_rows() -> None:
    private = rows_of(0)
    unusable = np.zeros((50, DIMENSION), np.float32)
    unusable[::3] *= -1
    unusable[1::3] = np.nan
    unusable[2::3, 4] = np.inf
    assert shared(unusable, np.concatenate([private, unusable])) == 0
    assert shared(np.concatenate([unusable, rows_of(1)]), np.concatenate([private, unusable])) == 0
    assert shared(np.concatenate([unusable, private]), private) == 1
    assert shared(private, unusable) == 0
    for odd in (np.inf, np.nan, 0, 1e30):  # an odd row must not hide its neighbours
        beside = private + np.float32(7)
        beside[::9] = odd
        assert shared(beside, private) > 0.4


def test_memory_equals_that_of_keys_and_compared_rows() -> None:
    private = rows_of(0, 40_000, dimension=256)
    public = private[::-1].copy()
    tracemalloc.start()
    assert shared(public, private) == 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < private.nbytes / 2


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (7, 5), (3000, 768)])
def test_rows_begin_at_a_cache_line(shape: tuple[int, int], dtype: str) -> None:
    several = [empty_rows(shape, dtype) for _ in range(8)]
    for number, rows in enumerate(several):
        assert (rows.shape, rows.dtype) == (shape, np.dtype(dtype))
        assert rows.flags.c_contiguous
        assert rows.ctypes.data % LINE == 0 or not rows.size
        rows[:] = number
    for number, rows in enumerate(several):
        assert (rows == number).all()
