"""`head: auto` chooses a head that fits the data, by public facts only."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpprobe.errors import ConfigError
from dpprobe.heads import auto, auto_rule
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.plan_check import check_plan
from dpprobe.heads.registry import method_options
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.entropy import SystemEntropy
from tests.support.auto_rules import raise_rule
from tests.support.linear_heads import plan_for

AUTO = {"head": "auto"}
SMALL = DataFacts(
    n=120, dimension=6, classes=3, multi_label=False, epsilon=2.0, delta=1e-4, unit="image"
)
FACTS = st.builds(
    DataFacts,
    n=st.integers(2, 10**8),
    dimension=st.integers(1, 10**5),
    classes=st.integers(1, 10**5),
    multi_label=st.booleans(),
    epsilon=st.floats(1e-3, 1e3) | st.just(math.inf),
    delta=st.floats(1e-12, 1e-2),
    unit=st.sampled_from(["image", "patient"]),
)


def test_earlier_rules_are_repeated_and_not_the_current_rule() -> None:
    """Between n mu = 50 sqrt(d) and 100 sqrt(d), rule 3 whitens and rules 1 and 2 do not."""
    facts = DataFacts(
        n=8000, dimension=384, classes=10, multi_label=False, epsilon=0.6, delta=1e-5, unit="image"
    )
    kinds = {
        rule: auto.Options().repeat_choice(rule, facts).normalize.kind
        for rule in (*auto_rule.EARLIER, auto_rule.RULE)
    }
    assert kinds == {1: "centred", 2: "centred", 3: "whitened"}
    repeated = auto.Options().repeat_choice(2, facts)
    assert repeated.rule == 2
    assert auto.Options().resolve_choice(facts) == auto.Options().repeat_choice(3, facts)
    few, balanced = replace(facts, n=300), auto.Options(balanced=True)
    released = {
        rule: {each.name for each in balanced.repeat_choice(rule, few).list_mechanisms(300)}
        for rule in (*auto_rule.EARLIER, auto_rule.RULE)
    }
    assert [rule for rule, names in released.items() if "class_offsets" in names] == [3]


@pytest.mark.parametrize(
    ("n", "offsets", "share", "kind", "public"),
    [  # n mu / sqrt(d) is 4, 9, 11, 18, 60; mu from dp-accounting's Gaussian at (1, 1e-5)
        (300, True, 0.2, "centred", ("centred", 0.04)),
        (640, True, 0.2, "centred", ("whitened", 0.04)),
        (790, False, 0.2, "centred", ("whitened", 0.04)),
        (1300, False, 0.04, "centred", ("whitened", 0.04)),
        (4300, False, 0.14, "whitened", ("whitened", 0.14)),
    ],
)
def test_few_units_get_a_larger_share_offsets_and_public_rows(
    n: int, offsets: bool, share: float, kind: str, public: tuple[str, float]
) -> None:
    facts = DataFacts(
        n=n, dimension=384, classes=3, multi_label=False, epsilon=1, delta=1e-5, unit="patient"
    )
    two = auto.Options(balanced=True).resolve_choice(replace(facts, classes=2))
    assert two.model_dump()["chosen"]["offset_share"] == (0.1 if offsets else 0.05)
    options = auto.Options(balanced=True).resolve_choice(facts)
    assert (options.normalize.kind, options.normalize.model_dump()["share"]) == (kind, share)
    names = {each.name for each in options.list_mechanisms(n)}
    assert ("class_offsets" in names) == offsets
    beside = auto.Options(public="films/{backbone}.npy").resolve_choice(facts)
    normalize = beside.normalize.model_dump()
    assert (normalize["kind"], normalize["share"]) == public
    released = "second_moment" in {each.name for each in beside.list_mechanisms(n)}
    assert released == (kind == "whitened")
    assert beside.public_files() == {"public": "films/{backbone}.npy"}
    filled = beside.fill_paths(dataset="lesions", backbone="vit")
    assert filled.public_files() == {"public": "films/vit.npy"}
    assert filled.normalize.model_dump()["public"] == "films/vit.npy"
    assert "films" not in str(filled.identity_options())
    assert method_options(filled.model_dump(mode="json")) == filled


@pytest.mark.parametrize(("n", "tried"), [(1400, True), (1500, False)])
@pytest.mark.parametrize("rule", [auto_rule.RULE, *auto_rule.EARLIER])
def test_a_student_is_tried_below_20_on_request(n: int, tried: bool, rule: int) -> None:
    """mu is 0.268 at epsilon 1, so n mu = 20 sqrt(d) at n = 1463."""
    facts = DataFacts(
        n=n, dimension=384, classes=2, multi_label=False, epsilon=1, delta=1e-5, unit="image"
    )
    asked = auto.Options(public="films.npy", student_share=0.05)
    options = asked.repeat_choice(rule, facts, exact=True)
    assert options.has_student == tried
    assert ("student_gain" in {each.name for each in options.list_mechanisms(n)}) == tried
    assert method_options(options.model_dump(mode="json")) == options
    assert not auto.Options(public="films.npy").repeat_choice(rule, facts).has_student
    with pytest.raises(ConfigError, match="student_share"):
        asked.repeat_choice(rule, replace(facts, multi_label=True))


@given(facts=FACTS)
@settings(max_examples=300)
def test_the_rule_chooses_a_head_that_fits_whatever_the_facts(facts: DataFacts) -> None:
    assert auto_rule.choose_head(facts) == auto_rule.choose_head(facts)
    options = auto.Options().resolve_choice(facts)
    assert options.rule == auto_rule.RULE
    assert not options.is_undecided
    assert options.trained_head.private
    assert options.multi_label or not facts.multi_label
    assert options.link_on(facts.multi_label) in ("softmax", "sigmoid", "none")
    assert not options.input_files()
    assert options.counted_classes is None
    assert options.private_choices is None
    assert options.priced_selection(facts.n) is None
    mechanisms = options.list_mechanisms(facts.n)
    assert mechanisms
    for item in mechanisms:
        assert math.isfinite(item.noise_multiplier)
        assert 0 < item.sensitivity < math.inf
        assert item.count >= 1
        assert 0 < item.sample_rate <= 1
    read = method_options(options.model_dump(mode="json"))
    assert read == options
    assert options.resolve_choice(SMALL) is options, "what is chosen stays"
    chosen, values = method_options(auto_rule.choose_head(facts)), options.model_dump(mode="json")
    assert values["chosen"] == chosen.model_dump(mode="json")
    assert values["normalize"] == values["chosen"]["normalize"]
    said = auto.describe_choice(options, facts) or {}
    assert (said["rule"], said["head"]) == (f"auto rule {auto_rule.RULE}", chosen.head)
    assert facts.to_dict().items() <= said.items()
    released = auto.Options().resolve_choice(facts, exact=True)
    assert released.is_exact
    assert released.engine_limits is None
    assert released.list_mechanisms(facts.n) == mechanisms


BALANCED = AUTO | {"balanced": True}
SHARE = {"class_priors": "released", "prior_share": 0.02}


@given(facts=FACTS)
@settings(max_examples=100)
def test_balanced_is_the_same_choice_and_a_release_of_the_frequencies(facts: DataFacts) -> None:
    method = method_options(BALANCED)
    if facts.multi_label:
        with pytest.raises(ConfigError, match="balanced"):
            method.resolve_choice(facts)
        return
    options, plain = method.resolve_choice(facts), method_options(AUTO).resolve_choice(facts)
    values, others = options.model_dump(mode="json"), plain.model_dump(mode="json")
    assert values.pop("balanced") is True
    assert {name: values["chosen"].pop(name) for name in SHARE} == SHARE
    few = values["chosen"].pop("offset_share", None) is not None
    assert few or facts.classes != 2
    assert values == others
    names = [each.name for each in options.list_mechanisms(facts.n)]
    released = ["class_counts", *["class_offsets"] * few]
    assert names == released + [each.name for each in plain.list_mechanisms(facts.n)]
    assert method_options(options.model_dump(mode="json")) == options
    made = method.resolve_choice(facts, exact=True)
    assert made.is_exact
    assert made.releases_priors
    assert made.model_dump()["balanced"] is True
    said, plainly = (auto.describe_choice(each, facts) or {} for each in (options, plain))
    assert said == plainly | {"balanced": True}


def test_a_new_rule_is_another_request_and_another_identity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = method_options(AUTO)
    old = before.resolve_choice(SMALL)
    asked, identity = auto.asked_options(before), old.identity_options()
    raise_rule(monkeypatch)
    assert auto.asked_options(before) != asked
    assert before.resolve_choice(SMALL).identity_options() != identity
    with pytest.raises(ConfigError, match="head auto"):
        method_options(asked).resolve_choice(SMALL)


def rows(multi_label: bool = False, units: Units | None = None) -> TrainingSet:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(120, 6, generator=generator)
    labels = torch.arange(120) % 3
    features[torch.arange(120), labels] += 3
    if multi_label:
        labels = torch.nn.functional.one_hot(labels, 3).to(torch.uint8)
    return TrainingSet(features, labels, num_classes=3, units=units)


# Epsilons on both sides of the rule's thresholds, and no noise.
@pytest.mark.parametrize("epsilon", [0.5, 8.0, math.inf])
@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("unit", ["image", "patient"])
@pytest.mark.parametrize("asked", [AUTO, BALANCED])
def test_a_fit_is_the_chosen_head_s_bit_for_bit(
    epsilon: float, multi_label: bool, unit: str, asked: dict[str, Any]
) -> None:
    if asked is BALANCED and multi_label:
        return  # refused
    units = (
        Units.number_units([f"p{row // 2}" for row in range(120)]) if unit == "patient" else None
    )
    data = rows(multi_label, units)
    facts = replace(SMALL, n=data.n, epsilon=epsilon, multi_label=multi_label, unit=unit)
    method = method_options(asked).resolve_choice(facts)
    plan = plan_for(method, facts.n, 0.0 if epsilon == math.inf else 1.0)
    check_plan(method, plan)
    fitted = fit_heads(method, data, plan, [3, 4])
    chosen = auto_rule.choose_head(facts)
    if asked is BALANCED:
        chosen |= auto_rule.balance_options(facts, auto_rule.RULE)
    same = fit_heads(method_options(chosen), data, plan, [3, 4])
    np.testing.assert_array_equal(fitted.weights, same.weights)
    assert np.isfinite(fitted.weights).all()
    assert [t.spec for t in fitted.transforms] == [t.spec for t in same.transforms]


def test_a_release_of_a_first_order_choice_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "choose_head", lambda *_, **__: {"head": "momentum", "steps": 3})
    method = method_options(AUTO).resolve_choice(SMALL)
    assert not method.is_exact
    released = method_options(AUTO).resolve_choice(SMALL, exact=True)
    assert released.trained_head.model_dump()["engine"] == "exact"
    plan = plan_for(method, SMALL.n, 1.0)
    check_plan(released, plan)
    heads = fit_heads(released, rows(), plan, [0], entropy=SystemEntropy())
    assert np.isfinite(heads.weights).all()


# balance by metric

METRICS = [None, "accuracy", "auc", "macro_accuracy"]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("asked", [None, True, False])
@pytest.mark.parametrize("multi_label", [False, True])
@given(facts=FACTS)
@settings(max_examples=25)
def test_with_macro_accuracy_auto_balances_unless_the_study_says_otherwise(
    metric: str | None, asked: bool | None, multi_label: bool, facts: DataFacts
) -> None:
    facts = replace(facts, metric=metric, multi_label=multi_label)
    written = AUTO if asked is None else AUTO | {"balanced": asked}
    method = method_options(auto.asked_options(method_options(written)))  # like a job
    if multi_label and asked:
        with pytest.raises(ConfigError, match="balanced"):
            method.resolve_choice(facts)
        return
    options = method.resolve_choice(facts)
    balances = metric == "macro_accuracy" and not multi_label if asked is None else asked
    assert options.releases_priors is balances
    assert [m.name for m in options.list_mechanisms(facts.n)].count("class_counts") == balances
    assert method_options(options.model_dump(mode="json")) == options
    others = method_options(AUTO | {"balanced": balances}).resolve_choice(
        replace(facts, metric=None)
    )
    assert options.model_dump()["chosen"] == others.model_dump()["chosen"]
    said = auto.describe_choice(options, facts) or {}
    assert said.get("metric") == metric, "the statement says what the choice followed"
    assert bool(said.get("balanced")) is balances


def test_a_request_without_balanced_has_the_identity_of_earlier_versions() -> None:
    """Otherwise finished releases of earlier versions would no longer be final."""
    asked = AUTO | {"normalize": "none", "rule": None, "chosen": None}
    assert method_options(AUTO).identity_options() == asked
    identities = [
        str(method_options(each).identity_options())
        for each in (AUTO, BALANCED, AUTO | {"balanced": False})
    ]
    assert len(set(identities)) == 3


def test_the_facts_leave_out_an_unnamed_metric() -> None:
    assert "metric" not in SMALL.to_dict()
    assert replace(SMALL, metric="auc").to_dict() == SMALL.to_dict() | {"metric": "auc"}
