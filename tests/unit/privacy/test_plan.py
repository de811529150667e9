"""Plans: what seeds derive from, how a budget is shared, and which plans a fit refuses."""

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


# what a plan, a mechanism and a selection refuse


@pytest.mark.parametrize(
    ("name", "good", "bad", "message"),
    [
        ("sensitivity", [1e-9, 1e9], [0.0, 0.9e-9, 1.1e9, math.inf, math.nan], "1e-9 to 1e9"),
        # times the sensitivity of 1.25: 1e-20 and 1e20 are reached
        ("noise_multiplier", [0.0, 0.8e-20, 0.8e20], [0.7e-20, 0.9e20], "after multiplication"),
        ("noise_multiplier", [], [-0.1, math.nan, math.inf], "a number, zero or more"),
        ("sample_rate", [1e-12, 1.0], [-0.1, 0.0, 1.0000001, math.nan], "above 0 and at most 1"),
        ("count", [1, 10**9], [0, -1, 2.0, True], "a whole number, one or more"),
    ],
)
def test_a_mechanism_has_numbers_that_can_be_priced(
    name: str, good: list[Any], bad: list[Any], message: str
) -> None:
    for value in good:
        assert getattr(mechanism(**{"sensitivity": 1.25, name: value}), name) == value
    for value in bad:
        with pytest.raises(PrivacyError, match=message) as error:
            mechanism(**{"sensitivity": 1.25, name: value})
        assert f"mechanism 'gradients': {name} {value!r} must be" in str(error.value)


def test_noise_is_the_multiplier_times_the_sensitivity() -> None:
    assert PART.noise_scale == pytest.approx(0.75 * 1.2)
    louder, longer = PART.scale_noise(2.0), PART.repeat_count(3)
    assert louder == mechanism(noise_multiplier=1.5)
    assert longer == mechanism(count=300)
    shared = priced_alike([PART, mechanism(name="b", sensitivity=1e9)])
    assert shared == (
        mechanism(sensitivity=1.0, released=""),
        mechanism(name="b", sensitivity=1.0, released=""),
    )
    assert full_batch("a", "sums", 2.0) == Mechanism(
        name="a", released="sums", sensitivity=2.0, noise_multiplier=1.0, sample_rate=1.0, count=1
    )


@pytest.mark.parametrize("mean", [1.0, 0.5, 1000.1, math.nan])
def test_a_selection_has_between_one_and_a_thousand_runs(mean: float) -> None:
    with pytest.raises(PrivacyError, match=f"mean number of runs is {mean}.*at most 1000"):
        Selection(mean=mean, repeated=("a",))
    assert [Selection(mean=each, repeated=("a",)).mean for each in (1.01, 1000)] == [1.01, 1000]
    with pytest.raises(PrivacyError, match="no mechanism is repeated"):
        Selection(mean=2.0, repeated=())


SILENT = mechanism(noise_multiplier=0.0)
UNPROMISED: dict[str, Any] = {"epsilon": math.inf, "realised_epsilon": math.inf}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n": 0}, "n = 0 training units, but at least one"),
        ({"unit": "pixel"}, "unit 'pixel'; write one of image, patient, row, group"),
        ({"unit": "patient", "patients": Patients(images=3)}, "pass only one of the two"),
        ({"unit": "group", "patients": Patients(images=None)}, "pass only one of the two"),
        ({"epsilon": 0.0}, r"epsilon 0\.0 must be positive"),
        ({"epsilon": math.nan}, "epsilon nan must be positive"),
        ({"delta": 0.0}, r"delta 0\.0 must lie between 0 and 1"),
        ({"delta": 1.0}, r"delta 1\.0 must lie"),
        ({"delta": -0.1}, r"delta -0\.1 must lie"),
        ({"mechanisms": ()}, "has epsilon 1 but no mechanism"),
        ({"mechanisms": (SILENT,)}, "mechanism 'gradients' adds no noise"),
        ({"mechanisms": (PART, PART)}, r"different names, not \['gradients', 'gradients'\]"),
        (UNPROMISED, "'gradients' has noise multiplier 0.75; it must be 0"),
        ({"realised_epsilon": 1.0001}, "realised epsilon 1.0001 exceeds the target 1;"),
        ({"realised_epsilon": math.inf}, "realised epsilon inf exceeds"),
        ({"realised_epsilon": math.nan}, "realised epsilon nan exceeds"),
        (
            {"selection": Selection(mean=7.0, repeated=("hessian",))},
            "no mechanism 'hessian'; it has 'gradients'",
        ),
    ],
)
def test_a_plan_that_promises_what_it_does_not_do_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(PrivacyError, match=message):
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
    assert made.unit_in_words == Plan.UNITS[made.unit]
    assert ("risk" in made.to_dict()) == ("risk" in changes)


def test_a_plan_of_another_relation_of_neighbours_is_not_read() -> None:
    values = plan().to_dict()
    with pytest.raises(PrivacyError, match="neighbouring is 'add or remove one'; only"):
        Plan.from_dict(values | {"neighbouring": "add or remove one"})
