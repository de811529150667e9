"""The privacy statement."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from dpprobe.errors import PrivacyError
from dpprobe.finetune.options import SEARCHED
from dpprobe.heads.registry import method_options
from dpprobe.privacy import accountants
from dpprobe.privacy.plan import Mechanism, Patients, Plan, Selection
from dpprobe.privacy.statement import Declared, make_statement, mechanisms_of
from dpprobe.privacy.trade_off import bound_attacks


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
    return make_statement(values.pop("plan"), **values)


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


def test_released_frequencies_are_under_the_promise() -> None:
    said = "The weights of any one of the heads, with {}are (1, 1e-05)-differentially private"
    momentum = {"head": "momentum", "class_priors": "released", "normalize": "l2"}
    words = "how frequent the classes are, "
    assert said.format(words) in state(options=momentum)["promise"]
    centred = state(options={**momentum, "normalize": "centred"})["promise"]
    assert said.format(f"what its normalisation released and {words}") in centred
    assert "frequent" not in state()["promise"]


def test_what_is_promised_and_what_is_not() -> None:
    values = state()
    assert "(1, 1e-05)-differentially private" in values["promise"]
    assert (
        "with respect to replacing the rows of one training image by null rows that contribute "
        "nothing, with n fixed and public."
    ) in values["promise"]
    assert "publishing several composes" in values["promise"]
    assert values["release"].startswith("Not for release")
    assert values["seeds"] == [f"{1:032x}", "8" + "0" * 31]
    assert values["public_data"]["backbone"] == "resnet50"
    assert "near-duplicates" in values["public_data"]["assumption"]
    assert any("number of training rows" in fact for fact in values["public"])
    assert any("hyperparameters" in fact for fact in values["public"])
    for thing in (
        "t-SNE", "learning curves", "metrics", "hyperparameters", "features",
        "across the boundary", "seeds, fingerprints and hashes", "errors it raises",
    ):  # fmt: skip
        assert any(thing in line for line in values["not_covered"]), thing


ABOVE = (
    " But delta 1e-05 is above 1/n = {over:.3g} (n = {n} training {units}): this delta "
    "would allow a mechanism that publishes a random {published}."
)


def test_a_delta_above_one_over_n_is_said_in_words() -> None:
    above = replace(plan(), n=100_001)
    words = ABOVE.format(over=1 / 100_001, n=100_001, units="rows", published="row")
    usual = state(plan=replace(plan(), n=100_000))
    values = state(plan=above)
    assert values["promise"] == usual["promise"] + words
    assert values["delta_above_one_over_n"] is True
    assert list(values).index("delta_above_one_over_n") == list(values).index("delta") + 1
    same = {name: value for name, value in values.items() if name in usual}
    assert same == usual | {"promise": values["promise"], "n": 100_001}
    patients = state(plan=replace(above, unit="patient"))
    assert patients["promise"].endswith(
        ABOVE.format(over=1 / 100_001, n=100_001, units="patients", published="patient's rows")
    )


@pytest.mark.parametrize("n", [1600, 99_999, 100_000])
def test_a_delta_up_to_one_over_n_is_not_marked(n: int) -> None:
    values = state(plan=replace(plan(), n=n))
    assert "delta_above_one_over_n" not in values
    assert "1/n" not in json.dumps(values)


def test_a_search_without_a_price_has_no_delta_but_the_words() -> None:
    search = {"space": {"learning_rate": [0.1, 1.0]}}
    options = {"head": "fine_tune", "tune": "head", "search": search}
    values = state(plan=replace(plan(), n=100_001), options=options, network=True)
    assert values["delta"] is None
    assert "delta_above_one_over_n" not in values
    assert "delta 1e-05 is above 1/n" in values["promise"]


def test_where_nothing_is_promised_no_delta_is_above_anything() -> None:
    values = state(math.inf, plan=replace(plan(math.inf), n=1_000_000))
    assert "delta_above_one_over_n" not in values
    assert "1/n" not in values["promise"]


def test_no_release_is_stated_at_a_delta_above_one_over_n() -> None:
    with pytest.raises(PrivacyError, match="above 1/n.*; write a smaller delta"):
        state(plan=replace(plan(), n=1_000_000), mode="release", seeds=[1])


def test_shares_are_stated_where_they_are_exact() -> None:
    covariance, gradients = plan().mechanisms
    whole = replace(gradients, sample_rate=1.0, count=20, noise_multiplier=18.0)
    values = state(plan=replace(plan(), mechanisms=(covariance, whole), realised_epsilon=1.0))
    shares = [item["budget_share"] for item in values["mechanisms"]]
    assert shares == [0.166667, 0.833333]  # 1 / 9^2 to 20 / 18^2
    through = (
        "1 noisy release of covariance and 20 noisy releases of gradients, and through nothing"
    )
    assert through in values["promise"]


def test_public_files_and_what_a_normalisation_released_are_named() -> None:
    path = "elsewhere/manifest.json"
    options = {"head": "feature_covariance", "public_covariance": path}
    declared = Declared(
        study="lesions", files={"public_covariance": path}, hashes={path: "ab" * 32}
    )
    values = state(options=options, declared=declared)
    assert values["public_files"] == {path: "ab" * 32}
    assert values["declared_public"] == {"by": "lesions", "options": {"public_covariance": path}}
    assert any("public_files, assumed to hold nothing" in fact for fact in values["public"])
    assert "heads, with what its normalisation released, are (1, 1e-05)" in values["promise"]
    assert "with" not in state()["promise"].split(" are (")[0]


def test_a_statement_without_public_files_declares_none() -> None:
    values = state(declared=Declared(study="lesions", files={}, hashes={}))
    assert values == state()
    assert values["public_files"] == {}
    assert "declared_public" not in values
    assert not any("public_files" in fact for fact in values["public"])


TUNED = {
    "head": "tuned",
    "base": {"head": "sgd"},
    "search": {"learning_rate": [0.1, 1]},
}


def test_a_search_says_what_is_repeated_and_what_does_not_leave() -> None:
    best = Selection(mean=10, repeated=("gradients",))
    values = json.loads(
        json.dumps(state(plan=replace(plan(), selection=best), options=TUNED), allow_nan=False)
    )
    assert [item["repeated"] for item in values["mechanisms"]] == [False, True]
    assert values["selection"]["trials"] == "geometric"
    assert values["selection"]["mean"] == 10
    assert Selection.from_dict(values["selection"]) == best
    promise = values["promise"]
    assert "with the options and the noisy score of the trial they are from" in promise
    assert (
        "through 1 noisy release of covariance, and through each of a random number of trials"
        in promise
    )
    assert "only the best one's outputs are released" in promise
    assert any("how many trials there were" in line for line in values["not_covered"])
    assert any("space that hyperparameters are searched in" in fact for fact in values["public"])
    assert not any("the hyperparameters, chosen without" in fact for fact in values["public"])
    assert "for benchmarks, not for release" in values["engine_limits"]


def test_no_privacy_is_said_plainly() -> None:
    values = json.loads(json.dumps(state(math.inf), allow_nan=False))
    assert values["promise"].startswith("No privacy is promised")
    assert values["private"] is False
    assert values["epsilon_target"] == values["epsilon_realised"] == "inf"
    assert values["delta"] is None
    assert {item["noise"] for item in values["mechanisms"]} == {"none"}
    assert {item["sensitivity"] for item in values["mechanisms"]} == {None}


def test_all_heads_together_cost_more_and_that_is_said() -> None:
    values = state()
    assert values["epsilon_all_heads"] == 1.6
    assert "all 2 heads together" in values["promise"]
    assert "are (1.6, 1e-05)-differentially private" in values["promise"]
    assert state(math.inf)["epsilon_all_heads"] == "inf"
    assert "together" not in state(seeds=[1], epsilon_all_heads=1.0)["promise"]


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


def test_without_a_promise_everything_is_allowed_and_that_is_said() -> None:
    allows = state(math.inf)["allows"]
    assert allows["words"].startswith("Nothing limits an attacker")
    for block in (allows, allows["all_heads"]):
        assert block["balanced_accuracy"] == 1
        assert block["true_positives"] == {"0.001": 1, "0.01": 1}
        assert not block["exact"]


def test_a_method_that_looks_at_the_data_claims_no_public_choices() -> None:
    ceiling = Plan(mechanisms=(), n=1600, epsilon=math.inf, delta=1e-5, accountant="pld")
    values = state(math.inf, plan=ceiling, options={"head": "nonprivate"})
    assert not any("hyperparameters" in fact for fact in values["public"])
    assert "this method is not private" in values["promise"]
    assert "cross-validation" in values["promise"]
    assert "nothing was clipped" not in values["promise"]
    assert any("private rows' means" in line for line in values["not_covered"])


def test_float32_noise_is_for_benchmarks_and_exact_noise_has_no_reservation() -> None:
    values = state()
    assert "for benchmarks, not for release" in values["engine_limits"]
    assert "Engine exact has no such gap" in values["engine_limits"]
    assert any("what floating-point arithmetic reveals" in line for line in values["not_covered"])
    for options in ({"head": "sgd", "engine": "exact"}, {"head": "least_squares"}):
        values = state(options=options)
        assert values["engine_limits"] is None
        assert not any("floating-point" in line for line in values["not_covered"])
        assert "what running time reveals" in values["not_covered"]
    assert state(math.inf)["engine_limits"] is None


@pytest.mark.parametrize(
    ("options", "clipped"),
    [
        ({}, "and nothing was clipped."),
        (
            {"max_batch_grad_norm": 1.5},
            "and no row's gradient was clipped, only the mean gradient of each step, to norm 1.5.",
        ),
    ],
)
@pytest.mark.parametrize("searched", [False, True])
def test_what_is_clipped_without_noise_is_said(
    options: dict[str, Any], clipped: str, searched: bool
) -> None:
    options = {"head": "sgd", "learning_rate": 0.1, **options}
    if searched:
        options = {"head": "tuned", "base": options, "search": {"learning_rate": [0.1, 1]}}
    promise = state(math.inf, options=options)["promise"]
    assert promise.startswith("No privacy is promised: epsilon is infinite, no noise was added, ")
    assert promise.endswith(clipped)
    if searched:
        options["search"] = {"max_batch_grad_norm": [1, 2]}
        assert "each step, to a searched norm" in state(math.inf, options=options)["promise"]


def test_checks_without_an_answer_say_why() -> None:
    base = plan()
    unsure = replace(base, checks={"prv": None}, check_notes={"prv": "too coarse"})
    values = json.loads(json.dumps(state(plan=unsure), allow_nan=False))
    assert (values["checks"], values["check_notes"]) == ({"prv": None}, {"prv": "too coarse"})


def test_unknown_modes_are_refused() -> None:
    with pytest.raises(PrivacyError, match="mode 'rehearsal'"):
        state(mode="rehearsal")


def test_a_backbone_that_was_not_trained_assumes_no_public_data() -> None:
    texts: dict[bool, str] = {}
    for trained in (False, True):
        public_data = {"backbone": "some", "trained": trained, "near_duplicate_check": "not run"}
        values = state(public_data=public_data)
        texts[trained] = values["public_data"]["assumption"]
    assert "no data went into them" in texts[False]
    assert "pretrained on public data" in texts[True]


def test_near_duplicates_weaken_the_assumption_and_are_not_covered_themselves() -> None:
    part = {"near": 3, "exact": 1, "rows": 100}
    check = {"threshold": 0.9, "train": part, "test": {**part, "near": 5}}
    public_data = {"backbone": "some", "trained": True, "near_duplicate_check": check}
    values = state(public_data=public_data)
    assert values["public_data"]["near_duplicate_check"] == check
    assert "found private rows that look like public ones" in values["public_data"]["assumption"]
    assert any("near-duplicate check" in line for line in values["not_covered"])
    none = {**check, "train": {**part, "near": 0}}  # those of the test split weaken no promise
    clean = state(public_data={**public_data, "near_duplicate_check": none})
    assert "found" not in clean["public_data"]["assumption"]
    assert any("near-duplicate check" in line for line in clean["not_covered"])
    assert not any("near-duplicate check" in line for line in state()["not_covered"])


def test_networks_say_what_of_them_is_public() -> None:
    values = state(network=True)
    promise = values["promise"]
    assert promise.startswith("The trained parameters of any one of the networks are (1, 1e-05)-")
    assert "all 2 networks together, as the folder networks holds them" in promise
    assert any("the frozen part of the network" in line for line in values["public"])
    assert any("activations of the frozen part" in line for line in values["not_covered"])
    assert not any("frozen" in line for line in state()["public"])


def test_a_search_that_nothing_prices_leaves_no_promise() -> None:
    search = {"space": {"learning_rate": [0.1, 1.0]}}
    values = state(options={"head": "fine_tune", "tune": "head", "search": search}, network=True)
    assert values["promise"].startswith(f"No privacy is promised: nothing prices {SEARCHED}.")
    assert values["private"] is False
    assert (values["epsilon_realised"], values["epsilon_all_heads"]) == ("inf", "inf")
    assert values["delta"] is None
    assert values["not_covered"][0] == SEARCHED
    assert values["allows"]["balanced_accuracy"] == 1
    assert values["allows"]["all_heads"]["balanced_accuracy"] == 1
    assert state()["allows"]["balanced_accuracy"] < 1
    assert state()["private"] is True


def test_copies_of_a_picture_are_counted_and_their_promise_is_said_to_be_weaker() -> None:
    counted: dict[str, int | str] = {"rows": 12, "most": 3, "by": "bytes"}
    values = state(copies=counted)
    assert values["copies"] == counted
    assert values["promise"].endswith(
        " But 12 of the training rows repeat the picture of an earlier row, and one picture occurs "
        "3 times: a picture that occurs k times has only what the promise gives to a group of k "
        "rows, which is weaker."
    )
    assert any("the counts under copies" in text for text in values["not_covered"])
    patients = state(copies={"rows": 1, "most": 2}, plan=replace(plan(), unit="patient"))
    assert "1 of the training rows repeat a picture of another patient" in patients["promise"]
    assert "to a group of k patients, which is weaker" in patients["promise"]


def test_without_copies_only_what_they_would_mean_is_said() -> None:
    for copies in (None, {"rows": 0, "most": 1}):
        values = state(copies=copies)
        assert "picture" not in values["promise"]
        assert values["copies"] == (copies or "not counted")
        texts = [text for text in values["not_covered"] if "picture" in text]
        assert len(texts) == 1
        assert texts[0].startswith("a picture that occurs in several training rows")
    assert "picture" not in state(math.inf, copies={"rows": 2, "most": 2})["promise"]
