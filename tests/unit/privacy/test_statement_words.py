"""The sentences of privacy statements; no other test compares them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from dpprobe.heads.registry import method_options
from dpprobe.privacy.plan import Patients, Plan, Selection
from dpprobe.privacy.risk import target_words
from dpprobe.privacy.stated_facts import NOT_PUBLISHED, NOT_RUN
from dpprobe.privacy.statement import MODES
from dpprobe.privacy.statement_words import (
    describe_unpriced,
    explain_statement,
    format_epsilon,
    format_small,
    to_patients,
)
from dpprobe.project_files import read_yaml
from tests.support.statements import (
    BATCHES,
    BY_FILE,
    COPIES,
    DRAWN,
    EXACT,
    FREQUENCIES,
    NEAR,
    NONE_NEAR,
    OUTSIDE,
    RULE,
    SEARCH,
    TESTED,
    TUNED,
    UNPRICED,
    of_backbone,
    state_with,
)

TEMPLATES: Mapping[str, Mapping[str, str]] = read_yaml("statement.yaml")
RELEASE: dict[str, Any] = {"mode": "release", "seeds": [1], "epsilon_all_heads": 1.0}
# Together these statements use every name that a statement can have.
STATEMENTS: list[dict[str, Any]] = [
    {},
    RELEASE,
    {"options": EXACT},
    {"network": True, "options": UNPRICED},
    {"options": {"head": "nonprivate"}},
    {"options": BATCHES, "epsilon": math.inf},
    {"options": FREQUENCIES | {"normalize": "centred"}},
    {"options": TUNED, "selection": SEARCH},
    {"released_gain": True},
    {"copies": COPIES},
    {"declared": BY_FILE, "chosen_from": RULE, "test_units": TESTED | {"compared": None}},
    {
        "patients": Patients(images=5, epsilon=2.5),
        "risk": {"advantage": 0.25},
        "test_units": TESTED,
    },
    of_backbone(near_duplicate_check=NEAR),
    of_backbone(near_duplicate_check=NOT_PUBLISHED, **DRAWN) | RELEASE,
    of_backbone(trained=False),
]
ENGINES = [
    {"head": "sgd", "engine": "closed_form"},
    {"head": "fine_tune", "tune": "head", "engine": "opacus"},
    {"head": "fine_tune", "tune": "head", "engine": "ghost"},
    {"head": "fine_tune", "tune": "head", "engine": "ghost", "precision": "bfloat16"},
]


@cache
def every_statement(*, vectors: bool) -> list[dict[str, Any]]:
    """Returns statements of all kinds, for each unit, about images or vectors."""
    stated = []
    for unit in Plan.UNITS:
        for facts in STATEMENTS:
            if (unit in Plan.GROUPS and "patients" in facts) or (vectors and "network" in facts):
                continue  # patients as units have no second epsilon; vectors have no network
            public = facts.get("public_data") or of_backbone()["public_data"]
            public = {**public, **(OUTSIDE if vectors else {})}
            stated.append(state_with(**facts | {"unit": unit, "public_data": public}))
    return stated


def sentences(statement: dict[str, Any]) -> Iterator[str]:
    """Yields every sentence that explains a statement."""
    words = explain_statement(statement)
    for field in fields(words):
        value = getattr(words, field.name)
        if isinstance(value, str):
            yield value
        elif isinstance(value, tuple):
            yield from value
    yield from filter(None, [to_patients(statement)])


# names and sentences


def test_every_name_has_a_sentence_and_every_sentence_is_of_a_name() -> None:
    stated = every_statement(vectors=False) + every_statement(vectors=True)
    engines = {method_options(options).engine_limits for options in ENGINES}
    assert {*TEMPLATES["engine_limits"]} == engines
    assert {*TEMPLATES["near_duplicates"]} == {NOT_RUN, NOT_PUBLISHED}
    assert {*TEMPLATES["mode"]} == {*MODES}
    assert {*TEMPLATES["relation"]} == {values["relation"] for values in stated}
    for kind in ("public", "not_covered", "outputs"):
        assert {*TEMPLATES[kind]} == {name for values in stated for name in values[kind]}
    unpriced = {values["unpriced"] for values in stated} - {None}
    assert unpriced == {"search_without_noise", "nonprivate_head"}
    assert [describe_unpriced(name) in TEMPLATES["not_covered"].values() for name in unpriced]


@pytest.mark.parametrize("vectors", [False, True])
def test_every_sentence_is_filled(vectors: bool) -> None:
    for statement in every_statement(vectors=vectors):
        for sentence in sentences(statement):
            assert sentence
            assert not re.search(r"[{}]|\bNone\b|  ", sentence), sentence


def test_no_sentence_of_a_release_of_vectors_says_image_or_picture() -> None:
    for statement in every_statement(vectors=True):
        for sentence in sentences(statement):
            assert not re.search("image|picture", sentence, re.IGNORECASE), sentence


def test_a_head_of_another_package_is_described_by_its_names() -> None:
    statement = state_with() | {"engine_limits": "of_mine"}
    statement["not_covered"] = [*statement["not_covered"], "of_mine"]
    words = explain_statement(statement)
    assert (words.engine_limits, words.not_covered[-1]) == ("of mine", "of mine")


# numbers


@given(st.floats(1e-3, 1e3), st.floats(1e-12, 0.5))
def test_a_number_is_rounded_up_to_four_digits(epsilon: float, delta: float) -> None:
    for value, shown in ((epsilon, format_epsilon(epsilon)), (delta, format_small(delta))):
        assert value <= float(shown) <= value * 1.0011
        digits = shown.partition("e")[0].replace(".", "").lstrip("0").rstrip("0")
        assert len(digits) <= 4


@given(
    st.floats(0.01, 100),
    st.floats(1e-10, 0.1),
    st.floats(1, 5),
    st.floats(1, 5),
    st.floats(0.001, 10),
    st.floats(0.5, 1),
)
def test_no_sentence_promises_less_than_its_own_field(
    epsilon: float, delta: float, more: float, worth: float, mu: float, right: float
) -> None:
    """Checks all sentences that have a number, for values in a statement's whole range."""
    statement = state_with(patients=Patients(images=5, epsilon=2.5), risk={"advantage": 0.25})
    block = {"balanced_accuracy": right, "true_positives": {"0.001": right / 9, "0.01": right / 2}}
    statement |= {"epsilon_target": epsilon, "epsilon_realised": epsilon, "delta": delta}
    statement |= {"epsilon_all_heads": epsilon * more, "n": 2, "mu": mu}
    statement |= {"patients": {"images": 5, "epsilon": epsilon * worth}}
    statement |= {"allows": {**block, "all_heads": block, "patient": block}}
    words = explain_statement(statement)
    budgets = re.findall(r"\((\S+), (\S+)\)", words.promise)
    for shown, field in zip(budgets, (1, worth, more), strict=True):
        assert epsilon * field <= float(shown[0]) <= epsilon * field * 1.0011
        assert delta <= float(shown[1]) <= delta * 1.0011
    (gaussian,) = re.findall(r"(\S+)-Gaussian", words.promise)
    assert mu <= float(gaussian) <= mu * 1.0011
    percents = [float(each) / 100 for each in re.findall(r"at most ([\d.]+)%", words.attacks)]
    bounds = [right, right / 9, right / 2, right, *[right] * (right < 1)]
    for percent, bound in zip(percents, bounds, strict=True):
        assert bound - 1e-12 <= percent <= bound + 0.0011
    told = to_patients(statement)
    assert told is not None
    assert float(re.findall(r"epsilon (\S+) at", told)[0]) >= epsilon * worth
    (formal,) = re.findall(r"mu (\S+)\)", target_words(statement))
    assert float(formal) >= mu


def test_attacks_are_stated_in_percent() -> None:
    statement = state_with()
    words = explain_statement(statement).attacks
    # mu = sqrt(1 / 9^2 + 20 / 5^2) and sqrt(2) times it
    mu = math.sqrt(1 / 81 + 20 / 25)
    assert f"right at most {math.ceil(1000 * norm.cdf(mu / 2)) / 10:g}% of the" in words
    for rate, flags in ((0.001, "flags 0.1% of the images"), (0.01, "wrongly flags 1%")):
        best = math.ceil(1000 * norm.cdf(norm.ppf(rate) + mu)) / 10
        assert re.search(f"{flags} .*?at most {best:g}%", words)
    both = math.ceil(1000 * norm.cdf(mu / 2**0.5)) / 10
    assert f"With all 2 heads the attacker guesses right at most {both:g}%" in words
    alone = explain_statement(state_with(seeds=[1], epsilon_all_heads=1.0)).attacks
    assert "With all" not in alone
    assert "of the patients who were not" in explain_statement(state_with(unit="patient")).attacks


# the promise


def promise_of(**changes: Any) -> str:
    return explain_statement(state_with(**changes)).promise


@pytest.mark.parametrize(
    ("unit", "whole"),
    [
        ("image", "one training image"),
        ("row", "one training row"),
        ("patient", "one patient (all of their training images together)"),
        ("group", "one group (all of its training rows together)"),
    ],
)
def test_the_promise_has_the_budget_the_unit_and_the_releases(unit: str, whole: str) -> None:
    assert promise_of(unit=unit) == (
        "The weights of any one of the heads are (1, 1e-5)-differentially private with respect to "
        f"replacing the rows of {whole} by null rows that contribute nothing, with n fixed and "
        "public. They depend on the rows through 1 noisy release of covariance and 20 noisy "
        "releases of gradients, and through nothing else. Each seed is a fit of its own: "
        "publishing several composes, and all 2 heads together, as heads.safetensors holds them, "
        "are (1.6, 1e-5)-differentially private."
    )


def test_the_guarantee_covers_one_head_or_all_together() -> None:
    one = promise_of(seeds=[1], epsilon_all_heads=1.0)
    assert one.startswith("The weights of the head are (1, 1e-5)")
    assert "together" not in one
    three = promise_of(seeds=[1, 2, 3], epsilon_all_heads=2.25)
    assert "all 3 heads together, as heads.safetensors holds them, are (2.25, 1e-5)" in three
    network = promise_of(network=True)
    assert network.startswith("The trained parameters of any one of the networks are")
    assert "all 2 networks together, as the folder networks holds them" in network


@pytest.mark.parametrize(
    ("changes", "beside"),
    [
        ({"options": {"head": "feature_covariance"}}, "what its normalisation released"),
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
def test_the_guarantee_covers_other_released_statistics(
    changes: dict[str, Any], beside: str
) -> None:
    assert f"heads, with {beside}, are (1, 1e-5)" in promise_of(**changes)


def test_a_search_depends_on_the_rows_through_a_random_number_of_trials() -> None:
    some = promise_of(selection=SEARCH, options=TUNED)
    assert "through 1 noisy release of covariance, and through each of a random number of" in some
    assert "trials (mean 10, geometric) of 20 noisy releases of gradients, of which" in some
    every = Selection(mean=2.5, repeated=("covariance", "gradients"))
    both = promise_of(selection=every, options=TUNED)
    assert "the rows through each of a random number of trials (mean 2.5, geometric) of" in both
    assert "of 1 noisy release of covariance and 20 noisy releases of gradients, of" in both


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
def test_without_noise_no_privacy_is_promised_and_the_clipping_is_stated(
    options: dict[str, Any], clipped: str
) -> None:
    promise = promise_of(options=options, epsilon=math.inf)
    assert promise.startswith("No privacy is promised: epsilon is infinite, no noise was added")
    assert promise.endswith(clipped)


def test_nonprivate_and_unpriced_methods_promise_no_privacy() -> None:
    plain = promise_of(options={"head": "nonprivate"})
    assert plain.startswith("No privacy is promised: this method is not private. Not covered: ")
    unpriced = promise_of(options=UNPRICED, network=True)
    assert "nothing prices the options, because a search chose them without noise" in unpriced
    assert "Had all been fixed beforehand, one seed's weights would cost epsilon 1." in unpriced


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": math.inf},
        {"options": {"head": "nonprivate"}},
        {"options": UNPRICED, "patients": Patients(images=5, epsilon=2.5)},
        {"epsilon": math.inf, "copies": COPIES, "n": 100_001},
    ],
)
def test_attacks_are_unlimited_without_a_guarantee(changes: dict[str, Any]) -> None:
    words = explain_statement(state_with(**changes))
    assert words.promise.startswith("No privacy is promised")
    assert "repeat the picture" not in words.promise
    assert words.attacks.startswith("Nothing limits an attacker")


def test_a_delta_above_one_over_n_is_stated() -> None:
    promise = promise_of(n=100_001)
    assert "But delta 1e-05 is above 1/n = 1e-05 (n = 100001 training rows)" in promise
    told = promise_of(n=100_001, unit="patient")
    assert "(n = 100001 training patients)" in told
    assert "publishes a random patient's rows" in told
    assert "above" not in promise_of(n=100_000)


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


def test_a_permitted_risk_is_stated() -> None:
    promise = promise_of(risk={"advantage": 0.25})
    assert "a permitted risk of any attack on one training image: advantage 0.25;" in promise
    # mu^2 = 1 / 9^2 + 20 / 5^2, rounded up to four digits
    mu = math.ceil(1e4 * math.sqrt(1 / 81 + 20 / 25)) / 1e4
    assert f"They are {mu:g}-Gaussian differentially private." in promise


@pytest.mark.parametrize(
    ("patients", "promised", "right", "told"),
    [
        (
            Patients(images=5, epsilon=2.5),
            "a patient with 5 training images, the most that a patient may have here, the promise "
            "is (2.5, 1e-5)",
            "About a patient with 5 images the attacker guesses right at most 9",
            "epsilon 2.5 at delta 1e-5.",
        ),
        (
            Patients(images=5),
            "may have here, nothing is promised",
            "may be right every time",
            "so patients have no guarantee.",
        ),
        (
            Patients(images=5, epsilon=math.inf),
            "may have here, nothing is promised",
            "About a patient with 5 images the attacker may be right every time",
            "so patients have no guarantee.",
        ),
        (
            Patients(images=None),
            "patients may have any number of images, and nothing is promised to a patient",
            "About a patient with any number of images the attacker may be right every time",
            "so patients have no guarantee.",
        ),
    ],
)
def test_what_one_image_s_promise_is_worth_to_a_patient(
    patients: Patients, promised: str, right: str, told: str
) -> None:
    statement = state_with(patients=patients)
    words = explain_statement(statement)
    assert promised in words.promise
    assert words.promise.endswith(
        "are (1.6, 1e-5)-differentially private to one image; to a patient they cost more, which "
        "is not computed."
    )
    assert right in words.attacks
    assert (to_patients(statement) or "").endswith(told)
    assert to_patients(state_with()) is None


# the backbone's data and the rest


@pytest.mark.parametrize(
    ("facts", "said", "unsaid"),
    [
        ({}, "pretrained on public data", "no data went into"),
        ({"trained": False}, "no data went into", "pretrained"),
        ({"near_duplicate_check": NONE_NEAR}, "pretrained on public data", "look like"),
        ({"near_duplicate_check": NEAR}, "found private rows that look like", "no data went"),
        # without pretraining, no data was seen
        ({"near_duplicate_check": NEAR, "trained": False}, "no data went into", "look like"),
    ],
)
def test_the_backbone_s_public_data_is_an_assumption_that_a_check_may_weaken(
    facts: dict[str, Any], said: str, unsaid: str
) -> None:
    assumption = explain_statement(state_with(**of_backbone(**facts))).assumption
    assert said in assumption
    assert unsaid not in assumption


@pytest.mark.parametrize("trained", [True, False])
def test_external_vectors_are_stated_with_their_model(trained: bool) -> None:
    options = {"family": "external", "model": "some", "version": "2", "weights_sha256": "ab"}
    values = state_with(**of_backbone(backbone_options=options, trained=trained))
    assumption = explain_statement(values).assumption
    assert "outside dpprobe, by some 2 (SHA-256 of its weights: ab)." in assumption
    assert ("pretrained on public data" in assumption) == trained
    assert ("declared that no data went into the model" in assumption) != trained
    plain = explain_statement(state_with(**of_backbone(**OUTSIDE))).assumption
    assert "outside dpprobe, by some." in plain


def test_counts_of_near_duplicates_are_stated() -> None:
    both = NEAR | {"test": {"near": 0, "rows": 20}}
    words = explain_statement(state_with(**of_backbone(near_duplicate_check=both)))
    assert words.near_duplicates == (
        "3 of 100 train rows and 0 of 20 test rows look like public ones"
    )


def test_chosen_rows_and_rules_are_stated() -> None:
    words = explain_statement(state_with(chosen_from=RULE, **of_backbone(**DRAWN)))
    drawn, ruled = words.public[1], words.public[-1]
    assert "public seed 7, lies below the fraction 0.25" in drawn
    assert ruled.startswith("the rule of `auto`, fixed without looking at the private data")
    assert "head sgd" in ruled


@pytest.mark.parametrize(
    ("unit", "words"),
    [
        ("image", "one row, clipped"),
        ("row", "one row, clipped"),
        ("patient", "the mean of one patient's rows, each clipped: a row of m has weight 1 / m"),
        ("group", "the mean of one group's rows, each clipped: a row of m has weight 1 / m"),
    ],
)
def test_the_meaning_of_a_sensitivity_depends_on_the_unit(unit: str, words: str) -> None:
    assert explain_statement(state_with(unit=unit)).sensitivity == words


# absences: a sentence denies something only if a fact shows that it is absent


@pytest.mark.parametrize(
    ("compared", "listed", "stated"),
    [
        (["bytes", "pixels"], False, None),
        (["bytes"], True, True),
        ([], True, False),
        (None, True, False),
    ],
)
def test_pictures_on_both_sides_are_stated(
    compared: list[str] | None, listed: bool, stated: bool | None
) -> None:
    statement = state_with(test_units=TESTED | {"compared": compared}, **RELEASE)
    words = explain_statement(statement).not_covered
    said = dict(zip(statement["not_covered"], words, strict=True)).get("both_sides")
    assert (said is not None) == listed
    if said is not None:
        assert ("without equal bytes" in said) == stated
        assert ("states no comparison" in said) != stated


@pytest.mark.parametrize("earlier", [0, 2])
def test_a_cohort_states_only_its_own_rows(earlier: int) -> None:
    block = {"earlier": [{"release": "first", "cohort": "a", "n": 5}] * earlier}
    promise = explain_statement(state_with(**RELEASE) | {"cohort": block}).promise
    assert ("rows of this cohort" in promise) == bool(earlier)


def test_a_subsample_of_patients_images_names_the_patients_as_it_draws_by_them() -> None:
    words = explain_statement(state_with(patients=Patients(images=5), **of_backbone(**DRAWN)))
    assert "is the patient's where" in words.public[1]


def test_weights_are_assumed_and_vectors_declared_to_depend_on_no_private_data() -> None:
    assert "assumed not to depend" in explain_statement(state_with()).assumption
    assert (
        "It is declared that" in explain_statement(state_with(**of_backbone(**OUTSIDE))).assumption
    )
