"""The options of several sites, and what a study may not ask of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from dpprobe.heads.registry import method_options
from dpprobe.release.parts.sites import SitesOptions, list_faults

COVARIANCE = {"head": "feature_covariance", "normalize": "l2"}


def options(sites: str, **changes: Any) -> SitesOptions:
    members = dict.fromkeys(sites, "a" * 64)
    values = {"name": "a", "members": members, "key": "k", "exchange": "e", "colluders": 1}
    return SitesOptions.model_validate(values | changes)


@pytest.mark.parametrize(
    ("sites", "changes"),
    [("ab", {}), ("abc", {"colluders": 2}), ("abc", {"aggregator": "c"}), ("abc", {"name": "b"})],
)
def test_possible_sites_are_read(sites: str, changes: dict[str, Any]) -> None:
    assert [*options(sites, **changes).members] == [*sites]


@pytest.mark.parametrize(
    ("sites", "changes", "fault"),
    [
        ("a", {}, "at least 2 items"),
        ("abc", {"name": "x"}, r"name x: not one of members \(a, b, c\)"),
        ("abc", {"aggregator": "x"}, r"aggregator x: not one of members \(a, b, c\)"),
        ("ab", {"colluders": 2}, "colluders 2: there are 2 sites.* write at most 1"),
        ("abc", {"colluders": 3}, "colluders 3: there are 3 sites.* write at most 2"),
        ("abc", {"colluders": 0}, "greater than or equal to 1"),
        ("abc", {"colluders": 2, "aggregator": "a"}, "colluders 2: has no effect with an aggre"),
    ],
)
def test_impossible_sites_are_named(sites: str, changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        options(sites, **changes)


def faults(method: dict[str, Any], *, cohort: str | None = None, asked: bool = True) -> list[str]:
    given = options("ab") if asked else None
    release = SimpleNamespace(cohort=cohort, method="named", block=lambda _: given)
    wanted: Any = SimpleNamespace(release=release, method=method_options(method))
    return list(list_faults(wanted))


def test_sites_add_up_exact_sums_of_no_cohort() -> None:
    assert faults(COVARIANCE) == []
    assert faults({"head": "auto"}) == [], "auto is checked once it has chosen"
    assert faults(COVARIANCE, cohort="c") == [
        "sites: not possible with `cohort`; remove one of the two"
    ]
    (said,) = faults({"head": "sgd", "engine": "closed_form", "batch_size": "full"})
    assert said.startswith("sites: method named: head sgd: ")
    assert len(faults({"head": "nonprivate"}, cohort="c")) == 2
    assert faults({"head": "nonprivate"}, cohort="c", asked=False) == []
