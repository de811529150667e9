"""Releases above max_epsilon or max_risk are refused, by closed forms of Gaussian mechanisms."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from scipy.special import ndtr, ndtri

from dpprobe.errors import BudgetError
from dpprobe.privacy.risk import Risk
from dpprobe.release.ledger.ledger_limits import Limits, refuse_excess
from tests.support.mechanisms import exact_epsilon
from tests.support.refusals import check_tokens, refusal_of
from tests.unit.release.ledger.test_ledger import DELTA, booking, gaussian, part

LIMITS = Limits(delta=DELTA, max_epsilon=1.2)


def test_a_release_above_max_epsilon_is_refused_with_both_totals() -> None:
    booked, asked = [booking("old", part("train", gaussian(5.0)))], booking("new")
    before, after = (exact_epsilon(math.sqrt(n) / 5.0) for n in (1, 2))
    with pytest.raises(BudgetError) as caught:
        refuse_excess(booked, asked, replace(LIMITS, max_epsilon=after * 0.999), ledger="the book")
    said = str(caught.value)
    for words in (
        f"release 'new': the total epsilon of a unit would be {after:.5g}"[:-1],
        "at delta 1e-05",
        f"(without this release {before:.5g}"[:-1],
        ", by the book), above max_epsilon",
        "set a smaller epsilon, or raise max_epsilon",
    ):
        assert words in said, said
    refuse_excess(booked, asked, replace(LIMITS, max_epsilon=after * 1.0001), ledger="the book")
    refuse_excess(booked, asked, Limits(delta=DELTA), ledger="the book")
    # a larger delta gives smaller epsilons
    refuse_excess(booked, asked, Limits(delta=1e-2, max_epsilon=after * 0.9), ledger="the book")


def test_a_release_above_max_risk_is_refused_with_both_risks() -> None:
    """Two releases with sigma 5 have mu = sqrt(2) / 5; the advantage is 2 Phi(mu / 2) - 1."""
    booked, asked = [booking("old", part("train", gaussian(5.0)))], booking("new")
    before, after = (2 * ndtr(math.sqrt(n) / 10) - 1 for n in (1, 2))
    loose, tight = (Risk(advantage=round(after * times, 6)) for times in (1.001, 0.999))
    refuse_excess(booked, asked, Limits(delta=DELTA, max_risk=loose), ledger="the book")
    with pytest.raises(BudgetError) as caught:
        refuse_excess(booked, asked, Limits(delta=DELTA, max_risk=tight), ledger="the book")
    reached = str(caught.value).partition("could reach ")[2].split(" ")
    assert float(reached[0]) == pytest.approx(after, rel=1e-4)
    assert float(reached[4].rstrip(",")) == pytest.approx(before, rel=1e-4)
    check_tokens(str(caught.value), "the book", "max_risk")
    both = Limits(delta=DELTA, max_epsilon=100.0, max_risk=tight)
    assert "above max_risk" in str(refusal_of(refuse_excess, booked, asked, both, ledger=""))
    both = Limits(delta=DELTA, max_epsilon=0.01, max_risk=loose)
    assert "above max_epsilon" in str(refusal_of(refuse_excess, booked, asked, both, ledger=""))
    rate = Risk(true_positives=0.0015, at=0.001)  # mu = 0.28 allows 0.0025
    refusal = refusal_of(
        refuse_excess, booked, asked, Limits(delta=DELTA, max_risk=rate), ledger=""
    )
    assert f"could reach {ndtr(math.sqrt(2) / 5 + ndtri(0.001)):.4f}"[:-1] in str(refusal)
