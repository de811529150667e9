"""Mechanisms, plans, and the options that make them."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from typing import Any

import pytest

from dpprobe.errors import PrivacyError
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.nonprivate import Options as NonprivateOptions
from dpprobe.heads.sgd import Options
from dpprobe.privacy.plan import Mechanism, Patients, Plan, Selection, plan_identity, split_budget


def mechanism(**changes: Any) -> Mechanism:
    values: dict[str, Any] = {
        "name": "gradients",
        "released": "sum of clipped gradients",
        "sensitivity": 1.2,
        "noise_multiplier": 0.75,
        "sample_rate": 0.01,
        "count": 100,
    }
    return Mechanism(**{**values, **changes})


def plan(**changes: Any) -> Plan:
    values: dict[str, Any] = {
        "mechanisms": (mechanism(),),
        "n": 3200,
        "epsilon": 1.0,
        "delta": 1e-5,
        "accountant": "pld",
        "realised_epsilon": 0.9995,
    }
    return Plan(**{**values, **changes})


FULL = plan(
    mechanisms=(mechanism(), mechanism(name="covariance", sample_rate=1.0, count=1)),
    patients=Patients(images=3, epsilon=2.5),
    selection=Selection(mean=7.0, repeated=("gradients",)),
    priced_by="pld",
    checks={"rdp (dp-accounting 0.6.0)": math.inf, "prv (opacus 1.6.0)": None},
    check_notes={"prv (opacus 1.6.0)": "too large"},
    risk={"top": 0.25},
)


@pytest.mark.parametrize(
    "original",
    [
        FULL,
        plan(patients=Patients(images=3, epsilon=math.inf), unit="image"),
        plan(unit="patient"),
        plan(
            epsilon=math.inf,
            realised_epsilon=math.inf,
            mechanisms=(mechanism(noise_multiplier=0.0),),
        ),
    ],
)
def test_plan_survives_json(original: Plan) -> None:
    text = json.dumps(original.to_dict(), allow_nan=False)
    assert Plan.from_dict(json.loads(text)) == original


def test_every_field_of_a_plan_is_in_the_plan_that_survives() -> None:
    plain = plan(mechanisms=(mechanism(name="other"),))
    same = [one.name for one in fields(Plan) if getattr(FULL, one.name) == getattr(plain, one.name)]
    assert same == ["n", "unit", "epsilon", "delta", "accountant", "realised_epsilon"]


def test_plan_of_another_relation_is_refused() -> None:
    values = plan().to_dict() | {"neighbouring": "replace one"}
    with pytest.raises(PrivacyError, match="replace one"):
        Plan.from_dict(values)


def test_a_fit_refuses_a_plan_made_for_another() -> None:
    import torch

    from dpprobe.heads.training_set import TrainingSet

    data = TrainingSet(torch.zeros(100, 2), torch.zeros(100, dtype=torch.int64), 2)

    def planned(options: Options, n: int = 100, **changes: Any) -> Plan:
        return plan(mechanisms=options.list_mechanisms(n), n=n, **changes)

    with pytest.raises(PrivacyError, match="n = 200 rows, but the data has 100"):
        fit_heads(Options(), data, planned(Options(), n=200), [1])
    with pytest.raises(PrivacyError, match=r"sensitivity 1\.2 in the plan but 0\.1"):
        fit_heads(Options(max_grad_norm=0.1), data, planned(Options()), [1])
    with pytest.raises(PrivacyError, match="count 5 in the plan but 6"):
        fit_heads(Options(steps=6), data, planned(Options(steps=5)), [1])
    steps = planned(Options(steps=5))
    with pytest.raises(PrivacyError, match=r"sample_rate 0\.32 in the plan but 0\.16"):
        fit_heads(Options(steps=5, batch_size=16), data, steps, [1])
    extra = plan(mechanisms=(*Options().list_mechanisms(100), mechanism(name="more")), n=100)
    with pytest.raises(PrivacyError, match="belongs to another method"):
        fit_heads(Options(), data, extra, [1])
    ceiling = NonprivateOptions(penalties=(0.1,))
    with pytest.raises(PrivacyError, match="not private, but its plan has epsilon 1"):
        fit_heads(ceiling, data, planned(Options()), [1])
    silent = tuple(item.scale_noise(0.0) for item in Options().list_mechanisms(100))
    nothing = plan(mechanisms=silent, n=100, epsilon=math.inf, realised_epsilon=math.inf)
    with pytest.raises(
        PrivacyError, match="the head is not private, but its plan has epsilon inf and 1"
    ):
        fit_heads(ceiling, data, nothing, [1])
    with pytest.raises(PrivacyError, match="differ from each other"):
        fit_heads(Options(), data, planned(Options()), [1, 1])


def test_a_fit_refuses_noise_split_otherwise_than_the_method_says() -> None:
    import torch

    from dpprobe.heads.training_set import TrainingSet

    data = TrainingSet(torch.zeros(100, 2), torch.zeros(100, dtype=torch.int64), 2)
    method = Options.model_validate({"steps": 2, "normalize": "centred"})
    first, second = (item.scale_noise(2.0) for item in method.list_mechanisms(100))
    assert fit_heads(method, data, plan(mechanisms=(first, second), n=100), [1]).steps == 2
    with pytest.raises(PrivacyError, match="belongs to another method"):
        fit_heads(method, data, plan(mechanisms=(first, second.scale_noise(0.5)), n=100), [1])
    best = Selection(mean=3, repeated=(second.name,))
    with pytest.raises(PrivacyError, match="belongs to another method"):
        fit_heads(method, data, plan(mechanisms=(first, second), n=100, selection=best), [1])


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"mechanisms": (mechanism(released="other words"),)}, True),
        ({"realised_epsilon": 0.9, "priced_by": "pld", "checks": {"rdp": 1.2}}, True),
        *(
            ({"mechanisms": (mechanism(**{key: value}),)}, False)
            for key, value in (
                ("name", "sums"), ("sensitivity", 1.0), ("noise_multiplier", 0.8),
                ("sample_rate", 0.02), ("count", 99),
            )
        ),
        ({"mechanisms": (mechanism(), mechanism(name="score"))}, False),
        ({"n": 3201}, False),
        ({"unit": "patient"}, False),
        ({"epsilon": 1.1}, False),
        ({"delta": 1e-6}, False),
        ({"accountant": "rdp"}, False),
        ({"selection": Selection(mean=7.0, repeated=("gradients",))}, False),
    ],
)  # fmt: skip
def test_seeds_depend_on_noise_and_guarantee_but_not_on_words(
    changes: dict[str, Any], same: bool
) -> None:
    first, second = (plan_identity(each.to_dict()) for each in (plan(), plan(**changes)))
    assert (first == second) is same


def test_shares_of_a_budget() -> None:
    first = [mechanism(name="a", count=3, sample_rate=1.0), mechanism(name="b", sample_rate=1.0)]
    last = [mechanism(name="c", noise_multiplier=2.0), mechanism(name="d", count=1)]
    split = split_budget([(0.1, first), (0.3, [mechanism(name="e")]), (0.6, last)])
    cost = {
        item.name: item.count * (item.sample_rate / item.noise_multiplier) ** 2 for item in split
    }
    total = sum(cost.values())
    assert (cost["a"] + cost["b"]) / total == pytest.approx(0.1)
    assert cost["a"] / cost["b"] == pytest.approx(3 / 100)
    assert cost["e"] / total == pytest.approx(0.3)
    assert list(split[-2:]) == last
    assert split_budget([(0.1, []), (0.9, last)]) == tuple(last)
