"""Counts of copies equal a plain count over all rows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dpprobe.data.people.copy_counts import CopyCounter

rows = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.sampled_from("pqrs")))


@given(rows)
def test_copies_are_rows_and_units_of_equal_content(given_rows: list[tuple[bytes, str]]) -> None:
    copies, first = CopyCounter(), dict[bytes, str]()
    for content, unit in given_rows:
        if content in first:
            copies.add_copy(content, unit, first_unit=first[content])
        else:
            first[content] = unit
    sizes = [sum(content == each for each, _ in given_rows) for content in first]
    units = [len({unit for each, unit in given_rows if each == content}) for content in first]
    assert copies.by_row == {"rows": len(given_rows) - len(first), "most": max(sizes, default=1)}, (
        given_rows
    )
    # each further unit with the same content adds one row that repeats another unit's
    assert copies.by_unit == {"rows": sum(units) - len(units), "most": max(units, default=1)}
