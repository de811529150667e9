"""The privacy statement."""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import replace
from functools import cache
from typing import Any, cast

import pytest
from scipy.stats import norm

from dpprobe.errors import PrivacyError
from dpprobe.finetune.options import SEARCHED
from dpprobe.heads.registry import method_options
from dpprobe.privacy import accountants, statement
from dpprobe.privacy.plan import Patients, Plan, Selection
from dpprobe.privacy.statement import Declared, Statement, mechanisms_of, unit_of_statement
from tests.support.mechanisms import gaussians
from tests.support.refusals import refuses


@cache
def plan(epsilon: float = 1.0) -> Plan:
    private = math.isfinite(epsilon)
    centre = gaussians(9.0 if private else 0.0, name="covariance")
    steps = gaussians(5.0 if private else 0.0, 0.02, 500, "gradients")
    mechanisms = (
        replace(centre, released="sum of outer products of clipped rows"),
        replace(
            steps,
            released="sum of the sampled rows' clipped gradients, one per step",
            sensitivity=1.2,
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
        "mode": "benchmark",
        "seeds": [1, 2**127],
        "options": {"head": "sgd", "learning_rate": 0.1, "engine": "closed_form"},
        "epsilon_all_heads": 1.6 if math.isfinite(epsilon) else math.inf,
        **of_backbone(),
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


FREQUENCIES = {"head": "momentum", "class_priors": "released", "normalize": "l2"}
TUNED = {"head": "tuned", "base": {"head": "sgd"}, "search": {"learning_rate": [0.1, 1]}}
BATCHES = {"head": "sgd", "max_batch_grad_norm": 1.5}
UNPRICED = {"head": "fine_tune", "tune": "head", "search": {"space": {"learning_rate": [0.1, 1]}}}
EXACT = {"head": "sgd", "engine": "exact"}
SEARCH = Selection(mean=10, repeated=("gradients",))
NEAR: dict[str, Any] = {"threshold": 0.9, "train": {"near": 3, "exact": 1, "rows": 100}}
NONE_NEAR = NEAR | {"train": NEAR["train"] | {"near": 0}}
BY_FILE = Declared(study="lesions", files={"public_covariance": "m"}, hashes={"m": "ab" * 32})
OUTSIDE = {"backbone_options": {"family": "external", "model": "some"}}
DRAWN = {"subsample": {"fraction": 0.25, "public_seed": 7}}
RULE = {"rule": "the rule of `auto`", "head": "sgd", "n": 1600, "classes": 3}
COPIES = {"rows": 12, "most": 3}


def of_backbone(**facts: Any) -> dict[str, Any]:
    usual = {"backbone": "resnet50", "trained": True, "near_duplicate_check": "not run"}
    return {"public_data": usual | facts}


def state_with(**changes: Any) -> dict[str, Any]:
    """A statement as JSON has it; values of the plan may be changed too.

    Its releases are on all rows, unless `sampled`, and two heads are published.
    """
    made = plan(changes.pop("epsilon", 1.0))
    if not changes.pop("sampled", False):
        last = replace(made.mechanisms[1], sample_rate=1.0, count=20)
        made = replace(made, mechanisms=(made.mechanisms[0], last))
    if changes.get("options", {}).get("head") == "nonprivate":
        made = Plan(mechanisms=(), n=1600, epsilon=math.inf, delta=1e-5, accountant="pld")
    own = {key: changes.pop(key) for key in list(changes) if key in Plan.__dataclass_fields__}
    together = {} if made.private else {"epsilon_all_heads": math.inf}
    stated = state(plan=replace(made, **own), **together | changes)
    return cast("dict[str, Any]", json.loads(json.dumps(stated, allow_nan=False)))


def added(key: str, **fact: Any) -> set[str]:
    """The sentences that a fact adds to a list of the usual statement."""
    usual, stated = state_with(), state_with(**fact)
    assert len(stated[key]) == len(set(stated[key])), "nothing is said twice"
    return set(stated[key]) - set(usual[key])


# what a statement lists


def test_the_usual_statement_lists_what_every_statement_does() -> None:
    values = state_with()
    assert values["public"] == [
        statement.PUBLIC_N["image"],
        *statement.PUBLIC_FACTS,
        statement.FIXED_OPTIONS,
    ]
    assert values["not_covered"] == [
        *statement.NOT_COVERED,
        statement.COPIES_NOT_COVERED["image"],
        statement.FLOATS_NOT_COVERED,
    ]


# What each fact adds to what is public and to what is not covered, and nothing else.
ADDS: list[tuple[dict[str, Any], set[str], set[str]]] = [
    ({"sampled": True}, set(), set()),
    ({"seeds": [1], "epsilon_all_heads": 1.0}, set(), set()),
    (
        {"selection": SEARCH, "options": TUNED},
        {statement.PUBLIC_SEARCH},
        set(statement.TRIALS_NOT_COVERED),
    ),
    ({"network": True}, {statement.PUBLIC_NETWORK}, set(statement.NETWORK_NOT_COVERED)),
    ({"copies": COPIES}, set(), {statement.COUNTED_NOT_COVERED}),
    ({"copies": {"rows": 0, "most": 1}}, set(), set()),
    ({"declared": BY_FILE}, {statement.PUBLIC_FILES}, set()),
    ({"declared": Declared(study="lesions", files={}, hashes={})}, set(), set()),
    ({"chosen_from": RULE}, {statement.CHOSEN_BY_RULE.format(**RULE)}, set()),
    (of_backbone(near_duplicate_check=NEAR), set(), {statement.OVERLAP_NOT_COVERED}),
    (of_backbone(near_duplicate_check=NONE_NEAR), set(), {statement.OVERLAP_NOT_COVERED}),
    (
        of_backbone(**DRAWN),
        {statement.ROWS_DRAWN.format(fraction=0.25, public_seed=7)},
        {statement.DRAWN_NOT_COVERED},
    ),
    (
        {"unit": "patient"},
        {statement.PUBLIC_N["patient"]},
        {*statement.PATIENTS_NOT_COVERED, statement.COPIES_NOT_COVERED["patient"]},
    ),
    (
        {"unit": "group"},
        {statement.PUBLIC_N["group"]},
        {*statement.GROUPS_NOT_COVERED, statement.COPIES_NOT_COVERED["group"]},
    ),
    ({"unit": "row"}, set(), {statement.COPIES_NOT_COVERED["row"]}),
    ({"n": 100_001}, set(), set()),
    ({"patients": Patients(images=5, epsilon=2.5)}, set(), set()),
]


@pytest.mark.parametrize(("fact", "public", "not_covered"), ADDS)
def test_each_fact_adds_its_sentences(
    fact: dict[str, Any], public: set[str], not_covered: set[str]
) -> None:
    assert added("public", **fact) == public
    assert added("not_covered", **fact) == not_covered


@pytest.mark.parametrize("key", ["public", "not_covered"])
def test_facts_add_their_sentences_together_too(key: str) -> None:
    """Two facts say what each says, unless they are about the same thing."""
    place = ("public", "not_covered").index(key)
    for (one, *said), (other, *also) in itertools.combinations(ADDS, 2):
        if one.keys() & other.keys() or {"unit", "patients"} <= one.keys() | other.keys():
            continue
        assert added(key, **one, **other) == said[place] | also[place], (one, other)


def test_an_exact_engine_has_no_limits_of_floats() -> None:
    usual, exact = state_with(), state_with(options=EXACT)
    assert statement.FLOATS_NOT_COVERED not in exact["not_covered"]
    assert exact["engine_limits"] is None
    assert "closed_form" in usual["options"].values()
    assert usual["engine_limits"]


def test_choices_without_a_price_are_not_covered_and_no_options_are_fixed() -> None:
    values = state_with(options=UNPRICED, network=True)
    assert values["not_covered"][0].startswith("the options, because a search chose them")
    assert statement.FIXED_OPTIONS not in values["public"]
    searched = state_with(options=UNPRICED, network=True, selection=SEARCH)
    assert statement.PUBLIC_SEARCH not in searched["public"]


def test_a_release_names_no_seed_and_what_a_release_does_not_cover() -> None:
    values = state_with(mode="release", seeds=[1], epsilon_all_heads=1.0)
    assert "seeds" not in values
    assert "copies" not in values, "nobody counted them, and a release does not say so"
    assert values["not_covered"][: len(statement.RELEASE_NOT_COVERED)] == list(
        statement.RELEASE_NOT_COVERED
    )
    assert not set(statement.NOT_COVERED) & set(values["not_covered"]) - set(
        statement.RELEASE_NOT_COVERED
    )
    assert values["release"] == statement.MODES["release"]
    counted = state_with(mode="release", seeds=[1], epsilon_all_heads=1.0, copies=COPIES)
    assert counted["copies"] == COPIES
    benchmark = state_with()
    assert benchmark["copies"] == "not counted"
    assert benchmark["seeds"] == [f"{1:032x}", "8" + 31 * "0"]


def test_a_statement_of_an_unknown_mode_or_a_release_above_one_over_n_is_refused() -> None:
    with refuses(PrivacyError, "draft"):
        state_with(mode="draft")
    with refuses(PrivacyError, "100001"):
        state_with(mode="release", n=100_001)
    assert state_with(mode="release", n=100_000)["private"], "1/n itself"
    nothing = state_with(mode="release", n=100_001, epsilon=math.inf, realised_epsilon=math.inf)
    assert not nothing["private"], "without a promise delta means nothing"


# what a statement promises


def promise_of(**changes: Any) -> str:
    return str(state_with(**changes)["promise"])


def test_the_promise_has_the_budget_the_unit_and_the_releases() -> None:
    promise = promise_of()
    for words in (
        "The weights of any one of the heads are (1, 1e-05)-differentially private",
        "replacing the rows of one training image by null rows",
        "contribute nothing, with n fixed and public. They depend on the rows",
        "through 1 noisy release of covariance and 20 noisy releases of gradients, and",
        "all 2 heads together, as heads.safetensors holds them, are (1.6, 1e-05)",
    ):
        assert words in promise
    three = tuple(gaussians(9.0, name=name) for name in "abc")
    listed = "through 1 noisy release of a, 1 noisy release of b and 1 noisy release of c, and"
    assert listed in promise_of(mechanisms=three)


def test_one_head_is_promised_alone_and_three_together() -> None:
    one = promise_of(seeds=[1], epsilon_all_heads=1.0)
    assert one.startswith("The weights of the head are (1, 1e-05)")
    assert "together" not in one
    assert "all 3 heads together" in promise_of(seeds=[1, 2, 3], epsilon_all_heads=2.25)
    assert "are (2.25, 1e-05)" in promise_of(seeds=[1, 2, 3], epsilon_all_heads=2.25)
    network = promise_of(network=True)
    assert network.startswith("The trained parameters of any one of the networks are")
    assert "all 2 networks together, as the folder networks holds them" in network


@pytest.mark.parametrize(
    ("changes", "beside"),
    [
        ({"options": {"head": "feature_covariance"}}, "what its normalisation released"),
        ({"options": FREQUENCIES}, "how frequent the classes are"),
        (
            {"options": FREQUENCIES | {"normalize": "centred"}},
            "what its normalisation released and how frequent the classes are",
        ),
        (
            {"options": TUNED, "selection": SEARCH},
            "the options and the noisy score of the trial they are from",
        ),
    ],
)
def test_what_else_leaves_with_the_weights_is_promised_too(
    changes: dict[str, Any], beside: str
) -> None:
    assert f"heads, with {beside}, are (1, 1e-05)" in promise_of(**changes)


def test_a_search_depends_on_the_rows_through_a_random_number_of_trials() -> None:
    some = promise_of(selection=SEARCH, options=TUNED)
    assert "through 1 noisy release of covariance, and through each of a random number of" in some
    assert "trials (mean 10, geometric) of 20 noisy releases of gradients, of which" in some
    every = Selection(mean=2.5, repeated=("covariance", "gradients"))
    both = promise_of(selection=every, options=TUNED)
    assert "the rows through each of a random number of trials (mean 2.5, geometric) of" in both
    assert "of 1 noisy release of covariance and 20 noisy releases of gradients, of" in both
    values = state_with(selection=SEARCH, options=TUNED)
    assert values["selection"] == {
        "released": "the outputs of the trial with the largest noisy score",
        "trials": "geometric",
        "mean": 10,
        "repeated": ["gradients"],
    }
    assert [item["repeated"] for item in values["mechanisms"]] == [False, True]


@pytest.mark.parametrize(
    ("options", "clipped"),
    [
        ({"head": "sgd"}, "nothing was clipped."),
        (BATCHES, "only the mean gradient of each step, to norm 1.5."),
        (TUNED | {"base": BATCHES}, "of each step, to norm 1.5."),
        ({"head": "auto", "rule": 1, "chosen": BATCHES}, "of each step, to norm 1.5."),
        (
            TUNED | {"base": BATCHES, "search": {"max_batch_grad_norm": [1, 2]}},
            "of each step, to a searched norm.",
        ),
    ],
)
def test_without_noise_nothing_is_promised_and_the_clipping_is_named(
    options: dict[str, Any], clipped: str
) -> None:
    promise = promise_of(options=options, epsilon=math.inf)
    assert promise.startswith("No privacy is promised: epsilon is infinite, no noise was added")
    assert promise.endswith(clipped)


def test_a_method_that_is_not_private_or_not_priced_promises_nothing() -> None:
    plain = promise_of(options={"head": "nonprivate"})
    assert plain.startswith("No privacy is promised: this method is not private. Not covered: ")
    unpriced = promise_of(options=UNPRICED, network=True)
    assert "nothing prices the options, because a search chose them without noise" in unpriced
    assert "Had all been fixed beforehand, one seed's weights would be (1, 1e-05)" in unpriced


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": math.inf},
        {"options": {"head": "nonprivate"}},
        {"options": UNPRICED, "network": True},
        {"epsilon": math.inf, "patients": Patients(images=5, epsilon=math.inf)},
        {"options": UNPRICED, "patients": Patients(images=5, epsilon=2.5)},
        {"epsilon": math.inf, "copies": COPIES, "n": 100_001},
        {"options": UNPRICED, "n": 100_001},
        {"options": UNPRICED, "seeds": [1]},
    ],
)
def test_where_nothing_is_promised_no_number_says_otherwise(changes: dict[str, Any]) -> None:
    values = state_with(**changes)
    assert values["promise"].startswith("No privacy is promised")
    assert not values["private"]
    assert (values["delta"], "delta_above_one_over_n" in values) == (None, False)
    assert (values["epsilon_realised"], values["epsilon_all_heads"]) == ("inf", "inf")
    if values["patients"]:
        assert values["patients"] == {"images": 5, "epsilon": "inf"}
        assert values["allows"]["patient"]["balanced_accuracy"] == 1
    else:
        assert values["allows"]["patient"] is None
    assert (values["allows"]["all_heads"] is None) == (len(values["seeds"]) == 1)
    for block in filter(None, (values["allows"], values["allows"]["all_heads"])):
        assert (block["balanced_accuracy"], block["exact"]) == (1, False)
        assert block["true_positives"] == {"0.001": 1, "0.01": 1}
    assert values["allows"]["words"] == statement.EVERYTHING_ALLOWED
    assert "repeat the picture" not in values["promise"]
    if changes.get("epsilon") == math.inf:  # floats reveal nothing of noise that is not there
        assert values["engine_limits"] is None
        assert statement.FLOATS_NOT_COVERED not in values["not_covered"]


def test_a_delta_above_one_over_n_is_told_beside_the_promise() -> None:
    values = state_with(n=100_001)
    assert "But delta 1e-05 is above 1/n = 1e-05 (n = 100001 training rows)" in values["promise"]
    assert values["delta_above_one_over_n"] is True
    told = promise_of(n=100_001, unit="patient")
    assert "(n = 100001 training patients)" in told
    assert "publishes a random patient's rows" in told
    assert "delta_above_one_over_n" not in state_with(n=100_000)


@pytest.mark.parametrize(
    ("unit", "words"),
    [
        (
            "image",
            "12 of the training rows repeat the picture of an earlier row, and one picture "
            "occurs 3 times",
        ),
        (
            "patient",
            "12 of the training rows repeat a picture of another patient, and one picture "
            "occurs under 3 patients",
        ),
        ("row", "12 of the training rows repeat the vector of an earlier row"),
        (
            "group",
            "12 of the training rows repeat a vector of another group, and one vector "
            "occurs under 3 groups",
        ),
    ],
)
def test_copies_that_were_found_weaken_the_promise(unit: str, words: str) -> None:
    assert words in promise_of(unit=unit, copies=COPIES)
    assert "repeat" not in promise_of(unit=unit, copies={"rows": 0, "most": 1})
    assert "repeat" not in promise_of(unit=unit)


def test_a_permitted_risk_is_told_with_the_promise() -> None:
    values = state_with(risk={"advantage": 0.25})
    assert (
        "a permitted risk of any attack on one training image: advantage 0.25"
        in (values["promise"])
    )
    assert values["risk_target"] == {"advantage": 0.25}
    # mu^2 = 1 / 9^2 + 20 / 5^2
    assert values["mu"] == pytest.approx(math.sqrt(1 / 81 + 20 / 25), rel=1e-5)


@pytest.mark.parametrize(
    ("patients", "words", "right"),
    [
        (
            Patients(images=5, epsilon=2.5),
            "a patient with 5 training images, the most that any patient has here, the promise is "
            "(2.5, 1e-05)",
            "About a patient with 5 images the attacker guesses right at most 9",
        ),
        (Patients(images=5), "has here, nothing is promised", "may be right every time"),
        (
            Patients(images=5, epsilon=math.inf),
            "has here, nothing is promised",
            "About a patient with 5 images the attacker may be right every time",
        ),
        (
            Patients(images=None),
            "patients may have any number of images, and nothing is promised to a patient",
            "About a patient with any number of images the attacker may be right every time",
        ),
    ],
)
def test_what_one_image_s_promise_is_worth_to_a_patient(
    patients: Patients, words: str, right: str
) -> None:
    values = state_with(patients=patients)
    assert words in values["promise"]
    assert values["promise"].endswith(
        "are (1.6, 1e-05)-differentially private to one image; to a patient they cost more, which "
        "is not computed."
    )
    assert right in values["allows"]["words"]
    worth = "inf" if patients.epsilon == math.inf else patients.epsilon
    assert values["patients"] == {"images": patients.images, "epsilon": worth}


# mechanisms, files and public data


def test_mechanisms_are_stated_with_their_noise_and_share_of_the_budget() -> None:
    centre, steps = state_with()["mechanisms"]
    assert (centre["name"], steps["name"]) == ("covariance", "gradients")
    assert (steps["noise"], steps["sensitivity"], steps["noise_multiplier"]) == ("Gaussian", 1.2, 5)
    assert steps["noise_standard_deviation"] == pytest.approx(6.0)
    assert (steps["sampling"], steps["sample_rate"], steps["count"]) == ("all rows", 1, 20)
    assert steps["sensitivity_of"] == "one row, clipped"
    # parts of mu^2: 1 / 9^2 and 20 / 5^2
    whole = 1 / 81 + 20 / 25
    assert centre["budget_share"] == pytest.approx(1 / 81 / whole, abs=1e-6)
    assert steps["budget_share"] == pytest.approx(20 / 25 / whole, abs=1e-6)


@pytest.mark.parametrize(
    ("unit", "sampling", "of"),
    [
        ("image", "Poisson", "one row, clipped"),
        ("row", "Poisson", "one row, clipped"),
        ("patient", "Poisson, of patients", "the mean of one patient's rows"),
        ("group", "Poisson, of groups", "the mean of one group's rows"),
    ],
)
def test_a_sampled_mechanism_names_what_is_sampled_and_has_no_exact_share(
    unit: str, sampling: str, of: str
) -> None:
    centre, steps = state_with(unit=unit, sampled=True)["mechanisms"]
    assert steps["sampling"] == sampling
    assert centre["sampling"] == {"patient": "all patients", "group": "all groups"}.get(
        unit, "all rows"
    )
    assert steps["sensitivity_of"].startswith(of)
    assert centre["budget_share"] is steps["budget_share"] is None


def test_a_silent_mechanism_has_neither_noise_nor_sensitivity_nor_share() -> None:
    for item in state_with(epsilon=math.inf)["mechanisms"]:
        assert (item["noise"], item["sensitivity"], item["budget_share"]) == ("none", None, None)
    searched = state_with(selection=SEARCH, options=TUNED)["mechanisms"]
    assert [item["budget_share"] for item in searched] == [None, None]


def test_noise_that_has_no_price_is_not_read() -> None:
    values = state_with()
    values["mechanisms"][1]["noise"] = "Laplace"
    with refuses(PrivacyError, "gradients", "Laplace"):
        mechanisms_of(values)
    silent = state_with(epsilon=math.inf)
    with pytest.raises((PrivacyError, TypeError)):
        mechanisms_of(silent)


def test_declared_files_are_named_with_study_option_and_hash() -> None:
    values = state_with(declared=BY_FILE)
    assert values["declared_public"] == {"by": "lesions", "options": {"public_covariance": "m"}}
    assert values["public_files"] == {"m": "ab" * 32}
    plain = state_with(declared=Declared(study="lesions", files={}, hashes={}))
    assert "declared_public" not in plain
    assert plain["public_files"] == {}


def test_what_was_given_is_stated_as_it_was() -> None:
    values = state_with(
        chosen_from=RULE, checks={"prv": None, "rdp": math.inf}, check_notes={"prv": "too coarse"}
    )
    assert values["chosen_from"] == RULE
    assert values["checks"] == {"prv": None, "rdp": "inf"}
    assert values["check_notes"] == {"prv": "too coarse"}
    assert (values["n"], values["method"], values["mode"]) == (1600, "paper", "benchmark")
    assert (values["format"], values["format_version"]) == ("dpprobe-privacy", 4)
    assert values["neighbouring_relation"] == Plan.NEIGHBOURING
    assert "chosen_from" not in state_with()


@pytest.mark.parametrize(
    ("facts", "assumption"),
    [
        ({}, statement.PUBLIC_DATA),
        ({"trained": False}, statement.NO_PUBLIC_DATA),
        ({"near_duplicate_check": NONE_NEAR}, statement.PUBLIC_DATA),
        ({"near_duplicate_check": NEAR}, statement.PUBLIC_DATA + statement.OVERLAP_FOUND),
        # what was not pretrained has seen nothing
        ({"near_duplicate_check": NEAR, "trained": False}, statement.NO_PUBLIC_DATA),
    ],
)
def test_the_backbone_s_public_data_is_an_assumption_that_a_check_may_weaken(
    facts: dict[str, Any], assumption: str
) -> None:
    values = state_with(**of_backbone(**facts))["public_data"]
    assert values.pop("assumption") == assumption
    assert values == of_backbone(**facts)["public_data"]


@pytest.mark.parametrize("unit", ["image", "group"])
@pytest.mark.parametrize("trained", [True, False])
def test_vectors_from_outside_are_told_in_words_of_rows(unit: str, trained: bool) -> None:
    options = {"family": "external", "model": "some", "version": "2", "weights_sha256": "ab"}
    values = state_with(
        unit=unit,
        copies=COPIES,
        declared=BY_FILE,
        **of_backbone(**DRAWN, backbone_options=options, trained=trained),
    )
    assumption = values["public_data"]["assumption"]
    assert "outside dpprobe, by some 2 (SHA-256 of its weights: ab)." in assumption
    assert ("pretrained on public data" in assumption) == trained
    assert ("No data went into the model" in assumption) != trained
    assert values["not_covered"][0] == statement.VECTORS_NOT_COVERED
    texts = [values["promise"], values["allows"]["words"], *values["not_covered"]]
    texts = [text for text in [*texts, *values["public"]] if SEARCHED not in text]
    assert not re.search("image|picture", " ".join(texts), re.IGNORECASE)
    assert (
        unit_of_statement(values)
        == {
            "image": "one training row",
            "group": "one group (all of its training rows together)",
        }[unit]
    )


def test_images_are_told_in_words_of_images() -> None:
    values = state_with()
    assert unit_of_statement(values) == values["unit_of_privacy"] == "one training image"
    assert statement.VECTORS_NOT_COVERED not in values["not_covered"]
    plain = state_with(**of_backbone(**OUTSIDE))["public_data"]["assumption"]
    assert "outside dpprobe, by some." in plain
    assert statement.in_words_of_rows("An image of an image.") == "A row of a row."


def test_attacks_are_told_in_words_with_percents_rounded_up() -> None:
    allows = state_with()["allows"]
    # mu = sqrt(1 / 9^2 + 20 / 5^2) and sqrt(2) times it
    mu = math.sqrt(1 / 81 + 20 / 25)
    assert f"right at most {math.ceil(1000 * norm.cdf(mu / 2)) / 10:g}% of the" in allows["words"]
    for rate, words in ((0.001, "flags 0.1% of the images"), (0.01, "wrongly flags 1%")):
        best = math.ceil(1000 * norm.cdf(norm.ppf(rate) + mu)) / 10
        assert re.search(f"{words} .*?at most {best:g}%", allows["words"])
    both = math.ceil(1000 * norm.cdf(mu / 2**0.5)) / 10
    assert f"With all 2 heads the attacker guesses right at most {both:g}%" in allows["words"]
    assert allows["patient"] is None
    alone = state_with(seeds=[1], epsilon_all_heads=1.0)["allows"]
    assert alone["all_heads"] is None
    assert "With all" not in alone["words"]
    assert "of the patients that were not" in state_with(unit="patient")["allows"]["words"]


def test_attacks_are_bounded_by_the_mu_of_one_head_of_all_and_of_a_patient() -> None:
    """One release with noise 9, so that every bound is a formula of mu."""
    centre, _ = plan().mechanisms
    price = accountants.gaussian_epsilon(1 / 9, 1e-5)
    patients = Patients(images=5, epsilon=2.5)
    one = replace(plan(), mechanisms=(centre,), realised_epsilon=price, patients=patients)
    allows = state(plan=one)["allows"]
    for block, times in ((allows, 1), (allows["all_heads"], 2**0.5), (allows["patient"], 5)):
        right = norm.cdf(times / 9 / 2)
        assert right <= block["balanced_accuracy"] <= right + 1.1e-6
        assert block["exact"]
        for rate, found in block["true_positives"].items():
            best = norm.cdf(norm.ppf(float(rate)) + times / 9)
            assert best <= found <= best + 1.1e-6
    best_of = Selection(mean=10, repeated=("gradients",))
    searched = replace(plan(), selection=best_of, realised_epsilon=0.9, patients=patients)
    allows = state(plan=searched, options=TUNED)["allows"]
    for block, epsilon in ((allows, 0.9), (allows["all_heads"], 1.6), (allows["patient"], 2.5)):
        right = (math.exp(epsilon) + 1e-5) / (1 + math.exp(epsilon))
        assert right <= block["balanced_accuracy"] <= right + 1.1e-6
        assert not block["exact"]
