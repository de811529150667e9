"""The stratified split: a partition, stable when the data grow."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dpprobe.data import train_test_split

FRACTIONS = st.floats(0.01, 0.99)
STRATA = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def name_rows(strata: list[int]) -> list[str]:
    return [f"row-{row}" for row in range(len(strata))]


@given(rows=st.integers(0, 5000), fraction=FRACTIONS)
def test_count_test_is_the_rounded_fraction_within_its_bounds(rows: int, fraction: float) -> None:
    count = train_test_split.count_test(rows, fraction)
    if rows < 2:
        assert count == 0
    else:
        assert 1 <= count <= rows - 1
        assert abs(count - fraction * rows) <= 0.5 + 1e-9 or count in (1, rows - 1)
    assert train_test_split.count_test(rows + 1, fraction) - count in (0, 1)


def test_count_test_rounds_to_the_nearest() -> None:
    assert [train_test_split.count_test(rows, 0.2) for rows in (1, 2, 7, 8, 12, 13)] == [
        0,
        1,
        1,
        2,
        2,
        3,
    ]


@given(strata=STRATA, fraction=FRACTIONS, seed=st.integers(0, 9))
def test_each_class_is_tested_on_by_its_count(
    strata: list[int], fraction: float, seed: int
) -> None:
    tested = train_test_split.choose_test(name_rows(strata), strata, fraction=fraction, seed=seed)
    rows = Counter(strata)
    chosen = Counter(label for label, flag in zip(strata, tested, strict=True) if flag)
    for label, count in rows.items():
        assert chosen[label] == train_test_split.count_test(count, fraction)
    assert train_test_split.count_rows(rows.values(), fraction) == (
        tested.count(False),
        tested.count(True),
    )


@given(strata=STRATA, data=st.data())
def test_order_of_the_rows_does_not_matter(strata: list[int], data: st.DataObject) -> None:
    ids = name_rows(strata)
    order = data.draw(st.permutations(range(len(ids))))
    tested = train_test_split.choose_test(ids, strata, fraction=0.3, seed=0)
    shuffled = train_test_split.choose_test(
        [ids[row] for row in order], [strata[row] for row in order], fraction=0.3, seed=0
    )
    assert shuffled == [tested[row] for row in order]


@given(strata=STRATA, fraction=FRACTIONS, added=st.integers(0, 3))
def test_one_more_row_moves_at_most_one_other_of_its_class(
    strata: list[int], fraction: float, added: int
) -> None:
    ids = name_rows(strata)
    before = train_test_split.choose_test(ids, strata, fraction=fraction, seed=0)
    after = train_test_split.choose_test([*ids, "new"], [*strata, added], fraction=fraction, seed=0)
    moved = [row for row in range(len(ids)) if before[row] != after[row]]
    assert len(moved) <= 1
    assert all(strata[row] == added for row in moved)


def test_another_seed_gives_another_split() -> None:
    strata = [0] * 200
    one = train_test_split.choose_test(name_rows(strata), strata, fraction=0.5, seed=0)
    other = train_test_split.choose_test(name_rows(strata), strata, fraction=0.5, seed=1)
    assert one != other


def test_split_is_the_same_on_every_machine() -> None:
    # Golden: ranks are SHA-256 of "<seed>\n<id>", so this never changes with a library.
    tested = train_test_split.choose_test(name_rows([0] * 10), [0] * 10, fraction=0.3, seed=0)
    assert [row for row, flag in enumerate(tested) if flag] == [0, 6, 7]
