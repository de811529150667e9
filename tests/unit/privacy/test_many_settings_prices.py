"""Prices of many compositions by every function that states one, and noise for many targets."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from absl import logging

from dpprobe.privacy import accountants, calibration, risk
from dpprobe.privacy.accountants import ACCOUNTANTS, Fits
from dpprobe.privacy.calibration import calibrate
from dpprobe.privacy.limits import SMALLEST_DELTA
from dpprobe.privacy.plan import Mechanism, Plan, Selection
from dpprobe.privacy.risk import Risk, describe_target, explain_target, target_words
from dpprobe.privacy.target import Target
from dpprobe.privacy.trade_off import bound_attacks
from tests.support.mechanisms import best_of, gaussians, mixed
from tests.support.stored_records import answer_of, check_values, to_plain

Parts = list[Mechanism]
BESIDE = [gaussians(9.0, name="centre"), gaussians(4.0, count=2)]
COMPOSITIONS: dict[str, tuple[Parts, Selection | None]] = {
    "nothing": ([], None),
    "silent": ([gaussians(0.0, 0.1, 5), gaussians(3.0, name="a")], None),
    "whole": ([gaussians(5.0, name="a"), gaussians(12.0, count=3, name="b")], None),
    "sampled": ([gaussians(1.0, 0.02, 200)], None),
    "nearly whole": ([gaussians(8.0, 1 - 1e-9, 3)], None),
    "mixed": ([*mixed(2.0), gaussians(30.0, count=4, name="bias")], None),
    "little": ([gaussians(1724.0)], None),
    "much": ([gaussians(0.05, 0.3, 3)], None),
    "search": ([gaussians(20.0, count=5)], best_of(10)),
    "search beside": (BESIDE, best_of(5)),
    "two beside": ([gaussians(12.0, name="covariance", count=2), *BESIDE], best_of(5)),
    "sampled search": ([gaussians(1.0, 0.02, 200)], best_of(5)),
}


def scrub(value: Any) -> Any:
    """Leaves out the versions of libraries."""
    if isinstance(value, dict):
        return {scrub(key): scrub(each) for key, each in value.items()}
    if isinstance(value, list):
        return [scrub(each) for each in value]
    whole = isinstance(value, str)
    return re.sub(r"(dp-accounting|opacus) [\w.]+", r"\1", value) if whole else value


def prices_of(parts: Parts, selection: Selection | None) -> Any:
    """What each function says of a composition, at two deltas or more."""
    chosen: dict[str, Any] = {"selection": selection}
    ask = partial(answer_of, accountants.compute_epsilon, parts, **chosen)
    silent = any(part.noise_multiplier == 0 for part in parts)
    bound = partial(answer_of, bound_attacks, parts, selection=selection, delta=1e-5)
    return {
        "by": [
            answer_of(accountants.describe_accountant, parts, name, selection)
            for name in ACCOUNTANTS
        ],
        "exact": accountants.exactly_priced(parts, selection),
        "epsilons": {name: [ask(d, name) for d in (1e-5, 1e-8)] for name in (*ACCOUNTANTS, "gdp")},
        "deltas": [ask(delta, "pld") for delta in (0.0, 1.0, math.nan, 0.999)],
        "coarse": ask(1e-5, "pld", interval=0.01),
        "below": None if selection else answer_of(accountants.epsilon_below, parts, 1e-5),
        "limit": None if silent else accountants.central_limit_epsilon(parts, 1e-5),
        "checks": [
            accountants.check_epsilons(parts, 1e-5, name, selection)
            if parts and not silent
            else None
            for name in ("pld", "rdp")
        ],
        "groups": [
            accountants.group_epsilon(parts, 1e-5, size, **chosen)
            for size in (1, 3, 30 if selection else 101)
        ],
        "fits": [
            answer_of(accountants.price_together, parts, 1e-5, times, selection)
            for times in (1, 3)
            if parts and not silent
        ],
        "attacks": [
            bound(rates, epsilon=epsilon)
            for epsilon in (0.5, 600.0, 600.1)
            for rates in ((), (0.0, 0.01, 1.0), (1.5,), (-0.1,))
        ]
        if parts
        else None,
    }


def test_every_price_of_many_compositions() -> None:
    logging.set_verbosity(logging.INFO)
    found = {name: prices_of(*parts) for name, parts in COMPOSITIONS.items()}
    assert logging.get_verbosity() == logging.INFO, "the library is silenced only meanwhile"
    kinds = []
    for name, times in (("whole", 2), ("sampled", 3), ("mixed", 1), ("search", 2)):
        parts, selection = COMPOSITIONS[name]
        kinds.append(Fits(mechanisms=tuple(parts), times=times, selection=selection))
    together = [
        accountants.all_together(chosen, 1e-5)
        for count in (1, 2, 4)
        for chosen in itertools.combinations(kinds, count)
    ]
    worth = [accountants.worth_to_group(e, 1e-5, n) for e in (0.1, 1.0, 8.0) for n in (1, 2, 5)]
    sizes = [1e-9, 0.001, 0.01, 0.0199, 0.02, 0.05, 0.07, 0.5, 1.0, 4.99, 5.0, 8.0, 10.0, 30.0]
    grids = [[size, accountants.pld_interval(size)] for size in sizes]
    price, few = accountants.compute_epsilon, [gaussians(20.0, 0.02, 2)]
    one = gaussians(1.0, 0.02, 200)
    values = {
        "prices": found,
        "together": together,
        "worth": worth,
        "grids": grids,
        "edges": [
            [accountants.gaussian_epsilon(mu, 1e-5), accountants.gaussian_log_delta(mu, 0.5)]
            for mu in (0.0, 1e160, accountants.gaussian_mu(COMPOSITIONS["silent"][0]))
        ],
        "below": [accountants.epsilon_below(parts, 1e-5) for parts in BOUNDED_BELOW],
        "large": [
            accountants.group_epsilon(few, 1e-5, 100),
            bound_attacks(few, [0.01], delta=1e-5, epsilon=1.0, size=100),
        ],
        "much": price([gaussians(0.03)], 1e-5, "pld", selection=best_of(5)),
        "many": price([gaussians(10.0, 0.002, 125_000)], 1e-5, "prv"),
        "deltas": [
            price(parts, SMALLEST_DELTA, "pld", selection=best_of(5))
            for parts in ([one], [one, gaussians(9.0, name="centre")])
        ],
    }
    check_values("prices", scrub(to_plain(values)), rel=1e-4)


# Too dear for `prv` at first; and with most of the price in a release on all rows.
BOUNDED_BELOW = [
    [gaussians(0.02, 0.3), gaussians(0.5, 0.2, name="b")],
    [gaussians(30.0, 0.001, 3), gaussians(0.3, name="whole")],
]
ONE, FEW = [gaussians(1.0, count=4, name="a"), gaussians(3.0, name="b")], [gaussians(1.0, 0.05, 9)]
RARE = Risk(true_positives=0.01, at=0.001)
TARGETS: list[tuple[Parts, Selection | None, dict[str, Any]]] = [
    *((ONE, None, {"epsilon": each}) for each in (0.009, 0.01, 1.2345678, 100.0, 100.1, math.inf)),
    *((ONE, None, {"delta": each}) for each in (9e-11, 1e-10, 0.0009, 1e-3, 1.1e-3)),
    *((ONE, None, {"accountant": each}) for each in ("rdp", "rdp_2017", "gaussian", "gdp")),
    (FEW, None, {"epsilon": Risk(true_positives=0.0010011, at=0.001)}),
    *((ONE, None, {"epsilon": each}) for each in (RARE, Risk(advantage=0.1))),
    ([], None, {}),
    ([], None, {"epsilon": math.inf}),
    ([gaussians(0.0)], None, {}),
    (BESIDE, best_of(5), {"epsilon": math.inf}),
    (FEW, None, {}),
    (FEW, None, {"epsilon": RARE}),
    (FEW, None, {"accountant": "gaussian"}),
    (FEW, None, {"epsilon": 0.01, "accountant": "rdp"}),
    (BESIDE, best_of(5), {}),
    (BESIDE, best_of(3), {"epsilon": Risk(advantage=0.3), "accountant": "rdp"}),
    (ONE, None, {"unit": "patient"}),
    *((ONE, None, {"delta": each, "above": True}) for each in (0.5, 1.0, 1.1)),
    (ONE, None, {"delta": 0.5, "above": False}),
]


def test_noise_for_many_targets(tmp_path: Path) -> None:
    def met(parts: Parts, selection: Selection | None, asked: dict[str, Any]) -> Any:
        target = Target(**{"n": 1000, "epsilon": 1.0, "delta": 1e-5} | asked)
        find = partial(calibrate, parts, target, cache=tmp_path, selection=selection, checked=False)
        plan: Plan = find()
        assert find() == plan, "an answer that was found is read"
        assert Target.of_plan(plan) == target
        stated = describe_target(plan)
        faults = [
            risk.list_risk_faults(replace(plan, risk=each))
            for each in (plan.risk, plan.risk and {"advantage": 0.01})
        ]
        return [
            plan,
            str(target),
            target.nominal_epsilon,
            calibration.price_plan(plan),
            [calibration.price_of_group(plan, 3), calibration.price_of_fits(plan, 3)],
            stated,
            target_words(stated),
            explain_target(plan),
            faults,
            plan.private or calibration.second_opinions(plan),
        ]

    found = [[str(asked), answer_of(met, parts, kind, asked)] for parts, kind, asked in TARGETS]
    check_values("calibrated", scrub(to_plain(found)), rel=1e-4)
