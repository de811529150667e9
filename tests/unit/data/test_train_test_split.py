"""The stratified split: a partition, stable when the data grow."""

from __future__ import annotations

import hashlib
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dpprobe.data import train_test_split

FRACTIONS = st.floats(0.01, 0.99)
STRATA = st.lists(st.integers(0, 3), min_size=1, max_size=60)


@given(rows=st.integers(0, 5000), fraction=FRACTIONS)
def test_count_test_is_the_rounded_fraction_within_its_bounds(rows: int, fraction: float) -> None:
    count = train_test_split.count_test(rows, fraction)
    if rows < 2:
        assert count == 0
    else:
        assert 1 <= count <= rows - 1
        assert abs(count - fraction * rows) <= 0.5 + 1e-9 or count in (1, rows - 1)
    assert train_test_split.count_test(rows + 1, fraction) - count in (0, 1)


@given(strata=STRATA, fraction=FRACTIONS, seed=st.integers(0, 9))
def test_the_first_of_each_class_by_hash_are_tested(
    strata: list[int], fraction: float, seed: int
) -> None:
    """So neither the order of the rows counts, nor a library; a row moves one of its own class."""
    ids = [f"row-{row}" for row in range(len(strata))]
    tested = train_test_split.choose_test(ids, strata, fraction=fraction, seed=seed)
    digests = [hashlib.sha256(f"{seed}\n{name}".encode()).digest() for name in ids]
    rows = Counter(strata)
    for label, size in rows.items():
        ranked = sorted(row for row in zip(digests, strata, tested, strict=True) if row[1] == label)
        count = train_test_split.count_test(size, fraction)
        assert [row[2] for row in ranked] == [True] * count + [False] * (size - count)
    sides = tested.count(False), tested.count(True)
    assert train_test_split.count_rows(rows.values(), fraction) == sides
