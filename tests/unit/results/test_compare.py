"""The difference of two cells tested on the same rows: its interval covers, and is the sharper."""

from __future__ import annotations

import numpy as np
import pytest

from dpprobe.results.compare import INDEPENDENT, PAIRED, compare
from dpprobe.results.halves import half_values
from dpprobe.results.metrics import summarise
from dpprobe.results.summary import Entry

TIMES = 200


def _entry(correct: np.ndarray, *, halves: bool = True) -> Entry:
    """Makes the entry of a cell from what is right, [seeds, rows]."""
    labels = np.zeros(correct.shape[1], dtype=np.int64)
    values = [
        half_values("accuracy", np.eye(2)[1 - right.astype(int)], labels) for right in correct
    ]
    records = [{"accuracy": float(right.mean())} for right in correct]
    summary = summarise(records, correct=correct[0])["accuracy"]
    return Entry(
        mean=100 * summary["mean"], low=None, high=None, interval=None,
        both_low=100 * summary["both_low"], both_high=100 * summary["both_high"],
        values=tuple(100 * record["accuracy"] for record in records),
        halves=100 * np.array(values) if halves else None,
        test_units=correct.shape[1], seeds=len(correct), private=True, ceiling=False,
    )  # fmt: skip


def _pair(generator: np.random.Generator, rows: int, seeds: int) -> tuple[np.ndarray, np.ndarray]:
    """Two cells with 80 and 85 % right on rows that are as hard for both."""
    hard = generator.random(rows)
    made = []
    for chance, count in ((0.80, seeds), (0.85, 1)):
        easy = np.where(hard < 0.6, 1.0, (chance - 0.6) / 0.4)
        made.append(generator.random((count, rows)) < easy)
    return made[0], made[1]


@pytest.mark.parametrize(("rows", "seeds"), [(300, 5), (300, 1), (12, 1)])
def test_the_interval_covers_the_difference(rows: int, seeds: int) -> None:
    generator = np.random.default_rng(0)
    held = 0
    for _ in range(TIMES):
        first, second = _pair(generator, rows, seeds)
        found = compare(_entry(first), _entry(second))
        assert found.way == (PAIRED if rows == 300 else INDEPENDENT)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= -5.0 <= found.high
    assert held >= 0.92 * TIMES


def test_pairs_tell_more_than_two_intervals() -> None:
    first, second = _pair(np.random.default_rng(1), 1000, 3)
    paired = compare(_entry(first), _entry(second))
    alone = compare(_entry(first, halves=False), _entry(second, halves=False))
    assert paired.low is not None
    assert paired.high is not None
    assert alone.low is not None
    assert alone.high is not None
    assert paired.difference == alone.difference
    assert paired.high - paired.low < 0.9 * (alone.high - alone.low)


def test_equal_cells_are_rarely_told_apart() -> None:
    generator = np.random.default_rng(2)
    apart = 0
    for _ in range(TIMES):
        hard = generator.random(400)
        first, second = (
            0.5 * hard + 0.5 * generator.random((seeds, 400)) < 0.6 for seeds in (5, 1)
        )
        apart += compare(_entry(first), _entry(second)).apart
    assert apart <= 0.08 * TIMES


def test_cells_that_are_alike_everywhere_have_an_interval_with_a_width() -> None:
    entry = _entry(np.arange(660)[None] < 600)
    found = compare(entry, entry)
    assert (found.difference, found.way) == (0.0, INDEPENDENT)
    assert not found.apart
    assert found.moved(1.0).difference == 1.0


def test_without_intervals_nothing_is_told_apart() -> None:
    entry = Entry(mean=50, low=None, high=None, interval=None, seeds=1, private=True, ceiling=False)
    assert not compare(entry, entry).apart
