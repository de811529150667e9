"""Invalid parameters of a classifier are refused before anything is imported or read."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from dpprobe.errors import DpprobeError
from dpprobe.estimator.budget import Budget
from dpprobe.estimator.parameters import check_parameters, read_method
from dpprobe.estimator.private_classifier import PrivateClassifier
from dpprobe.heads.registry import method_options

BUDGET = Budget(max_epsilon=1, delta=1e-4)
CHOICES: dict[str, list[Any]] = {
    "benchmark": [False, True],
    "budget": [None, BUDGET, 1.0],
    "classes": [None, [0, 1], [0]],
    "random_state": [None, 0],
    "epsilon": [1.0, math.inf, "1"],
    "unit": ["row", "group", "person"],
    "delta": [None, 1e-5, "x"],
}


def expect(given: dict[str, Any]) -> str | None:
    """Returns the first word of the expected fault, by the order of checks, or None."""
    if given["unit"] == "person":
        return "unit"
    if given["epsilon"] == "1":
        return "epsilon"
    if given["delta"] == "x":
        return "delta"
    if given["classes"] == [0]:
        return "The number of classes"
    if given["benchmark"]:
        return None if given["budget"] is None else "budget"
    if given["budget"] is not BUDGET:
        return "budget"
    if given["random_state"] is not None:
        return "random_state"
    if given["classes"] is None:
        return "classes: missing"
    return "epsilon inf" if given["epsilon"] == math.inf else None


@pytest.mark.parametrize("benchmark", [False, True])
def test_every_combination_of_parameters_has_its_first_fault(benchmark: bool) -> None:
    for values in itertools.product([benchmark], *list(CHOICES.values())[1:]):
        given = dict(zip(CHOICES, values, strict=True))
        expected = expect(given)
        try:
            check_parameters(PrivateClassifier(**given))
            said = None
        except DpprobeError as error:
            said = str(error)
        if expected is None:
            assert said is None, f"{given}: {said}"
        else:
            assert str(said).startswith(expected), f"{given}: {said}"


def test_a_head_is_a_name_or_a_mapping() -> None:
    for head in ("momentum", {"head": "momentum"}):
        assert read_method(PrivateClassifier(head=head)) == method_options({"head": "momentum"})


@pytest.mark.parametrize(
    ("head", "has"),
    [
        ("auto", True),
        ("prototypes", False),
        ("momentum", True),
        ("least_squares", False),
        ({"head": "tuned", "base": {"head": "momentum"}, "search": {"steps": [3, 4]}}, True),
    ],
    ids=str,
)
def test_only_heads_with_a_link_have_probabilities(head: Any, has: bool) -> None:
    assert hasattr(PrivateClassifier(head=head), "predict_proba") == has
