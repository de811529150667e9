"""Plans: what seeds derive from, how a budget is shared, and which plans a fit refuses."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from dpprobe.errors import PrivacyError
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.nonprivate import Options as NonprivateOptions
from dpprobe.heads.sgd import Options
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.plan import Mechanism, Plan, Selection, plan_identity, split_budget

PART = Mechanism(
    name="gradients",
    released="sum of clipped gradients",
    sensitivity=1.2,
    noise_multiplier=0.75,
    sample_rate=0.01,
    count=100,
)


def mechanism(**changes: Any) -> Mechanism:
    return replace(PART, **changes)


def plan(**changes: Any) -> Plan:
    values: dict[str, Any] = {
        "mechanisms": (PART,),
        "n": 3200,
        "epsilon": 1.0,
        "delta": 1e-5,
        "accountant": "pld",
        "realised_epsilon": 0.9995,
    }
    return Plan(**values | changes)


def planned(options: Any, *more: Mechanism, noise: float = 1.0, n: int = 100, **rest: Any) -> Plan:
    parts = (*(each.scale_noise(noise) for each in options.list_mechanisms(n)), *more)
    return plan(mechanisms=parts, n=n, **rest)


FIVE, CEILING = Options(steps=5), NonprivateOptions(penalties=(0.1,))
CENTRED = Options.model_validate({"steps": 2, "normalize": "centred"})
CENTRE, GRADIENTS = planned(CENTRED, noise=2.0).mechanisms
BOTH: dict[str, Any] = {"mechanisms": (CENTRE, GRADIENTS), "n": 100}
REFUSED = [
    (Options(), planned(Options(), n=200), "n = 200 rows, but the data has 100"),
    (Options(max_grad_norm=0.1), planned(Options()), r"sensitivity 1\.2 in the plan but 0\.1"),
    (Options(steps=6), planned(FIVE), "count 5 in the plan but 6"),
    (Options(steps=5, batch_size=16), planned(FIVE), r"sample_rate 0\.32 in the plan but 0\.16"),
    (Options(), planned(Options(), mechanism(name="more")), "belongs to another method"),
    (CEILING, planned(Options()), "not private, but its plan has epsilon 1"),
    (
        CEILING,
        planned(Options(), noise=0.0, epsilon=math.inf, realised_epsilon=math.inf),
        "the head is not private, but its plan has epsilon inf and 1",
    ),
    (
        CENTRED,
        plan(**BOTH | {"mechanisms": (CENTRE, GRADIENTS.scale_noise(0.5))}),
        "belongs to another method",
    ),
    (
        CENTRED,
        plan(**BOTH, selection=Selection(mean=3, repeated=(GRADIENTS.name,))),
        "belongs to another method",
    ),
]


@pytest.mark.parametrize(("method", "made", "message"), REFUSED)
def test_a_fit_refuses_a_plan_made_for_another(method: Any, made: Plan, message: str) -> None:
    data = TrainingSet(torch.zeros(100, 2), torch.zeros(100, dtype=torch.int64), 2)
    with pytest.raises(PrivacyError, match=message):
        fit_heads(method, data, made, [1])
    for seeds in ([1, 1], []):
        with pytest.raises(PrivacyError, match="differ from each other"):
            fit_heads(Options(), data, planned(Options()), seeds)
    assert fit_heads(CENTRED, data, plan(**BOTH), [1]).steps == 2


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"mechanisms": (mechanism(released="other words"),)}, True),
        ({"realised_epsilon": 0.9, "priced_by": "pld", "checks": {"rdp": 1.2}}, True),
        *(
            ({"mechanisms": (mechanism(**{key: value}),)}, False)
            for key, value in (
                ("name", "sums"),
                ("sensitivity", 1.0),
                ("noise_multiplier", 0.8),
                ("sample_rate", 0.02),
                ("count", 99),
            )
        ),
        ({"mechanisms": (PART, mechanism(name="score"))}, False),
        ({"n": 3201}, False),
        ({"unit": "patient"}, False),
        ({"epsilon": 1.1}, False),
        ({"delta": 1e-6}, False),
        ({"accountant": "rdp"}, False),
        ({"selection": Selection(mean=7.0, repeated=("gradients",))}, False),
    ],
)
def test_seeds_depend_on_noise_and_guarantee_but_not_on_words(
    changes: dict[str, Any], same: bool
) -> None:
    first, second = (plan_identity(each.to_dict()) for each in (plan(), plan(**changes)))
    assert (first == second) is same


def test_shares_of_a_budget() -> None:
    first = [mechanism(name="a", count=3, sample_rate=1.0), mechanism(name="b", sample_rate=1.0)]
    last = [mechanism(name="c", noise_multiplier=2.0), mechanism(name="d", count=1)]
    split = split_budget([(0.1, first), (0.3, [mechanism(name="e")]), (0.6, last), (0.5, [])])
    cost = {
        item.name: item.count * (item.sample_rate / item.noise_multiplier) ** 2 for item in split
    }
    total = sum(cost.values())
    assert (cost["a"] + cost["b"]) / total == pytest.approx(0.1)
    assert cost["a"] / cost["b"] == pytest.approx(3 / 100)
    assert cost["e"] / total == pytest.approx(0.3)
    assert list(split[-2:]) == last
    assert split_budget([(0.1, []), (0.9, last)]) == tuple(last)
