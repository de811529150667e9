"""Ours beside published numbers: what matches, what differs, what is only a stand-in."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.support.reproduction import compared, known, printed, result


def test_the_same_in_all_is_like_for_like() -> None:
    found = compared(printed(), known(), result())
    assert found.like_for_like
    assert (found.value, found.ends, found.silent) == (89.0, (87.0, 91.0), ())
    assert found.gap == pytest.approx(-1.0)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"backbone_options": {"family": "timm", "model": "m"}}, "pixels (m), not pixels"),
        ({"train_rows": 1000}, "1,000 training images, not 50,000"),
        ({"delta": 1e-6}, "δ 1e-06, not 1e-05"),
        ({"options": {"head": "sgd", "batch_size": 64}}, "batch_size 64, not 32"),
        ({"options": {"head": "sgd"}}, "batch_size absent, not 32"),
        ({"network": True}, "a network tuned, not the head"),
        ({"private": False}, "hyperparameters searched on private images, not covered by ε"),
    ],
)
def test_whatever_differs_makes_a_stand_in(changes: dict[str, Any], part: str) -> None:
    found = compared(printed(), known(), result(**changes))
    assert found.unlike == (part,)
    assert not found.like_for_like


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 4.0},
        {"dataset": "mnist"},
        {"study": "another"},
        {"method": "another"},
        {"metric": "auc"},
        {"epsilon": math.inf},
    ],
)
def test_what_is_not_beside_a_number_is_not_shown(changes: dict[str, Any]) -> None:
    found = compared(printed(), known(), result(**changes))
    assert found.result is None
    assert found.gap is None
    assert not found.like_for_like


CHANGED = {"ours": [{"study": "mine", "methods": ["b_*"], "base": "a_*", "take": "highest"}]}


def test_a_change_is_between_the_best_of_two_sweeps_with_welchs_interval() -> None:
    table = printed({"row": "first", "values": {"change": 1.0}})
    results = [
        result(method="a_1", mean=0.5, values=(0.4, 0.6)),
        result(method="a_2", mean=0.8, values=(0.79, 0.81)),
        result(method="b_1", mean=0.83, values=(0.82, 0.84)),
        result(method="b_2", mean=0.2, values=(0.1, 0.3)),
    ]
    found = compared(table, known(CHANGED), *results)
    assert found.value == pytest.approx(3.0)
    assert found.gap == pytest.approx(2.0)
    assert found.ends is not None
    # half: t(0.975, 2) = 4.303 times sqrt(2 * 0.01^2)
    assert found.ends == pytest.approx((3 - 6.085, 3 + 6.085), abs=1e-2)
