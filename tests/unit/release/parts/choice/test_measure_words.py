"""What a bundle says of a choice among results, and which words verification believes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dpprobe.errors import DataError
from dpprobe.release.parts.choice import measure as choice
from dpprobe.release.parts.choice.measure import check_choice, choice_words, fits_block
from tests.support.mechanisms import gaussians, made_plan

PLAN = made_plan([gaussians(8.0)], n=1000)
STUDY: Any = SimpleNamespace(is_of_estimator=False)
ESTIMATOR: Any = SimpleNamespace(is_of_estimator=True)


def check(cells: Any, epsilon: Any, words: str) -> tuple[str, bool]:
    block = {"cells": cells, "epsilon": epsilon, "words": words}
    return check_choice({"choice": block}, PLAN, STUDY)


@pytest.mark.parametrize(("cells", "count"), [(1, "1 cell "), (12, "12 cells ")])
def test_a_priced_choice_names_cells_price_and_what_it_leaves_out(cells: int, count: str) -> None:
    words = choice_words(cells, 1.23456, delta=1e-5)
    assert words.startswith(choice.IF_FIXED)
    assert f"holds, {count}of this dataset" in words
    assert "at most epsilon 1.235 at delta 1e-05, release included" in words
    for part in (choice.SEEDED, choice.LOOKED_AT, choice.ELSEWHERE, choice.TEST_UNITS):
        assert part in words
    assert choice.NOT_COVERED not in words
    assert check(cells, 1.23456, words) == (words, True)


def test_results_without_privacy_are_named_up_to_three() -> None:
    for exposed, named in (
        (["a"], "not private (a). "),
        ([*"abc"], "not private (a, b, c). "),
        ([*"abcd"], "not private (a, b, c and 1 more). "),
        ([*"abcdef"], "not private (a, b, c and 3 more). "),
    ):
        words = choice_words(12, None, exposed, unknown=["x"])
        assert f"{choice.NOT_COVERED}{named}{choice.WHAT_IT_MEANS}" in words
        assert words.endswith(choice.TEST_UNITS)
        assert "not known yet" not in words
        assert check(12, None, words) == (words, True)


def test_unknown_heads_are_named_with_the_remedy() -> None:
    words = choice_words(0, None, unknown=[*"wxyz"])
    named = f"{choice.NOT_COVERED}not known yet (w, x, y and 1 more). {choice.MAKE_FEATURES}"
    assert named in words
    assert "holds, 0 cells of" in words
    assert words.endswith(choice.TEST_UNITS)
    assert check(0, None, words) == (words, True)


def test_a_study_without_results_says_so() -> None:
    assert choice_words(0, None) == choice.NO_CHOICE
    assert check(0, None, choice.NO_CHOICE) == (choice.NO_CHOICE, True)


@pytest.mark.parametrize(
    ("cells", "epsilon", "fault"),
    [
        (1, 0.5, r"epsilon 0\.5: must be above the release's own epsilon"),
        (1, 1.0, "epsilon 1: must be above the release's own epsilon"),
        (0, 1.5, "has an epsilon but no cells"),
        (-1, None, "cells: -1 is not from 1"),
        (True, 1.5, "cells: True is not from 1|words"),
        (1, "2", "epsilon: '2' is not a number"),
    ],
)
def test_an_impossible_choice_is_named(cells: Any, epsilon: Any, fault: str) -> None:
    words = choice_words(abs(cells), 1.5, delta=1e-5)
    with pytest.raises(DataError, match=fault):
        check(cells, epsilon, words)


@pytest.mark.parametrize(
    ("cells", "epsilon", "exposed"), [(0, None, ()), (2, 1.5, ()), (2, None, ["a"])]
)
def test_other_words_are_not_believed(cells: int, epsilon: Any, exposed: Any) -> None:
    words = choice_words(cells, epsilon, exposed, delta=1e-5)
    check(cells, epsilon, words)
    for other in (f"{words} More.", f"Surely. {words}", "", words.replace("choice", "choise")):
        if other == words:
            continue
        with pytest.raises(DataError, match="words: "):
            check(cells, epsilon, other)


@pytest.mark.parametrize(
    ("listed", "others"), [(1, None), (2, "1 other fit "), (12, "11 other fits ")]
)
def test_an_estimator_tells_how_many_fits_its_budget_lists(listed: int, others: str | None) -> None:
    block = fits_block(listed)
    assert (block["cells"], block["epsilon"]) == (0, None)
    if others is None:
        assert block["words"] == choice.ONLY_FIT
    else:
        assert f"lists {others}on this dataset" in block["words"]
    values = {"choice": block, "ledger": {"releases": listed}}
    assert check_choice(values, PLAN, ESTIMATOR) == (block["words"], True)
    with pytest.raises(DataError, match="^choice: "):
        check_choice({**values, "ledger": {"releases": listed + 1}}, PLAN, ESTIMATOR)
