"""Values that a search may choose: within their ends, evenly spaced, and both ends tried."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dpprobe.heads.search_space import Range, list_corners, list_probes, spell_options

ENDS = st.floats(1e-3, 1e3)


@given(low=ENDS, high=ENDS, place=st.floats(0, 1), log=st.booleans())
def test_a_place_is_a_share_of_the_way_or_of_the_logarithms(
    low: float, high: float, place: float, log: bool
) -> None:
    assume(low < high * (1 - 1e-4))
    value = Range(low=low, high=high, log=log).value_at(place)
    assert low <= value <= high
    if log:
        wanted = math.exp(math.log(low) + place * math.log(high / low))
    else:
        wanted = low + place * (high - low)
    assert value == pytest.approx(wanted, rel=1e-5)  # values have six digits
    assert len(f"{value:.15g}".replace(".", "").lstrip("0").rstrip("0").split("e")[0]) <= 6 or (
        value in (low, high)
    )


def test_ends_are_themselves_and_what_is_beyond_them_is_an_end() -> None:
    both = Range(low=1 / 3, high=8)
    assert (both.value_at(0), both.value_at(1)) == (1 / 3, 8)
    assert [both.round_value(each) for each in (0.1, 1 / 1.5, 9.0)] == [1 / 3, 0.666667, 8]


def test_probes_of_a_list_are_all_and_of_a_range_its_ends_and_one_between() -> None:
    assert list_probes((3, 1, 2)) == (3, 1, 2)
    low, between, high = list_probes(Range(low=1, high=1000, log=True))
    assert (low, high) == (1, 1000)
    assert 1 < between < 1000
    assert between != round(between), "an option of whole numbers refuses it beforehand"


def test_each_option_is_tried_alone_then_all_together() -> None:
    spaces: dict[str, Any] = {"a": (1, 2), "b": ("x", "y", "z")}
    corners = list(list_corners(spaces))
    alone = [{name: value} for name, values in spaces.items() for value in values]
    together = [{"a": a, "b": b} for a, b in itertools.product(*spaces.values())]
    assert corners == alone + together
    assert spell_options(together[0]) == "a 1, b 'x'"
