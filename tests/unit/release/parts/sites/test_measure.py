"""The block on several sites: who trained the head, with which trust."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from dpprobe.errors import DataError
from dpprobe.heads.registry import method_options
from dpprobe.release.parts.sites import SitesOptions, list_faults
from dpprobe.release.parts.sites.measure import check_sites
from dpprobe.release.parts.sites.several_sites import describe_sites
from tests.support.mechanisms import gaussians, made_plan

PLAN = made_plan([gaussians(8.0)], n=1000)


def describe(names: str = "abcd", **changes: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "packed_by": "a",
        "aggregator": None,
        "colluders": 1,
        "agreement": "ab" * 32,
        "smallest_share": 9e3,
        "coordinates": 7,
        "unit": "image",
    }
    return describe_sites(names, **usual | changes)


@pytest.mark.parametrize(
    ("names", "colluders", "unit"),
    itertools.product(("ab", "abcd"), (1, 2, 3), ("image", "patient")),
)
def test_sites_that_trust_nobody_say_how_many_may_collude(
    names: str, colluders: int, unit: str
) -> None:
    block = describe(names, colluders=colluders, unit=unit)
    words, others = (
        block["words"],
        "one other site" if colluders == 1 else f"{colluders} other sites",
    )
    listed = {"ab": "a and b", "abcd": "a, b, c and d"}[names]
    assert words.startswith(f"The sites {listed} trained this head together.")
    assert f"to a site's {unit}s holds even if {others} and everyone else pool" in words
    assert f"One {unit} at two sites counts as two {unit}s." in words
    assert words.endswith("The ledger is that of a; each site keeps its own.")
    # one honest site alone adds the noise of the plan, so shares cost nothing
    several = len(names) - colluders > 1
    assert ("Noise in shares costs" in words) == several
    assert (block["log10_penalty"] is not None) == several
    assert block["names"] == [*names]


def test_shares_cost_less_the_larger_they_are() -> None:
    penalties = [describe(smallest_share=share)["log10_penalty"] for share in (50.0, 90.0, 9e3)]
    assert penalties == sorted(penalties, reverse=True)
    one, hundred = (describe(coordinates=count)["log10_penalty"] for count in (1, 100))
    assert hundred == pytest.approx(one + 2), "a union bound over coordinates"


@pytest.mark.parametrize(("names", "of_one"), [("ab", True), ("abcd", False)])
def test_an_aggregator_is_trusted(names: str, of_one: bool) -> None:
    block = describe(names, aggregator="b", smallest_share=None)
    assert "b added all the noise, so b could compute the exact sum" in block["words"]
    assert ("which is that of one site" in block["words"]) == of_one
    assert block["log10_penalty"] is None
    assert "pool all they know" not in block["words"]


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (describe(), "4 sites, of which 1 may collude"),
        (describe(colluders=3), "4 sites, of which 3 may collude"),
        (describe("ab", aggregator="b", smallest_share=None), "2 sites, of which b is trusted"),
    ],
)
def test_a_block_in_order_passes(block: dict[str, Any], said: str) -> None:
    assert check_sites({"sites": block}, PLAN) == (said, True)


NAMES = "names: must be two or more different names of sites in alphabetical order"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"names": 3}, NAMES),
        ({"names": "ab"}, NAMES),
        ({"names": ["a"]}, NAMES),
        ({"names": ["a", "a"]}, NAMES),
        ({"names": ["b", "a"]}, NAMES),
        ({"names": ["a", 1]}, NAMES),
        ({"packed_by": "x"}, "packed_by: not one of the sites"),
        ({"packed_by": None}, "packed_by: not one of the sites"),
        ({"aggregator": "x"}, "aggregator: not one of the sites"),
        ({"agreement": "AB" * 32}, "agreement: not a SHA-256"),
        ({"colluders": 4}, "colluders: 4 is not from 1 to 3"),
        ({"colluders": 0}, "colluders: 0 is not from 1 to 3"),
        ({"coordinates": 0}, "coordinates: 0 is not from 1"),
        ({"smallest_share": None}, "smallest_share: None is not a number"),
        ({"smallest_share": 9e4}, "sites: "),
        ({"log10_penalty": None}, "sites: "),
        ({"words": "none"}, "sites: "),
        ({"more": 1}, "sites: must have the keys"),
    ],
)
def test_an_impossible_block_is_named(change: dict[str, Any], fault: str) -> None:
    with pytest.raises(DataError, match=f"^{fault}"):
        check_sites({"sites": describe() | change}, PLAN)


# The options of several sites, and what a study may not ask of them.


COVARIANCE = {"head": "feature_covariance", "normalize": "l2"}


def options(sites: str, **changes: Any) -> SitesOptions:
    members = dict.fromkeys(sites, "a" * 64)
    values = {"name": "a", "members": members, "key": "k", "exchange": "e", "colluders": 1}
    return SitesOptions.model_validate(values | changes)


@pytest.mark.parametrize(
    ("sites", "changes", "fault"),
    [
        ("ab", {}, None),
        *(("abc", each, None) for each in ({"colluders": 2}, {"aggregator": "c"}, {"name": "b"})),
        ("a", {}, "at least 2 items"),
        ("abc", {"name": "x"}, r"name x: not one of members \(a, b, c\)"),
        ("abc", {"aggregator": "x"}, r"aggregator x: not one of members \(a, b, c\)"),
        ("ab", {"colluders": 2}, "colluders 2: there are 2 sites.* write at most 1"),
        ("abc", {"colluders": 3}, "colluders 3: there are 3 sites.* write at most 2"),
        ("abc", {"colluders": 0}, "greater than or equal to 1"),
        ("abc", {"colluders": 2, "aggregator": "a"}, "colluders 2: has no effect with an aggre"),
    ],
)
def test_impossible_sites_are_named(sites: str, changes: dict[str, Any], fault: str | None) -> None:
    if fault is None:
        assert [*options(sites, **changes).members] == [*sites]
        return
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
