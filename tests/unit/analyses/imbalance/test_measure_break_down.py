"""Where rare classes break down, and the intervals of their recalls."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dpprobe.analyses.imbalance.measure import break_down, retained_recall
from tests.support.imbalance_records import rare_cell


@given(
    st.lists(
        st.tuples(st.integers(1, 50), st.sampled_from(["0.5", "1", "2"]), st.floats(0, 0.8)),
        min_size=1,
        max_size=12,
    )
)
def test_break_down_by_brute_force(cells: list[tuple[int, str, float]]) -> None:
    made = [rare_cell(recall, class_rows=rows, epsilon=eps) for rows, eps, recall in cells]
    point = break_down(made, class_name="cat", method="sgd")
    held = {rows * float(eps): True for rows, eps, _ in cells}
    for cell, (rows, eps, _) in zip(made, cells, strict=True):
        held[rows * float(eps)] &= retained_recall(cell) >= 0.5
    good = [
        rows * float(e)
        for c, (rows, e, _) in zip(made, cells, strict=True)
        if retained_recall(c) >= 0.5
    ]
    lasting = [p for p in held if all(held[q] for q in held if q >= p)]
    assert point.reached == min(good, default=None)
    assert point.lasting == min(lasting, default=None)
