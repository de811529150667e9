"""Chains of cohorts: files are read as written, and facts about a chain."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpprobe.errors import ConfigError, DataError, PrivacyError
from dpprobe.heads.registry import method_options
from dpprobe.privacy.running_sums import Cohort, Factorisation
from dpprobe.release.ledger.ledger import Ledger
from dpprobe.release.parts.cohort import list_faults
from dpprobe.release.parts.cohort import measure as cohorts
from dpprobe.release.parts.cohort.measure import check_cohort, describe_cohort
from tests.support.mechanisms import gaussians, made_plan
from tests.support.refusals import check_tokens, refuses
from tests.unit.release.ledger.test_ledger import FREE, booking, gaussian, part


def test_chains_of_cohorts_are_read_as_they_were_written(tmp_path: Path) -> None:
    chain = cohorts.Chain(factorisation=Factorisation.make(12))
    names = [f"m{n}" for n in range(1, 13)]
    for number, name in enumerate(names):
        ledger = Ledger.of_dataset(tmp_path, f"data_{name}")
        sums = {"gram": np.arange(4) + number, "other": np.arange(2)}
        cohort = Cohort(
            n=10 + number,
            outputs={"gram": np.arange(3.0) * number, "b": np.ones(1)},
            sums=sums if number else {},
            steps={"gram": 0.5 + number, "b": 1.0},
            weights=np.full((2, 3), number, np.float32) if number % 2 else None,
        )
        entry = ledger.book_release(booking(name, part("train", gaussian(50.0))), FREE)
        path = cohorts.cohort_path(ledger.path.parent, name, entry.number)
        assert path.name == f"cohort-{name}.entry-1.safetensors"
        cohorts.write_cohort(path, chain, cohort, label=f"label {name}", binds={"method": "x"})
        with refuses(PrivacyError, name, "ledger.jsonl"):
            cohorts.read_chain(tmp_path, dataset=f"data_{name}", release=name)
        ledger.close_entry(1, "d" * 64)
        read = cohorts.read_chain(tmp_path, dataset=f"data_{name}", release=name)
        assert read.factorisation == chain.factorisation
        assert read.binds == {"method": "x"}
        link = cohorts.Link(f"data_{name}", name, f"label {name}", 10 + number)
        assert read.links == (*chain.links, link)
        np.testing.assert_equal(vars(read.cohorts[-1]), vars(cohort))
        assert path.stat().st_mode & 0o777 == 0o600
        chain = read
    assert [each.n for each in chain.cohorts] == [*range(10, 22)]
    with refuses(PrivacyError, "m2"):
        cohorts.read_chain(tmp_path, dataset="data_m1", release="m2")
    content = path.read_bytes()
    for damaged, fault in (
        (b"", "cannot be used"),
        (content[:-1], "cannot be used"),
        (content.replace(b"steps", b"stepz"), "cannot be used"),
        (content[:-9] + b"x" + content[-8:], "numbers have changed"),
        (None, "missing; "),
    ):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        with pytest.raises(DataError, match=fault):
            cohorts.read_cohort(path)


PLAN = made_plan([gaussians(8.0)], n=1000)


def state(block: dict[str, Any], predecessor: Any) -> dict[str, Any]:
    """Returns the parts of a statement that the check of a cohort reads."""
    return {"cohort": block, "predecessor": predecessor, "unit": "image", "public_data": {}}


def list_earlier(count: int) -> list[dict[str, Any]]:
    return [{"release": f"r{n}", "cohort": f"c{n}", "n": 500 + n} for n in range(count)]


@pytest.mark.parametrize("horizon", [None, 4, 12])
@pytest.mark.parametrize("count", [0, 1, 3, 4, 11])
def test_a_cohort_counts_the_units_of_all_before_it(count: int, horizon: int | None) -> None:
    earlier = list_earlier(count)
    if horizon is not None and count >= horizon:
        with pytest.raises(PrivacyError, match=f"{horizon}"):
            describe_cohort("now", earlier, horizon=horizon, n=1000)
        return
    block = describe_cohort("now", earlier, horizon=horizon, n=1000)
    total = 1000 + sum(500 + n for n in range(count))
    assert (block["name"], block["place"], block["units"]) == ("now", count + 1, total)
    assert block["horizon"] == horizon
    assert block["earlier"] == earlier
    assert "words" not in block


def test_the_noise_of_a_chain_without_exact_sums_adds_up() -> None:
    """Without a horizon, k noisy sums have k times the variance; with a horizon, far less."""
    for count in (0, 1, 3, 8):
        alone = describe_cohort("a", list_earlier(count), horizon=None, n=9)
        assert alone["noise_growth"] == pytest.approx((count + 1) ** 0.5)
        tree = describe_cohort("a", list_earlier(count), horizon=12, n=9)
        assert tree["noise_growth"] < max(alone["noise_growth"], 3)


@pytest.mark.parametrize("horizon", [0, 1])
def test_a_chain_has_two_places_or_more(horizon: int) -> None:
    with pytest.raises(ConfigError, match="horizon"):
        describe_cohort("now", [], horizon=horizon, n=1000)


@pytest.mark.parametrize("count", [0, 2])
def test_a_chain_ends_with_the_predecessor(count: int) -> None:
    block = describe_cohort("now", list_earlier(count), horizon=None, n=1000)
    last: Any = {"name": f"r{count - 1}"} if count else None
    said, passed = check_cohort(state(block, last), PLAN)
    assert passed
    check_tokens(said, count + 1, f"{block['units']:,} images")
    if count:  # the first cohort may replace any release
        for other in ({"name": "r0"}, None):
            with refuses(DataError, "cohort", f"r{count - 1}", "predecessor"):
                check_cohort(state(block, other), PLAN)
    else:
        check_cohort(state(block, {"name": "any"}), PLAN)


def test_a_cohort_has_the_planned_units() -> None:
    block = describe_cohort("now", list_earlier(1), horizon=None, n=999)
    with refuses(DataError, "cohort"):
        check_cohort(state(block, {"name": "r0"}), PLAN)


# Invalid options of a chain of cohorts are refused before anything is booked.


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


POSSIBLE: list[dict[str, Any]] = [
    {},
    {"predecessor": "second"},  # a release without a cohort may replace any
    {"cohort": "c"},
    {"cohort": "c", "horizon": 4},
    {"cohort": "c", "predecessor": "without"},
    {"cohort": "c", "horizon": 4, "predecessor": "first"},
    {"cohort": "c", "horizon": 4, "predecessor": "second"},
    {"cohort": "c", "predecessor": "elsewhere"},  # a bundle, which is read later
]


@pytest.mark.parametrize(
    ("facts", "fault"),
    [
        *((facts, None) for facts in POSSIBLE),
        ({"horizon": 5}, ("horizon 5", "cohort")),
        (
            {"cohort": "c", "horizon": 5, "predecessor": "first"},
            ("predecessor first", "cohort a", "horizon 4"),
        ),
        ({"cohort": "c", "predecessor": "second"}, ("predecessor second", "cohort b", "horizon 4")),
        ({"cohort": "c", "predecessor": "plain"}, ("predecessor plain", "cohort None")),
        *(
            (
                {"cohort": "c", "horizon": 4, "predecessor": before, "dataset": dataset},
                (f"dataset {dataset}", "twice"),
            )
            for before, dataset in (("first", "one"), ("second", "one"), ("second", "two"))
        ),
    ],
    ids=str,
)
def test_an_impossible_chain_has_one_fault(
    facts: dict[str, Any], fault: tuple[object, ...] | None
) -> None:
    said = faults(**facts)
    assert len(said) == (fault is not None), said
    for each in said:
        check_tokens(each, *fault or ())


def test_only_sums_add_up_over_cohorts() -> None:
    sampled = {"head": "sgd", "batch_size": 50}
    (said,) = faults(sampled, cohort="c")
    check_tokens(said, "cohort", "method named", "head sgd")
    assert faults(sampled) == []
    assert faults({"head": "auto"}, cohort="c") == [], "auto is checked once it has chosen"
    (said,) = faults({**COVARIANCE, "normalize": "centred"}, cohort="c")
    check_tokens(said, "cohort", "normalize", "centred")
    both = faults(sampled, cohort="c", predecessor="plain")
    assert len(both) == 2
