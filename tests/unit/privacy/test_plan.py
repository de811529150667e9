"""Plans: how seeds are derived and a budget is shared, and which plans a fit refuses."""

from __future__ import annotations

import json
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
from dpprobe.privacy.plan import (
    Mechanism,
    Patients,
    Plan,
    Selection,
    full_batch,
    plan_identity,
    priced_alike,
    split_budget,
)
from tests.support.refusals import refuses

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
    (Options(), planned(Options(), n=200), (200, 100)),
    (Options(max_grad_norm=0.1), planned(Options()), ("sensitivity", 1.2, 0.1)),
    (Options(steps=6), planned(FIVE), ("count", 5, 6)),
    (Options(steps=5, batch_size=16), planned(FIVE), ("sample_rate", 0.32, 0.16)),
    (Options(), planned(Options(), mechanism(name="more")), ("head sgd", "method")),
    (CEILING, planned(Options()), ("head nonprivate", "epsilon 1")),
    (
        CEILING,
        planned(Options(), noise=0.0, epsilon=math.inf, realised_epsilon=math.inf),
        ("head nonprivate", "epsilon inf", 1),
    ),
    (
        CENTRED,
        plan(**BOTH | {"mechanisms": (CENTRE, GRADIENTS.scale_noise(0.5))}),
        ("head sgd", "method"),
    ),
    (
        CENTRED,
        plan(**BOTH, selection=Selection(mean=3, repeated=(GRADIENTS.name,))),
        ("head sgd", "method"),
    ),
]


@pytest.mark.parametrize(("method", "made", "tokens"), REFUSED)
def test_a_fit_refuses_a_plan_made_for_another(
    method: Any, made: Plan, tokens: tuple[object, ...]
) -> None:
    data = TrainingSet(torch.zeros(100, 2), torch.zeros(100, dtype=torch.int64), 2)
    with refuses(PrivacyError, *tokens):
        fit_heads(method, data, made, [1])
    for seeds in ([1, 1], []):
        with refuses(PrivacyError, "head sgd", "seeds"):
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
    assert (plan() == plan(**changes)) == (changes.keys() == {"mechanisms"} and same)


def test_the_description_of_a_mechanism_does_not_change_its_plan() -> None:
    """Rewording a description changes no plan, file or seed, not even in an old audit."""
    told, untold = mechanism(released="other words"), mechanism(released="")
    assert told == untold == PART
    assert len({told, untold, PART}) == 1
    values = plan().to_dict()
    assert "released" not in values["mechanisms"][0]
    earlier = [{**item, "released": "a sum"} for item in values["mechanisms"]]
    assert plan_identity(values | {"mechanisms": earlier}) == plan_identity(values)


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


# plans, mechanisms and selections that are refused


@pytest.mark.parametrize(
    ("name", "good", "bad", "limits"),
    [
        ("sensitivity", [1e-9, 1e9], [0.0, 0.9e-9, 1.1e9, math.inf, math.nan], ("1e-9", "1e9")),
        # with the sensitivity of 1.25, the limits 1e-20 and 1e20 are reached
        ("noise_multiplier", [0.0, 0.8e-20, 0.8e20], [0.7e-20, 0.9e20], ("1e-20", "1e+20", 1.25)),
        ("noise_multiplier", [], [-0.1, math.nan, math.inf], ()),
        ("sample_rate", [1e-12, 1.0], [-0.1, 0.0, 1.0000001, math.nan], ("0", "1")),
        ("count", [1, 10**9], [0, -1, 2.0, True], ()),
    ],
)
def test_a_mechanism_has_numbers_that_can_be_priced(
    name: str, good: list[Any], bad: list[Any], limits: tuple[object, ...]
) -> None:
    for value in good:
        assert getattr(mechanism(**{"sensitivity": 1.25, name: value}), name) == value
    for value in bad:
        with refuses(PrivacyError, "gradients", name, repr(value), *limits):
            mechanism(**{"sensitivity": 1.25, name: value})


def test_noise_is_the_multiplier_times_the_sensitivity() -> None:
    assert PART.noise_scale == pytest.approx(0.75 * 1.2)
    louder, longer = PART.scale_noise(2.0), PART.repeat_count(3)
    assert louder == mechanism(noise_multiplier=1.5)
    assert longer == mechanism(count=300)
    shared = priced_alike([PART, mechanism(name="b", sensitivity=1e9)])
    assert shared == (
        mechanism(sensitivity=1.0),
        mechanism(name="b", sensitivity=1.0),
    )
    assert full_batch("a", "sums", 2.0) == Mechanism(
        name="a", released="sums", sensitivity=2.0, noise_multiplier=1.0, sample_rate=1.0, count=1
    )


@pytest.mark.parametrize("mean", [1.0, 0.5, 1000.1, math.nan])
def test_a_selection_has_between_one_and_a_thousand_runs(mean: float) -> None:
    with refuses(PrivacyError, mean, "1000"):
        Selection(mean=mean, repeated=("a",))
    assert [Selection(mean=each, repeated=("a",)).mean for each in (1.01, 1000)] == [1.01, 1000]
    with refuses(PrivacyError, "selection"):
        Selection(mean=2.0, repeated=())


SILENT = mechanism(noise_multiplier=0.0)
UNPROMISED: dict[str, Any] = {"epsilon": math.inf, "realised_epsilon": math.inf}


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({"n": 0}, ("n = 0",)),
        ({"unit": "pixel"}, ("pixel", *Plan.UNITS)),
        ({"unit": "patient", "patients": Patients(images=3)}, ("patients", "unit")),
        ({"unit": "group", "patients": Patients(images=None)}, ("patients", "unit")),
        ({"epsilon": 0.0}, ("epsilon 0.0",)),
        ({"epsilon": math.nan}, ("epsilon nan",)),
        ({"delta": 0.0}, ("delta 0.0", 0, 1)),
        ({"delta": 1.0}, ("delta 1.0",)),
        ({"delta": -0.1}, ("delta -0.1",)),
        ({"mechanisms": ()}, ("epsilon 1", "mechanism")),
        ({"mechanisms": (SILENT,)}, ("epsilon is 1", "gradients", "above 0")),
        ({"mechanisms": (PART, PART)}, ("['gradients', 'gradients']",)),
        (UNPROMISED, ("gradients", 0.75, 0)),
        ({"realised_epsilon": 1.0001}, ("epsilon 1.0001", 1)),
        ({"realised_epsilon": math.inf}, ("epsilon inf", 1)),
        ({"realised_epsilon": math.nan}, ("epsilon nan", 1)),
        (
            {"selection": Selection(mean=7.0, repeated=("hessian",))},
            ("hessian", "gradients"),
        ),
    ],
)
def test_a_plan_with_invalid_or_contradictory_values_is_refused(
    changes: dict[str, Any], tokens: tuple[object, ...]
) -> None:
    with refuses(PrivacyError, *tokens):
        plan(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"n": 1, "realised_epsilon": 1.0},
        {"mechanisms": (PART, mechanism(name="covariance", count=1)), "unit": "group"},
        {"selection": Selection(mean=7.0, repeated=("gradients",)), "risk": {"advantage": 0.2}},
        {"patients": Patients(images=None), "unit": "image"},
        {"patients": Patients(images=3, epsilon=math.inf), "priced_by": "pld", "delta": 1e-6},
        {"checks": {"prv": math.inf, "rdp": None}, "check_notes": {"rdp": "large"}, "unit": "row"},
        UNPROMISED | {"mechanisms": (SILENT,)},
        UNPROMISED | {"mechanisms": (), "accountant": "rdp"},
    ],
    ids=str,
)
def test_a_plan_is_read_from_json_as_it_was_written(changes: dict[str, Any]) -> None:
    made = plan(**changes)
    text = json.dumps(made.to_dict(), allow_nan=False)
    assert Plan.from_dict(json.loads(text)) == made
    assert json.loads(text)["epsilon"] == ("inf" if "epsilon" in changes else 1.0)
    assert made.private == ("epsilon" not in changes)
    assert made.steps == sum(each.count for each in made.mechanisms)
    assert ("risk" in made.to_dict()) == ("risk" in changes)


def test_a_plan_of_another_relation_of_neighbours_is_not_read() -> None:
    values = plan().to_dict()
    with refuses(PrivacyError, "add_or_remove", "zero_out"):
        Plan.from_dict(values | {"relation": "add_or_remove"})
