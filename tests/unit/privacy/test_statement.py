"""The privacy statement."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from scipy.stats import norm

from dpprobe.errors import PrivacyError
from dpprobe.privacy import accountants
from dpprobe.privacy.plan import Patients, Plan, Selection
from dpprobe.privacy.stated_facts import mechanisms_of
from dpprobe.privacy.statement import NOT_COVERED, Declared
from tests.support.refusals import refuses
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
    plan,
    state,
    state_with,
)


def test_a_reviewer_can_redo_the_accounting() -> None:
    values = json.loads(json.dumps(state(), allow_nan=False))
    again = accountants.compute_epsilon(mechanisms_of(values), values["delta"], "pld")
    assert again == values["epsilon_realised"] <= values["epsilon_target"] == 1.0


def texts_in(values: Any) -> Iterator[str]:
    """Yields every text and every key of a statement."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield from (key, *texts_in(value))
    elif isinstance(values, list):
        for value in values:
            yield from texts_in(value)
    elif isinstance(values, str):
        yield values


def added(key: str, **fact: Any) -> set[str]:
    """Returns the names that a fact adds to a list of the usual statement."""
    usual, stated = state_with(), state_with(**fact)
    assert len(stated[key]) == len(set(stated[key])), "nothing is named twice"
    return set(stated[key]) - set(usual[key])


# what a statement lists


def test_the_usual_statement_lists_what_every_statement_does() -> None:
    values = state_with()
    assert values["public"] == ["n", "classes", "options"]
    assert values["not_covered"] == [*NOT_COVERED["benchmark"], "copies_of_items", "low_bits"]
    assert values["outputs"] == ["weights"]


GROUPED = {"rows_per_unit", "other_names", "copies_of_units"}
# Each fact adds exactly these names to `public` and `not_covered`.
ADDS: list[tuple[dict[str, Any], set[str], set[str]]] = [
    ({"sampled": True}, set(), set()),
    ({"seeds": [1], "epsilon_all_heads": 1.0}, set(), set()),
    ({"selection": SEARCH, "options": TUNED}, {"search_space"}, {"trials"}),
    ({"network": True}, {"network"}, {"network_files"}),
    ({"copies": COPIES}, set(), {"copy_counts"}),
    ({"copies": {"rows": 0, "most": 1}}, set(), set()),
    ({"declared": BY_FILE}, {"files"}, set()),
    ({"declared": Declared(study="lesions", files={}, hashes={})}, set(), set()),
    ({"chosen_from": RULE}, {"rule"}, set()),
    ({"test_units": TESTED}, {"n_test"}, {"tested_copies_of_items"}),
    (
        {"test_units": TESTED | {"compared": ["bytes"]}},
        {"n_test"},
        {"tested_copies_of_items", "both_sides"},
    ),
    (of_backbone(near_duplicate_check=NEAR), set(), {"near_duplicates"}),
    (of_backbone(near_duplicate_check=NONE_NEAR), set(), {"near_duplicates"}),
    (of_backbone(**DRAWN), {"drawn_units"}, {"left_out_units"}),
    (of_backbone(**OUTSIDE), set(), {"dependent_vectors"}),
    ({"unit": "patient"}, {"units"}, GROUPED),
    ({"unit": "group"}, {"units"}, GROUPED),
    ({"unit": "row"}, set(), set()),
    ({"n": 100_001}, set(), set()),
    ({"patients": Patients(images=5, epsilon=2.5)}, set(), set()),
]


@pytest.mark.parametrize(("fact", "public", "not_covered"), ADDS)
def test_each_fact_adds_its_names(
    fact: dict[str, Any], public: set[str], not_covered: set[str]
) -> None:
    assert added("public", **fact) == public
    assert added("not_covered", **fact) == not_covered


@pytest.mark.parametrize("key", ["public", "not_covered"])
def test_facts_add_their_names_together_too(key: str) -> None:
    """Two facts add the names of both, unless they are about the same thing."""
    place = ("public", "not_covered").index(key)
    for (one, *said), (other, *also) in itertools.combinations(ADDS, 2):
        both = one.keys() | other.keys()
        if one.keys() & other.keys() or len(both & {"unit", "patients", "test_units"}) > 1:
            continue
        assert added(key, **one, **other) == said[place] | also[place], (one, other)


@pytest.mark.parametrize(
    ("fact", "names"),
    [
        ({"unit": "patient"}, {"tested_copies_of_units"}),
        ({"unit": "group"}, {"tested_copies_of_units"}),
        ({"patients": Patients(images=5)}, {"tested_copies_of_items", "tested_patients"}),
    ],
)
def test_measurements_protect_only_test_units(fact: dict[str, Any], names: set[str]) -> None:
    tested, untested = (state_with(**fact, **more) for more in ({"test_units": TESTED}, {}))
    assert set(tested["not_covered"]) - set(untested["not_covered"]) == names
    release = {"mode": "release", "seeds": [1], "epsilon_all_heads": 1.0}
    assert state_with(**fact, **release, test_units=TESTED)["test_units"] == TESTED


@pytest.mark.parametrize(
    ("changes", "outputs"),
    [
        ({"network": True}, ["network"]),
        ({"options": {"head": "feature_covariance"}}, ["weights", "normalisation"]),
        ({"options": FREQUENCIES}, ["weights", "class_frequencies"]),
        (
            {"options": FREQUENCIES | {"normalize": "centred"}},
            ["weights", "normalisation", "class_frequencies"],
        ),
        ({"released_gain": True}, ["weights", "student_gain"]),
        ({"options": TUNED, "selection": SEARCH}, ["weights", "best_trial"]),
    ],
)
def test_other_released_statistics_are_named(changes: dict[str, Any], outputs: list[str]) -> None:
    assert state_with(**changes)["outputs"] == outputs


def test_an_exact_engine_has_no_limits_of_floats() -> None:
    usual, exact = state_with(), state_with(options=EXACT)
    assert "low_bits" not in exact["not_covered"]
    assert exact["engine_limits"] is None
    assert usual["engine_limits"] == "closed_form"


def test_unpriced_choices_are_listed_as_not_covered_and_their_options_not_as_public() -> None:
    values = state_with(options=UNPRICED, network=True)
    assert values["unpriced"] == values["not_covered"][0] == "search_without_noise"
    assert "options" not in values["public"]
    searched = state_with(options=UNPRICED, network=True, selection=SEARCH)
    assert "search_space" not in searched["public"]
    plain = state_with(options={"head": "nonprivate"})
    assert plain["unpriced"] == plain["not_covered"][0] == "nonprivate_head"


def test_a_release_names_no_seed_and_what_a_release_does_not_cover() -> None:
    values = state_with(mode="release", seeds=[1], epsilon_all_heads=1.0)
    assert "seeds" not in values
    assert "copies" not in values, "nobody counted them, and a release does not say so"
    assert values["not_covered"] == [*NOT_COVERED["release"], "copies_of_items", "low_bits"]
    assert values["mode"] == "release"
    counted = state_with(mode="release", seeds=[1], epsilon_all_heads=1.0, copies=COPIES)
    assert counted["copies"] == COPIES
    benchmark = state_with()
    assert benchmark["copies"] is None
    assert benchmark["seeds"] == [f"{1:032x}", "8" + 31 * "0"]


def test_a_statement_of_an_unknown_mode_or_a_release_above_one_over_n_is_refused() -> None:
    with refuses(PrivacyError, "draft", "benchmark", "release"):
        state_with(mode="draft")
    with refuses(PrivacyError, "delta 1e-05", "1/n", "n = 100001"):
        state_with(mode="release", n=100_001)
    assert state_with(mode="release", n=100_000)["private"], "1/n itself"
    nothing = state_with(mode="release", n=100_001, epsilon=math.inf, realised_epsilon=math.inf)
    assert not nothing["private"], "without a promise delta means nothing"


@pytest.mark.parametrize("unit", Plan.UNITS)
@pytest.mark.parametrize("mode", ["benchmark", "release"])
def test_a_statement_holds_no_sentence(unit: str, mode: str) -> None:
    """Each text is a name, a number or a hash; only labels of accountants have several words."""
    values = state_with(
        unit=unit,
        mode=mode,
        selection=SEARCH,
        options=TUNED,
        copies=COPIES,
        declared=BY_FILE,
        chosen_from=RULE,
        test_units=TESTED,
        **of_backbone(**DRAWN, **OUTSIDE, near_duplicate_check=NEAR),
    )
    labels = {values["accountant"], *values["checks"], RULE["rule"]}
    assert {text for text in texts_in(values) if " " in text} <= labels
    assert not labels & {text for text in texts_in(values) if len(text.split()) > 5}
    assert not [item for item in values["mechanisms"] if "released" in item]


# promises of a statement


def test_a_search_repeats_mechanisms_a_random_number_of_times() -> None:
    values = state_with(selection=SEARCH, options=TUNED)
    assert values["selection"] == {"trials": "geometric", "mean": 10, "repeated": ["gradients"]}
    assert [item["repeated"] for item in values["mechanisms"]] == [False, True]
    every = Selection(mean=2.5, repeated=("covariance", "gradients"))
    both = state_with(selection=every, options=TUNED)
    assert [item["repeated"] for item in both["mechanisms"]] == [True, True]
    assert both["selection"]["mean"] == 2.5


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": math.inf},
        {"options": {"head": "nonprivate"}},
        {"options": UNPRICED, "network": True},
        {"epsilon": math.inf, "patients": Patients(images=5, epsilon=math.inf)},
        {"options": UNPRICED, "patients": Patients(images=5, epsilon=2.5)},
        {"epsilon": math.inf, "copies": COPIES, "n": 100_001},
        {"epsilon": math.inf, "options": BATCHES},
        {"options": UNPRICED, "n": 100_001},
        {"options": UNPRICED, "seeds": [1]},
    ],
)
def test_a_result_without_a_guarantee_has_no_numbers(changes: dict[str, Any]) -> None:
    values = state_with(**changes)
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
    if changes.get("epsilon") == math.inf:  # without noise, floats cannot reveal it
        assert values["engine_limits"] is None
        assert "low_bits" not in values["not_covered"]


def test_a_delta_above_one_over_n_is_stated() -> None:
    assert state_with(n=100_001)["delta_above_one_over_n"] is True
    assert "delta_above_one_over_n" not in state_with(n=100_000)


def test_a_permitted_risk_is_stated_with_its_mu() -> None:
    values = state_with(risk={"advantage": 0.25})
    assert values["risk_target"] == {"advantage": 0.25}
    # mu^2 = 1 / 9^2 + 20 / 5^2
    assert values["mu"] == pytest.approx(math.sqrt(1 / 81 + 20 / 25), rel=1e-5)


@pytest.mark.parametrize(
    "patients",
    [
        Patients(images=5, epsilon=2.5),
        Patients(images=5),
        Patients(images=5, epsilon=math.inf),
        Patients(images=None),
    ],
)
def test_what_one_image_s_promise_is_worth_to_a_patient(patients: Patients) -> None:
    values = state_with(patients=patients)
    worth = "inf" if patients.epsilon == math.inf else patients.epsilon
    assert values["patients"] == {"images": patients.images, "epsilon": worth}
    right = values["allows"]["patient"]["balanced_accuracy"]
    assert (right < 1) == (patients.epsilon == 2.5)


# mechanisms, files and public data


def test_mechanisms_are_stated_with_their_noise_and_share_of_the_budget() -> None:
    centre, steps = state_with()["mechanisms"]
    assert (centre["name"], steps["name"]) == ("covariance", "gradients")
    assert (steps["noise"], steps["sensitivity"], steps["noise_multiplier"]) == ("Gaussian", 1.2, 5)
    assert steps["noise_standard_deviation"] == pytest.approx(6.0)
    assert (steps["sample_rate"], steps["count"]) == (1, 20)
    # parts of mu^2: 1 / 9^2 and 20 / 5^2
    whole = 1 / 81 + 20 / 25
    assert centre["budget_share"] == pytest.approx(1 / 81 / whole, abs=1e-6)
    assert steps["budget_share"] == pytest.approx(20 / 25 / whole, abs=1e-6)


@pytest.mark.parametrize("unit", Plan.UNITS)
def test_a_sampled_mechanism_has_its_rate_and_no_exact_share(unit: str) -> None:
    centre, steps = state_with(unit=unit, sampled=True)["mechanisms"]
    assert (centre["sample_rate"], steps["sample_rate"]) == (1, 0.02)
    assert centre["budget_share"] is steps["budget_share"] is None


def test_a_mechanism_without_noise_has_no_sensitivity_or_budget_share() -> None:
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


def test_given_options_are_stated_unchanged() -> None:
    values = state_with(
        chosen_from=RULE, checks={"prv": None, "rdp": math.inf}, check_notes={"prv": "too coarse"}
    )
    assert values["chosen_from"] == RULE
    assert values["checks"] == {"prv": None, "rdp": "inf"}
    assert "check_notes" not in values, "a note is a sentence, which the log says"
    assert (values["n"], values["method"], values["mode"]) == (1600, "paper", "benchmark")
    assert (values["format"], values["format_version"]) == ("dpprobe-privacy", 5)
    assert (values["unit"], values["relation"]) == ("image", "zero_out")
    assert "chosen_from" not in state_with()


def test_the_backbone_s_public_data_is_stated_as_it_was_given() -> None:
    for facts in ({}, {"trained": False}, {"near_duplicate_check": NEAR}, OUTSIDE):
        values = state_with(**of_backbone(**facts))
        assert values["public_data"] == of_backbone(**facts)["public_data"]


def test_attacks_are_bounded_by_the_trade_off_of_one_gaussian() -> None:
    allows = state_with()["allows"]
    # mu = sqrt(1 / 9^2 + 20 / 5^2) and sqrt(2) times it
    mu = math.sqrt(1 / 81 + 20 / 25)
    assert allows["balanced_accuracy"] == pytest.approx(norm.cdf(mu / 2), abs=1.1e-6)
    for rate, found in allows["true_positives"].items():
        best = norm.cdf(norm.ppf(float(rate)) + mu)
        assert found == pytest.approx(best, abs=1.1e-6)
    both = allows["all_heads"]["balanced_accuracy"]
    assert both == pytest.approx(norm.cdf(mu / 2**0.5), abs=1.1e-6)
    assert allows["patient"] is None
    assert state_with(seeds=[1], epsilon_all_heads=1.0)["allows"]["all_heads"] is None


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
