"""A statement's block on several sites: who trained the head, and who trusts whom."""

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
from tests.support.refusals import check_tokens


def describe(names: str = "abcd", **changes: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "packed_by": "a",
        "aggregator": None,
        "colluders": 1,
        "agreement": "ab" * 32,
        "smallest_share": 9e3,
        "coordinates": 7,
    }
    return describe_sites(names, **usual | changes)


@pytest.mark.parametrize(("names", "colluders"), itertools.product(("ab", "abcd"), (1, 2, 3)))
def test_the_number_of_colluding_sites_is_stated(names: str, colluders: int) -> None:
    block = describe(names, colluders=colluders)
    # a single honest site adds all the plan's noise, so shares cost nothing
    assert (block["log10_penalty"] is not None) == (len(names) - colluders > 1)
    assert (block["names"], block["colluders"]) == ([*names], colluders)
    assert (block["packed_by"], block["aggregator"]) == ("a", None)


def test_shares_cost_less_the_larger_they_are() -> None:
    penalties = [describe(smallest_share=share)["log10_penalty"] for share in (50.0, 90.0, 9e3)]
    assert penalties == sorted(penalties, reverse=True)
    one, hundred = (describe(coordinates=count)["log10_penalty"] for count in (1, 100))
    assert hundred == pytest.approx(one + 2), "a union bound over coordinates"


@pytest.mark.parametrize("names", ["ab", "abcd"])
def test_an_aggregator_is_trusted(names: str) -> None:
    block = describe(names, aggregator="b", smallest_share=None)
    assert (block["aggregator"], block["log10_penalty"]) == ("b", None)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (describe(), ("4 sites", 1)),
        (describe(colluders=3), ("4 sites", 3)),
        (describe("ab", aggregator="b", smallest_share=None), ("2 sites", "b")),
    ],
)
def test_a_block_in_order_passes(block: dict[str, Any], said: tuple[object, ...]) -> None:
    detail, passed = check_sites({"sites": block})
    assert passed
    check_tokens(detail, *said)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"names": 3}, "names: "),
        ({"names": "ab"}, "names: "),
        ({"names": ["a"]}, "names: "),
        ({"names": ["a", "a"]}, "names: "),
        ({"names": ["b", "a"]}, "names: "),
        ({"names": ["a", 1]}, "names: "),
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
        ({"words": "none"}, "sites: must have the keys"),
        ({"more": 1}, "sites: must have the keys"),
    ],
)
def test_an_impossible_block_is_named(change: dict[str, Any], fault: str) -> None:
    with pytest.raises(DataError, match=f"^{fault}"):
        check_sites({"sites": describe() | change})


# Options of several sites, and combinations that a study may not ask for.


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
        ("a", {}, ("members", 2)),
        ("abc", {"name": "x"}, ("name x", "members", "a, b, c")),
        ("abc", {"aggregator": "x"}, ("aggregator x", "members", "a, b, c")),
        ("ab", {"colluders": 2}, ("colluders 2", "2 sites", 1)),
        ("abc", {"colluders": 3}, ("colluders 3", "3 sites", 2)),
        ("abc", {"colluders": 0}, ("colluders", 1)),
        ("abc", {"colluders": 2, "aggregator": "a"}, ("colluders 2", "aggregator")),
    ],
)
def test_impossible_sites_are_named(
    sites: str, changes: dict[str, Any], fault: tuple[object, ...] | None
) -> None:
    if fault is None:
        assert [*options(sites, **changes).members] == [*sites]
        return
    with pytest.raises(ValidationError) as raised:
        options(sites, **changes)
    check_tokens(str(raised.value), *fault)


def faults(method: dict[str, Any], *, cohort: str | None = None, asked: bool = True) -> list[str]:
    given = options("ab") if asked else None
    release = SimpleNamespace(cohort=cohort, method="named", block=lambda _: given)
    wanted: Any = SimpleNamespace(release=release, method=method_options(method))
    return list(list_faults(wanted))


def test_sites_add_up_exact_sums_of_no_cohort() -> None:
    assert faults(COVARIANCE) == []
    assert faults({"head": "auto"}) == [], "auto is checked once it has chosen"
    (said,) = faults(COVARIANCE, cohort="c")
    check_tokens(said, "sites", "`cohort`")
    (said,) = faults({"head": "sgd", "engine": "closed_form", "batch_size": "full"})
    check_tokens(said, "sites", "method named", "head sgd")
    assert len(faults({"head": "nonprivate"}, cohort="c")) == 2
    assert faults({"head": "nonprivate"}, cohort="c", asked=False) == []
