"""Counts of copied rows equal those of a plain loop, and only the holder of the rows sees them."""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.data.promise_facts import PromiseFacts
from dpprobe.estimator import array_inputs, known_rows
from dpprobe.estimator.row_copies import warn_of_copies
from dpprobe.heads.patient_groups import Units


def told(rows: Any, units: Units | None, promise: PromiseFacts | None = None) -> str | None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_copies(rows, units, promise)
    assert len(caught) < 2
    return str(caught[0].message) if caught else None


@given(
    codes=st.lists(st.integers(0, 4), min_size=1, max_size=20),
    names=st.lists(st.sampled_from("abcdef"), min_size=20, max_size=20),
    grouped=st.booleans(),
    size=st.sampled_from([1, 40, 1000]),
)
def test_copies_equal_a_plain_loop(
    codes: list[int], names: list[str], grouped: bool, size: int
) -> None:
    rows = np.array([[code, -code] for code in codes], dtype=np.float32)
    people = names[: len(codes)] if grouped else [str(row) for row in range(len(codes))]
    holders = defaultdict(set)
    for code, person in zip(codes, people, strict=True):
        holders[code].add(person)
    copied = sum(len(each) - 1 for each in holders.values())
    most = max(map(len, holders.values()))
    with pytest.MonkeyPatch.context() as patch:
        for module in (array_inputs, known_rows):
            patch.setattr(module, "SCORED_BYTES", size)
        said = told(rows, Units.number_units(people) if grouped else None)
    if not copied:
        assert said is None
        return
    assert said is not None
    place = "in (\\d+) groups" if grouped else "(\\d+) times"
    found = re.match(rf"X: (\d+) rows repeat .*?one row occurs {place}\.", said)
    assert found is not None, said
    assert (int(found[1]), int(found[2])) == (copied, most)
    assert "Keep this message private" in said
    assert ("give them one name" if grouped else "set unit='group'") in said


@pytest.mark.parametrize(
    ("images", "most", "said"),
    [
        (0, 1, "2 rows repeat .* occurs 3 times"),
        (1, 2, "2 rows repeat .* occurs 3 times"),
        (5, 2, "5 rows repeat .* occurs 3 times"),
        (5, 4, "5 rows repeat .* occurs 4 times"),
    ],
)
def test_the_larger_count_of_copies_is_stated(images: int, most: int, said: str) -> None:
    copies = {"image": {"rows": images, "most": most}, "patient": {"rows": 9, "most": 9}}
    thrice = np.ones((3, 2), np.float32)
    assert re.search(said, str(told(thrice, None, PromiseFacts(copies=copies))))
    different = told(np.eye(3, dtype=np.float32), None, PromiseFacts(copies=copies))
    assert (different is None) == (images == 0)


def test_minus_zero_is_zero() -> None:
    assert told(np.array([[0.0, 1], [-0.0, 1]], np.float32), None) is not None
    assert told(np.array([[0.0, 1], [1, 0]], np.float32), None) is None
