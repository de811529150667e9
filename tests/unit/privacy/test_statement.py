"""The privacy statement."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from dpprobe.errors import PrivacyError
from dpprobe.finetune.options import SEARCHED
from dpprobe.heads.registry import method_options
from dpprobe.privacy import accountants
from dpprobe.privacy import statement as statements
from dpprobe.privacy.plan import Mechanism, Patients, Plan, Selection
from dpprobe.privacy.statement import Declared, Statement, mechanisms_of
from dpprobe.privacy.trade_off import bound_attacks


@cache
def plan(epsilon: float = 1.0) -> Plan:
    private = math.isfinite(epsilon)
    mechanisms = (
        Mechanism(
            name="covariance",
            released="sum of outer products of clipped rows",
            sensitivity=1.0,
            noise_multiplier=9.0 if private else 0.0,
            sample_rate=1.0,
            count=1,
        ),
        Mechanism(
            name="gradients",
            released="sum of the sampled rows' clipped gradients, one per step",
            sensitivity=1.2,
            noise_multiplier=5.0 if private else 0.0,
            sample_rate=0.02,
            count=500,
        ),
    )
    return Plan(
        mechanisms=mechanisms,
        n=1600,
        epsilon=epsilon,
        delta=1e-5,
        accountant="pld",
        realised_epsilon=accountants.compute_epsilon(mechanisms, 1e-5, "pld"),
        priced_by=accountants.describe_accountant(mechanisms, "pld"),
        checks={"prv": 0.999} if private else {},
    )


def state(epsilon: float = 1.0, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "plan": plan(epsilon),
        "method": "paper",
        "options": {"head": "sgd", "learning_rate": 0.1, "engine": "closed_form"},
        "mode": "benchmark",
        "seeds": [1, 2**127],
        "public_data": {
            "backbone": "resnet50",
            "trained": True,
            "near_duplicate_check": "not run",
        },
        "epsilon_all_heads": 1.6 if math.isfinite(epsilon) else math.inf,
        **changes,
    }
    head = method_options(values["options"])
    values["private_choices"] = head.private_choices
    values["priced_normalisation"] = head.normalize.priced
    values["released_priors"] = head.releases_priors
    values["engine_limits"] = head.engine_limits
    return Statement(**values).to_dict()


def test_a_reviewer_can_redo_the_accounting() -> None:
    values = json.loads(json.dumps(state(), allow_nan=False))
    again = accountants.compute_epsilon(mechanisms_of(values), values["delta"], "pld")
    assert again == values["epsilon_realised"] <= values["epsilon_target"] == 1.0
    assert values["accountant"].startswith("pld (dp-accounting")
    assert values["checks"] == {"prv": 0.999}
    assert values["unit_of_privacy"] == "one training image"
    assert values["neighbouring_relation"] == (
        "one unit's rows are replaced by null rows that contribute nothing; n is fixed and public"
    )
    assert values["n"] == 1600
    assert [item["sampling"] for item in values["mechanisms"]] == ["all rows", "Poisson"]
    assert [item["noise_standard_deviation"] for item in values["mechanisms"]] == [9.0, 6.0]
    assert [item["repeated"] for item in values["mechanisms"]] == [False, False]
    # Of a composition with sampled steps nobody can say exactly what each part costs.
    assert [item["budget_share"] for item in values["mechanisms"]] == [None, None]
    assert values["selection"] is None


FREQUENCIES = {"head": "momentum", "class_priors": "released", "normalize": "l2"}
TUNED = {"head": "tuned", "base": {"head": "sgd"}, "search": {"learning_rate": [0.1, 1]}}
BATCHES = {"head": "sgd", "max_batch_grad_norm": 1.5}
UNPRICED = {"head": "fine_tune", "tune": "head", "search": {"space": {"learning_rate": [0.1, 1]}}}
SEARCH = Selection(mean=10, repeated=("gradients",))
NEAR: dict[str, Any] = {"threshold": 0.9, "train": {"near": 3, "exact": 1, "rows": 100}}
BY_FILE = Declared(study="lesions", files={"public_covariance": "m"}, hashes={"m": "ab" * 32})


def of_backbone(**facts: Any) -> dict[str, Any]:
    usual = {"backbone": "some", "trained": True, "near_duplicate_check": "not run"}
    return {"public_data": usual | facts}


# By the part of the statement that has it: the sentence or key word of each setting, and another
# setting that lacks it.
SAID: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("promise", "how frequent the classes are", {"options": FREQUENCIES}, {}),
    ("promise", "its normalisation released", {"options": {"head": "feature_covariance"}}, {}),
    ("promise", "all 2 heads together", {}, {"seeds": [1], "epsilon_all_heads": 1.0}),
    ("promise", "(1.6, 1e-05)", {}, {"seeds": [1], "epsilon_all_heads": 1.0}),
    ("promise", "noisy score", {"selection": SEARCH, "options": TUNED}, {}),
    ("promise", "random number of trials", {"selection": SEARCH, "options": TUNED}, {}),
    ("promise", "trained parameters", {"network": True}, {}),
    ("promise", "above 1/n", {"n": 100_001}, {"n": 100_000}),
    (
        "promise",
        "above 1/n",
        {"n": 100_001, "options": UNPRICED},
        {"epsilon": math.inf, "n": 10**6},
    ),
    ("promise", "patient's rows", {"n": 100_001, "unit": "patient"}, {"n": 100_001}),
    ("promise", "nothing was clipped", {"epsilon": math.inf}, {}),
    ("promise", "norm 1.5", {"epsilon": math.inf, "options": BATCHES}, {"options": BATCHES}),
    ("promise", "norm 1.5", {"epsilon": math.inf, "options": TUNED | {"base": BATCHES}}, {}),
    ("promise", "12 of the training rows", {"copies": {"rows": 12, "most": 3}}, {}),
    ("promise", "k patients", {"copies": {"rows": 1, "most": 2}, "unit": "patient"}, {}),
    ("promise", SEARCHED, {"options": UNPRICED, "network": True}, {}),
    ("public", statements.PUBLIC_FILES, {"declared": BY_FILE}, {}),
    ("public", statements.PUBLIC_SEARCH, {"selection": SEARCH, "options": TUNED}, {}),
    ("public", statements.PUBLIC_NETWORK, {"network": True}, {}),
    ("public", statements.FIXED_OPTIONS, {}, {"options": {"head": "nonprivate"}}),
    ("not_covered", statements.TRIALS_NOT_COVERED[0], {"selection": SEARCH, "options": TUNED}, {}),
    ("not_covered", statements.NETWORK_NOT_COVERED[0], {"network": True}, {}),
    ("not_covered", statements.FLOATS_NOT_COVERED, {}, {"options": {"head": "least_squares"}}),
    ("not_covered", statements.OVERLAP_NOT_COVERED, of_backbone(near_duplicate_check=NEAR), {}),
    ("not_covered", statements.COUNTED_NOT_COVERED, {"copies": {"rows": 12, "most": 3}}, {}),
    ("not_covered", statements.COPIES_NOT_COVERED["image"], {}, {"unit": "patient"}),
    ("not_covered", SEARCHED, {"options": UNPRICED}, {}),
    ("engine_limits", "not for release", {}, {"options": {"head": "sgd", "engine": "exact"}}),
    ("public_data", statements.PUBLIC_DATA, of_backbone(), of_backbone(trained=False)),
    ("public_data", statements.NO_PUBLIC_DATA, of_backbone(trained=False), of_backbone()),
    ("public_data", statements.OVERLAP_FOUND, of_backbone(near_duplicate_check=NEAR), {}),
    (
        "public_data",
        "'near': 0",
        of_backbone(near_duplicate_check={**NEAR, "train": {**NEAR["train"], "near": 0}}),
        {},
    ),
]


def state_with(**changes: Any) -> dict[str, Any]:
    """A statement; values of the plan may be changed too."""
    made = plan(changes.pop("epsilon", 1.0))
    if changes.get("options", {}).get("head") == "nonprivate":
        made = Plan(mechanisms=(), n=1600, epsilon=math.inf, delta=1e-5, accountant="pld")
    own = {key: changes.pop(key) for key in ("n", "unit", "selection") if key in changes}
    together = {} if made.private else {"epsilon_all_heads": math.inf}
    return state(plan=replace(made, **own), **together | changes)


@pytest.mark.parametrize(("part", "words", "setting", "other"), SAID)
def test_each_setting_says_what_it_releases_and_what_it_leaves_uncovered(
    part: str, words: str, setting: dict[str, Any], other: dict[str, Any]
) -> None:
    values = json.loads(json.dumps(state_with(**setting), allow_nan=False))
    assert words in str(values[part])
    assert words not in str(state_with(**other)[part])
    if "network" in setting:  # vectors have none
        return
    usual = of_backbone(backbone_options={"family": "external", "model": "some"})["public_data"]
    vectors = state_with(**setting | {"public_data": usual | setting.get("public_data", {})})
    said = [vectors["promise"], vectors["allows"]["words"], *vectors["not_covered"]]
    assert not re.search("image|picture", " ".join([*said, *vectors["public"]]), re.IGNORECASE)


@pytest.mark.parametrize(
    "setting",
    [{"epsilon": math.inf}, {"options": {"head": "nonprivate"}}, {"options": UNPRICED}],
)
def test_without_a_price_nothing_is_promised(setting: dict[str, Any]) -> None:
    values = json.loads(json.dumps(state_with(**setting), allow_nan=False))
    assert values["promise"].startswith("No privacy is promised")
    assert (values["private"], values["delta"]) == (False, None)
    assert (values["epsilon_realised"], values["epsilon_all_heads"]) == ("inf", "inf")
    assert "delta_above_one_over_n" not in state_with(n=10**6, **setting)
    for block in (values["allows"], values["allows"]["all_heads"]):
        assert block["balanced_accuracy"] == 1
        assert block["true_positives"] == {"0.001": 1, "0.01": 1}
        assert not block["exact"]
    if "epsilon" in setting:
        assert {item["noise"] for item in values["mechanisms"]} == {"none"}
        assert {item["sensitivity"] for item in values["mechanisms"]} == {None}


def test_values_of_a_statement() -> None:
    values = state()
    assert "(1, 1e-05)-differentially private" in values["promise"]
    assert values["seeds"] == [f"{1:032x}", "8" + "0" * 31]
    assert set(statements.NOT_COVERED) < set(values["not_covered"])
    assert values == state(declared=Declared(study="lesions", files={}, hashes={}))
    declared = state(declared=BY_FILE)
    assert declared["public_files"] == {"m": "ab" * 32}
    assert declared["declared_public"] == {"by": "lesions", "options": {"public_covariance": "m"}}
    assert state_with(n=100_001)["delta_above_one_over_n"] is True
    assert "delta_above_one_over_n" not in state_with(n=100_000)
    searched = state_with(selection=SEARCH, options=TUNED)
    assert [item["repeated"] for item in searched["mechanisms"]] == [False, True]
    assert Selection.from_dict(searched["selection"]) == SEARCH
    unsure = replace(plan(), checks={"prv": None}, check_notes={"prv": "too coarse"})
    noted = state(plan=unsure)
    assert (noted["checks"], noted["check_notes"]) == ({"prv": None}, {"prv": "too coarse"})
    for copies in (None, {"rows": 0, "most": 1}):
        said = state(copies=copies)
        assert said["copies"] == (copies or "not counted")
        assert "picture" not in said["promise"]


@pytest.mark.parametrize(
    "wrong", [{"mode": "rehearsal"}, {"n": 10**6, "mode": "release", "seeds": [1]}]
)
def test_unknown_modes_and_releases_at_a_delta_above_one_over_n_are_refused(
    wrong: dict[str, Any],
) -> None:
    with pytest.raises(PrivacyError, match="rehearsal|above 1/n"):
        state_with(**wrong)


def test_shares_are_stated_where_they_are_exact() -> None:
    covariance, gradients = plan().mechanisms
    whole = replace(gradients, sample_rate=1.0, count=20, noise_multiplier=18.0)
    values = state(plan=replace(plan(), mechanisms=(covariance, whole), realised_epsilon=1.0))
    shares = [item["budget_share"] for item in values["mechanisms"]]
    assert shares == [0.166667, 0.833333]  # 1 / 9^2 to 20 / 18^2


def unsampled(**changes: Any) -> Plan:
    covariance, _ = plan().mechanisms
    price = accountants.gaussian_epsilon(1 / covariance.noise_multiplier, 1e-5)
    return replace(plan(), mechanisms=(covariance,), realised_epsilon=price, **changes)


def phi(x: float) -> float:
    return (1 + math.erf(x / math.sqrt(2))) / 2


def test_what_epsilon_allows_is_said_of_one_head_and_of_all() -> None:
    allows = json.loads(json.dumps(state(plan=unsampled())["allows"]))
    assert allows["exact"]
    for block, heads in ((allows, 1), (allows["all_heads"], 2)):
        right = phi(math.sqrt(heads) / 9 / 2)
        assert right <= block["balanced_accuracy"] <= right + 1.1e-6
        assert 0.001 < block["true_positives"]["0.001"] < 0.002
        assert 0.01 < block["true_positives"]["0.01"] < 0.02
    assert allows["patient"] is None
    assert "everything but the rows of one training image" in allows["words"]
    assert "guesses right at most 52.3% of the time" in allows["words"]  # 0.5222
    assert (
        "With all 2 heads the attacker guesses right at most 53.2% of the time" in allows["words"]
    )
    assert state(plan=unsampled(), seeds=[1])["allows"]["all_heads"] is None


def test_sampled_steps_allow_what_their_profile_does() -> None:
    allows = state()["allows"]
    bounds = bound_attacks(plan().mechanisms, [0.001, 0.01], delta=1e-5, epsilon=1.0)
    assert allows["balanced_accuracy"] == bounds.balanced_accuracy
    assert tuple(allows["true_positives"].values()) == bounds.true_positives
    assert not allows["exact"]
    assert allows["balanced_accuracy"] < allows["all_heads"]["balanced_accuracy"]


def test_a_search_allows_what_its_price_does() -> None:
    best = Selection(mean=10, repeated=("gradients",))
    allows = state(plan=replace(plan(), selection=best, realised_epsilon=0.9), options=TUNED)[
        "allows"
    ]
    for block, epsilon in ((allows, 0.9), (allows["all_heads"], 1.6)):
        right = (math.exp(epsilon) + 1e-5) / (1 + math.exp(epsilon))
        assert right <= block["balanced_accuracy"] <= right + 1.1e-6
        assert not block["exact"]


def test_a_patient_of_several_images_is_told_more_about() -> None:
    five = unsampled(patients=Patients(images=5, epsilon=2.5))
    allows = state(plan=five)["allows"]
    right = phi(5 / 9 / 2)
    assert right <= allows["patient"]["balanced_accuracy"] <= right + 1.1e-6
    assert (
        "patient with 5 images the attacker guesses right at most 61% of the time"
        in allows["words"]
    )  # 0.6094
    any_number = state(plan=unsampled(patients=Patients(images=None)))["allows"]
    assert any_number["patient"]["balanced_accuracy"] == 1
    assert "with any number of images the attacker may be right every time" in any_number["words"]
