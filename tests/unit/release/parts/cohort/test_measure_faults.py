"""What a study may not ask of a chain of cohorts, said before anything is booked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dpprobe.heads.registry import method_options
from dpprobe.release.parts.cohort import list_faults

COVARIANCE = {"head": "feature_covariance", "normalize": "l2"}


def release(**facts: Any) -> Any:
    usual = {"cohort": None, "horizon": None, "predecessor": None, "dataset": "new"}
    return SimpleNamespace(**usual | {"method": "named"} | facts)


EARLIER = {
    "first": release(cohort="a", dataset="one", horizon=4),
    "second": release(cohort="b", dataset="two", horizon=4, predecessor="first"),
    "plain": release(dataset="three"),
    "without": release(cohort="c", dataset="four"),
}


def faults(options: dict[str, Any] | None = None, **facts: Any) -> list[str]:
    wanted: Any = SimpleNamespace(
        study=SimpleNamespace(releases=EARLIER),
        release=release(**facts),
        method=method_options(options or COVARIANCE),
    )
    return list(list_faults(wanted))


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"predecessor": "second"},  # a release without a cohort replaces any
        {"cohort": "c"},
        {"cohort": "c", "horizon": 4},
        {"cohort": "c", "predecessor": "without"},
        {"cohort": "c", "horizon": 4, "predecessor": "first"},
        {"cohort": "c", "horizon": 4, "predecessor": "second"},
        {"cohort": "c", "predecessor": "elsewhere"},  # a bundle, which is read later
    ],
    ids=str,
)
def test_a_possible_chain_has_no_fault(facts: dict[str, Any]) -> None:
    assert faults(**facts) == []


@pytest.mark.parametrize(
    ("facts", "fault"),
    [
        ({"horizon": 5}, "horizon 5: needs `cohort`, a name"),
        (
            {"cohort": "c", "horizon": 5, "predecessor": "first"},
            "predecessor first has cohort a, horizon 4; both releases need",
        ),
        ({"cohort": "c", "predecessor": "second"}, "predecessor second has cohort b, horizon 4"),
        ({"cohort": "c", "predecessor": "plain"}, "predecessor plain has cohort None"),
        (
            {"cohort": "c", "horizon": 4, "predecessor": "first", "dataset": "one"},
            "dataset one is in its chain twice",
        ),
        (
            {"cohort": "c", "horizon": 4, "predecessor": "second", "dataset": "one"},
            "dataset one is in its chain twice",
        ),
        (
            {"cohort": "c", "horizon": 4, "predecessor": "second", "dataset": "two"},
            "dataset two is in its chain twice",
        ),
    ],
    ids=str,
)
def test_an_impossible_chain_has_one_fault(facts: dict[str, Any], fault: str) -> None:
    (said,) = faults(**facts)
    assert fault in said


def test_only_sums_add_up_over_cohorts() -> None:
    sampled = {"head": "sgd", "batch_size": 50}
    (said,) = faults(sampled, cohort="c")
    assert said.startswith("cohort: method named: head sgd: ")
    assert faults(sampled) == []
    assert faults({"head": "auto"}, cohort="c") == [], "auto is checked once it has chosen"
    (said,) = faults({**COVARIANCE, "normalize": "centred"}, cohort="c")
    assert "normalize: centred releases statistics of each cohort" in said
    both = faults(sampled, cohort="c", predecessor="plain")
    assert len(both) == 2
