"""Permitted risks: the inverse of a plan's bounds, by closed form, search and rounding."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import norm

from dpprobe.errors import PrivacyError
from dpprobe.privacy import accountants, risk
from dpprobe.privacy.accountants import gaussian_mu
from dpprobe.privacy.limits import LARGEST_EPSILON
from dpprobe.privacy.noise_calibration import calibrate
from dpprobe.privacy.plan import Mechanism, Plan
from dpprobe.privacy.risk import (
    Risk,
    RiskEpsilon,
    budget_token,
    budget_words,
    describe_target,
    list_risk_faults,
)
from dpprobe.privacy.target import Target
from dpprobe.privacy.trade_off import Allowed, bound_attacks
from tests.support.mechanisms import best_of, gaussians

DELTA = 1e-5
# Bounds are rounded up to six decimals before comparing; this lowers mu by at most this much.
ROUNDING = 2e-6


def allowed(mu: float, rate: float = 0.5) -> tuple[float, float]:
    """Returns the advantage and the true-positive rate that a statement prints for mu."""
    bounds = bound_attacks([gaussians(1 / mu)], [rate], delta=DELTA, epsilon=1.0)
    return 2 * bounds.balanced_accuracy - 1, bounds.true_positives[0]


# a second library


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "expected"),
    # riskcal 1.5.1: get_advantage_for_dpsgd, and get_beta_for_dpsgd at 0.1%, 1% and 10%
    [
        (1.0, 0.02, 200, (0.1414953, 0.0038670, 0.0273682, 0.1835110)),
        (0.8, 0.05, 100, (0.3212680, 0.0205942, 0.0889645, 0.3480962)),
        (2.0, 0.1, 300, (0.3488476, 0.0156932, 0.0810295, 0.3568777)),
        (5.0, 1.0, 20, (0.3452792, 0.0140529, 0.0760832, 0.3493320)),
    ],
)
def test_risks_of_sampled_plans_equal_riskcals(
    noise: float, rate: float, steps: int, expected: tuple[float, ...]
) -> None:
    mechanism = gaussians(noise, rate, steps)
    bounds = bound_attacks([mechanism], [0.001, 0.01, 0.1], delta=DELTA, epsilon=1.0)
    ours = np.array([2 * bounds.balanced_accuracy - 1, *bounds.true_positives])
    assert (ours >= np.array(expected) - 1e-7).all(), "a bound, never below"
    assert ours == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize(
    ("risk", "short", "whole"),
    [
        (Risk(advantage=0.14), "advantage 0.14", "advantage 0.14"),
        (
            Risk(true_positives=0.051, at=0.0125),
            "TPR 0.051 at FPR 0.0125",
            "true positive rate 0.051 at false positive rate 0.0125",
        ),
    ],
)
def test_the_texts_of_a_risk_have_all_digits(risk: Risk, short: str, whole: str) -> None:
    assert (risk.short, str(risk)) == (short, whole)


# the closed form


@pytest.mark.parametrize(
    ("risk", "mu", "epsilon"),
    # common values of the literature's formula mu = 2 Phi^-1((1 + h) / 2), and epsilon at 1e-5
    [
        (Risk(advantage=0.05), 0.125, 0.44),
        (Risk(advantage=0.1), 0.251, 0.93),
        (Risk(advantage=0.5), 1.349, 6.22),
        (Risk(true_positives=0.01, at=0.001), 0.764, 3.21),
        (Risk(true_positives=0.05, at=0.01), 0.681, 2.82),
    ],
    ids=str,
)
def test_a_risk_is_a_mu_and_an_epsilon(risk: Risk, mu: float, epsilon: float) -> None:
    assert risk.to_mu() == pytest.approx(mu, abs=6e-4)
    assert risk.to_epsilon(DELTA) == pytest.approx(epsilon, abs=6e-3)


@given(advantage=st.floats(1e-5, 0.9999))
def test_the_printed_advantage_attains_its_target_and_never_exceeds_it(advantage: float) -> None:
    mu = Risk(advantage=advantage).to_mu()
    exact = 2 * norm.ppf((1 + advantage) / 2)
    assert mu <= exact
    printed, _ = allowed(mu)
    assert advantage - 2 * ROUNDING <= printed <= advantage + 1e-12


@given(at=st.floats(1e-6, 0.9), share=st.floats(0.001, 0.999))
def test_the_printed_rate_attains_its_target_and_never_exceeds_it(at: float, share: float) -> None:
    rate = at + share * (0.9999 - at)
    assume(rate > at + 2 * ROUNDING)
    mu = Risk(true_positives=rate, at=at).to_mu()
    assert mu <= norm.ppf(rate) - norm.ppf(at) + 1e-12
    assume(mu > 1e-6)
    _, printed = allowed(mu, at)
    assert rate - ROUNDING <= printed <= rate + 1e-12


@given(advantage=st.floats(0.003, 0.9), delta=st.sampled_from([1e-3, 1e-5, 1e-8]))
def test_epsilon_is_rounded_down_to_six_digits(advantage: float, delta: float) -> None:
    """dp-accounting calibrates at least this noise to the rounded epsilon."""
    risk = Risk(advantage=advantage)
    try:
        epsilon = risk.to_epsilon(delta)
    except PrivacyError:
        assume(False)
    assert float(f"{epsilon:.6g}") == epsilon
    mu = risk.to_mu()
    exact = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert exact >= delta * (1 - 1e-9)


# plans


def solve(
    *mechanisms: Mechanism,
    epsilon: float | Risk,
    folder: Path,
    checked: bool = False,
    **values: Any,
) -> Plan:
    target = Target(n=1000, epsilon=epsilon, delta=DELTA)
    return calibrate(mechanisms, target, cache=folder, checked=checked, **values)


RISKS = [
    Risk(advantage=0.1),
    Risk(advantage=0.3),
    Risk(true_positives=0.01, at=0.001),
    Risk(true_positives=0.2, at=0.05),
]


@pytest.mark.parametrize("risk", RISKS, ids=str)
def test_a_plan_on_all_rows_attains_the_risk(risk: Risk, tmp_path: Path) -> None:
    parts = [gaussians(1.0, count=4, name="a"), gaussians(3.0, name="b")]
    plan = solve(*parts, epsilon=risk, folder=tmp_path)
    assert risk.permits(plan)
    assert gaussian_mu(plan.mechanisms) <= risk.to_mu()
    assert gaussian_mu(plan.mechanisms) == pytest.approx(risk.to_mu(), rel=2e-5)
    assert not risk.permits(solve(*parts, epsilon=plan.epsilon * 1.001, folder=tmp_path))


@pytest.mark.parametrize("risk", RISKS[1:3], ids=str)
def test_a_plan_that_samples_keeps_to_the_risk_and_nearly_attains_it(
    risk: Risk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    check = accountants.check_epsilons

    def counted(mechanisms: Sequence[Mechanism], *rest: Any) -> Any:
        asked.append(mechanisms[0].noise_multiplier)
        return check(mechanisms, *rest)

    monkeypatch.setattr(accountants, "check_epsilons", counted)
    part = gaussians(1.0, 0.2, count=5)  # no other test caches its checks
    plan = solve(part, epsilon=risk, folder=tmp_path, checked=True)
    assert asked == [plan.mechanisms[0].noise_multiplier], "only the last plan needs checks"
    assert len(plan.checks) == 2
    alone = solve(part, epsilon=plan.epsilon, folder=tmp_path / "alone", checked=True)
    assert plan == replace(alone, risk=risk.to_dict())
    assert risk.permits(plan)
    assert not risk.permits(solve(part, epsilon=plan.epsilon * 1.006, folder=tmp_path))
    # another library agrees: the advantage is delta at epsilon 0
    if risk.advantage is not None:
        noise = plan.mechanisms[0].noise_multiplier
        event = dp_event.PoissonSampledDpEvent(0.2, dp_event.GaussianDpEvent(noise))
        theirs = PLDAccountant().compose(event, 5).get_delta(0.0)
        assert 0.98 * risk.advantage <= theirs <= risk.advantage + 1e-9


def test_nearly_everything_is_permitted_at_most_at_the_largest_epsilon(tmp_path: Path) -> None:
    risk = Risk(advantage=0.9999999)
    assert risk.to_epsilon(DELTA) <= LARGEST_EPSILON
    assert risk.permits(solve(gaussians(1.0), epsilon=risk, folder=tmp_path))
    assert risk.to_epsilon(1e-10) == LARGEST_EPSILON, "the formula gives more"


def test_an_epsilon_derived_from_a_risk_names_the_risk_after_copying() -> None:
    epsilon = RiskEpsilon(0.9318, "advantage-0.1", DELTA)
    for each in (epsilon, copy.deepcopy(epsilon), pickle.loads(pickle.dumps(epsilon))):
        assert each == 0.9318
        assert budget_words(each) == "0.9318 (advantage 0.1)"
        assert budget_token(each) == "advantage-0.1"
        assert each.delta == DELTA


def test_a_plan_stores_its_risk_and_a_smaller_stated_risk_is_a_fault(tmp_path: Path) -> None:
    risk = Risk(advantage=0.2)
    plan = solve(gaussians(1.0), epsilon=risk, folder=tmp_path)
    again = Plan.from_dict(plan.to_dict())
    assert again.risk == {"advantage": 0.2}
    assert list_risk_faults(again) == []
    described = describe_target(again)
    assert described["risk_target"] == {"advantage": 0.2}
    assert gaussian_mu(plan.mechanisms) <= described["mu"] <= risk.to_mu() * (1 + 1e-5)
    (fault,) = list_risk_faults(replace(plan, risk={"advantage": 0.19}))
    assert "advantage 0.19" in fault
    usual = solve(gaussians(1.0), epsilon=1.0, folder=tmp_path)
    assert "risk" not in usual.to_dict()
    assert describe_target(usual) == {}


def test_a_risk_that_no_noise_reaches_is_refused(tmp_path: Path) -> None:
    """The plan releases more than the smallest epsilon allows."""
    tiny = Risk(true_positives=0.0010011, at=0.001)
    with pytest.raises(PrivacyError, match="permit a larger risk"):
        solve(gaussians(1.0, 0.5, count=3), epsilon=tiny, folder=tmp_path)


# spellings


@pytest.mark.parametrize(
    ("value", "token"),
    [
        ({"advantage": 0.1}, "advantage-0.1"),
        ("advantage-1e-1", "advantage-0.1"),
        ("advantage-1e-07", "advantage-1e-07"),
        ({"advantage": 0.12345678}, "advantage-0.12345678"),
        ({"true_positives": 0.01, "at": 0.001}, "tpr-0.01-at-0.001"),
        ("tpr-0.20-at-1e-1", "tpr-0.2-at-0.1"),
        (RiskEpsilon(0.9, "advantage-0.1"), "advantage-0.1"),
        (0.50, "0.5"),
        ("inf", "inf"),
    ],
)
def test_each_budget_has_one_token_that_reads_back_as_the_same_budget(
    value: Any, token: str
) -> None:
    assert budget_token(value) == budget_token(token) == token
    read = risk.read_budget(token)
    if isinstance(value, dict):
        assert isinstance(read, Risk)
        assert read.to_dict() == value
        assert Risk.from_dict(read.to_dict()) == read
    assert (read.token if isinstance(read, Risk) else f"{read:g}") == token


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "set advantage, such as"),
        ({"advantage": 0.1, "at": 0.1}, "set advantage, such as"),
        ({"advantage": 0.1, "true_positives": 0.1, "at": 0.01}, "set advantage, such as"),
        ({"true_positives": 0.1}, "set advantage, such as"),
        ({"at": 0.1}, "set advantage, such as"),
        ({"advantages": 0.1}, "no key 'advantages'; set advantage"),
        ({"advantage": 0}, r"advantage 0\.0: must be a number between 0 and 1"),
        ({"advantage": 1}, r"advantage 1\.0: must be a number between 0 and 1"),
        ("advantage-2", r"advantage 2\.0: must"),
        ({"advantage": -0.1}, r"advantage -0\.1: must"),
        ({"advantage": math.nan}, "advantage nan: must"),
        ({"advantage": "much"}, "'much'.*must be numbers between 0 and 1"),
        ({"advantage": None}, "None.*must be numbers between 0 and 1"),
        ("advantage-x", "'x'.*must be numbers"),
        ("tpr-0.1", "'tpr-0.1': must be a positive number or inf"),
        ({"true_positives": 0.01, "at": 0.01}, r"true_positives 0\.01 at 0\.01: .*guessing"),
        ({"true_positives": 0.01, "at": 0.1}, r"true_positives 0\.01 at 0\.1: "),
        ({"true_positives": 1.0, "at": 0.1}, r"true_positives 1\.0 at 0\.1: "),
        ({"true_positives": 0.5, "at": -0.1}, r"at -0\.1: "),
        ({"true_positives": 0.5, "at": 0}, r"at 0\.0: "),
    ],
)
def test_a_target_without_a_budget_is_refused(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        budget_token(value)
    if isinstance(value, dict):
        with pytest.raises(PrivacyError, match=message):
            Risk.from_dict(value)


def test_lists_of_budgets_are_spelt_one_by_one() -> None:
    assert risk.to_tokens([1, "inf"]) == ["1", "inf"]
    assert risk.to_tokens(("2.0", {"advantage": 0.1})) == ["2", "advantage-0.1"]
    assert risk.to_tokens("1.0") == "1.0", "what is no list is for the schema to judge"


@pytest.mark.parametrize("token", ["advantage-0.1", "tpr-0.01-at-0.001", "2", "inf"])
def test_budgets_are_ordered_by_an_epsilon_and_nominal_at_the_study_s_delta(token: str) -> None:
    named = risk.find_risk(token)
    if named is None:
        epsilon = float(token)
        assert risk.nominal_epsilon(token, 1e-8) == risk.budget_order(token) == epsilon
        assert isinstance(risk.read_budget(token), float)
    else:
        for delta in (1e-3, 1e-8):
            assert risk.nominal_epsilon(token, delta) == named.to_epsilon(delta)
        exact = accountants.gaussian_epsilon(named.to_mu(), DELTA)
        assert risk.budget_order(token) == exact
        assert named.to_epsilon(DELTA) == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize(
    ("named", "rates", "target"),
    [
        (Risk(advantage=0.3), (), 0.3),
        (Risk(true_positives=0.2, at=0.05), (0.05,), 0.2),
    ],
)
def test_a_risk_is_measured_by_its_own_bound(
    named: Risk, rates: tuple[float, ...], target: float
) -> None:
    bounds = Allowed(balanced_accuracy=0.7, true_positives=(0.25,), exact=True)
    assert named.rates == rates
    assert named.target == target
    # advantage = 2 * 0.7 - 1; the rate is the bound at the only requested false-positive rate
    assert named.measure(bounds) == pytest.approx(0.4 if named.advantage else 0.25)


@pytest.mark.parametrize("advantage", [1e-6, 2e-12])
def test_a_risk_that_six_decimals_cannot_tell_from_none_is_refused(advantage: float) -> None:
    with pytest.raises(PrivacyError, match="too close to guessing; permit a larger risk"):
        Risk(advantage=advantage).to_mu()


def test_a_risk_below_the_smallest_epsilon_is_refused_with_the_epsilon_it_needs() -> None:
    with pytest.raises(PrivacyError, match=r"at delta 0\.001 .* epsilon .* below .* 0\.01"):
        Risk(advantage=0.001).to_epsilon(1e-3)


# words

SURE = RiskEpsilon(0.9318, "advantage-0.1", DELTA)
RATE = RiskEpsilon(3.2132, "tpr-0.0125-at-0.001", DELTA)


@pytest.mark.parametrize(
    ("budget", "cell", "row", "title"),
    [
        (0.5, "0.5", "ε = 0.5", "ε = 0.5"),
        (math.inf, "inf", "ε = inf", "ε = inf"),
        (SURE, "0.9318 (advantage 0.1)", "advantage 0.1 (ε ≤ 0.9318)", "advantage 0.1"),
        (
            RATE,
            "3.2132 (TPR 0.0125 at FPR 0.001)",
            "TPR 0.0125 at FPR 0.001 (ε ≤ 3.2132)",
            "TPR 0.0125 at FPR 0.001",
        ),
    ],
)
def test_a_budget_derived_from_a_risk_is_written_with_the_risk(
    budget: float, cell: str, row: str, title: str
) -> None:
    assert budget_words(budget) == cell
    assert risk.row_words(budget, "ε = ") == row
    assert risk.budget_title(budget_token(budget)) == title
    assert risk.budget_title("0.5", "epsilon ") == "epsilon 0.5"


def test_an_advantage_budget_states_its_bound_on_the_tpr_at_low_fpr() -> None:
    """TPR at 0.1% FPR is at most 0.001 + advantage, and at most exp(epsilon) * 0.001 + delta."""
    assert math.exp(0.9318) * 0.001 + 1e-5 == pytest.approx(0.002549, abs=1e-6)
    assert risk.budget_in_full(SURE) == "0.9318 (advantage 0.1, TPR at most 0.26% at 0.1% FPR)"
    without_delta = RiskEpsilon(0.9, "advantage-0.1")
    assert (
        risk.budget_in_full(without_delta) == "0.9 (advantage 0.1, TPR at most 10.1% at 0.1% FPR)"
    )
    loose = RiskEpsilon(0.5, "advantage-0.1", 1e-3)  # exp(0.5) * 0.001 + 0.001 = 0.00265
    assert risk.budget_in_full(loose) == "0.5 (advantage 0.1, TPR at most 0.27% at 0.1% FPR)"
    large = RiskEpsilon(6.0, "advantage-0.1", DELTA)  # exp(6) * 0.001 = 0.4 is weaker than 0.101
    assert risk.budget_in_full(large).endswith("at most 10.1% at 0.1% FPR)")
    assert risk.budget_in_full(RiskEpsilon(9.0, "advantage-0.9995")).endswith("100% at 0.1% FPR)")
    for plain in (0.5, RATE):
        assert risk.budget_in_full(plain) == budget_words(plain)


def test_risks_are_explained_once_each_with_the_range_of_their_epsilons() -> None:
    another = RiskEpsilon(1.4, "advantage-0.1", DELTA)
    assert risk.explain_risks([0.5, math.inf]) == ""
    assert risk.explain_risks([RATE]) == "TPR 0.0125 at FPR 0.001 is ε 3.2132"
    # exp(1.4) * 0.001 + 1e-5 = 0.004065: the group's larger epsilon decides
    assert risk.explain_risks([another, 0.5, SURE, RATE]) == (
        "advantage 0.1 is ε 0.9318 to 1.4 (TPR at most 0.41% at 0.1% FPR); "
        "TPR 0.0125 at FPR 0.001 is ε 3.2132"
    )


def test_a_statement_has_its_risk_and_its_mu_only_if_gaussian() -> None:
    plan = Plan(
        mechanisms=(gaussians(4.0),),
        n=1000,
        epsilon=1.5,
        delta=DELTA,
        accountant="pld",
        realised_epsilon=1.2,
        risk={"advantage": 0.1},
    )
    assert describe_target(plan) == {"risk_target": {"advantage": 0.1}, "mu": 0.25}
    assert risk.target_words(describe_target(plan)) == ", advantage 0.1 (mu 0.25)"
    sampled = replace(plan, mechanisms=(gaussians(4.0, 0.5),), unit="row")
    searched = replace(plan, selection=best_of(3.0))
    for each in (sampled, searched):
        assert describe_target(each) == {"risk_target": {"advantage": 0.1}}
        assert risk.target_words(describe_target(each)) == ", advantage 0.1"
    assert describe_target(replace(plan, risk=None)) == {}
    assert risk.target_words({}) == ""
    assert risk.plan_budget(plan) == Risk(advantage=0.1)
    assert risk.plan_budget(replace(plan, risk=None)) == 1.5
