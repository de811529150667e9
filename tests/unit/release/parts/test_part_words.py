"""The sentences of release parts, which only this module asserts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.privacy.plan import Plan
from dpprobe.privacy.unit_words import unit_words
from dpprobe.release.parts.choice import measure as choice
from dpprobe.release.parts.cohort.measure import describe_cohort
from dpprobe.release.parts.evaluation import show
from dpprobe.release.parts.sites.measure import explain_sites
from dpprobe.release.parts.sites.several_sites import describe_sites
from dpprobe.release.stated_plans import explain_price
from dpprobe.release_part_registry import load_readers
from tests.support.bundles import LEDGER
from tests.support.releases import (
    calibrated,
    example,
    following,
    measured,
    of_sites,
    watched,
    with_tested,
)
from tests.unit.release.parts.evidence.test_measure import EVIDENCE

NAMED = {"kind": "cell", "dataset": "mnist", "name": "pixels/sgd/eps-inf"}
CHOICES: dict[str, dict[str, Any]] = {
    "nothing": {"cells": 0, "epsilon": None, "uncovered": None},
    "priced": {"cells": 12, "epsilon": 1.23456, "uncovered": None},
    "one": {"cells": 1, "epsilon": 7.0, "uncovered": None},
    "unstated": {"cells": 3, "epsilon": None, "uncovered": {"reason": choice.UNSTATED}},
    **{
        f"{reason} {kind}": {
            "cells": 2,
            "epsilon": None,
            "uncovered": {
                "reason": reason,
                "results": [{**NAMED, "kind": kind}],
                "more": int(kind == "cell"),
            },
        }
        for reason in (choice.NOT_PRIVATE, choice.NOT_KNOWN)
        for kind in choice.RESULT_KINDS
    },
    **{
        f"{others} fits": {"cells": 0, "epsilon": None, "uncovered": None, "other_fits": others}
        for others in (0, 1, 9)
    },
}


@pytest.fixture(scope="module")
def statement(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return example(tmp_path_factory.mktemp("words") / "v1")[1]


def statements(statement: dict[str, Any], unit: str, *, vectors: bool) -> list[dict[str, Any]]:
    """Returns statements with each part in each form, for one unit of privacy."""
    options = {"family": "external", "model": "some"}
    public = statement["public_data"] | ({"backbone_options": options} if vectors else {})
    plain = {**statement, "unit": unit, "public_data": public}
    few = measured() | {"interval": [0.2, 0.9]}
    hidden = measured("auc", 0.5) | {"interval": [0.0, 1.0]}
    left = measured("auc") | {"labels_left_out": 2}
    worst = {"name": "naevus", "recall": 0.3, "interval": [0.2, 0.35]}
    recalls = measured("macro_accuracy") | {"worst_class": worst}
    results = [measured(), few, hidden, left, recalls, measured("macro_accuracy"), None]
    earlier = [{"release": "first", "cohort": "a", "n": 500}]
    blocks: list[dict[str, Any]] = [
        *({"evaluation": each} for each in results),
        *({"choice": each} for each in CHOICES.values()),
        {"calibration": calibrated(), "monitor": watched()},
        {
            "calibration": calibrated() | {"epsilon": None},
            "monitor": watched() | {"together": None},
        },
        {"cohort": following()},
        {"cohort": describe_cohort("b", earlier, horizon=None, n=1500)},
        {"cohort": describe_cohort("a", [], horizon=4, n=1)},
        {"sites": of_sites()},
        {"sites": of_sites("a")},
        {"evidence": EVIDENCE},
        {"ledger": LEDGER | {"releases": 4, "exact": False}},
    ]
    return [with_tested({**plain, **each}) for each in blocks]


def sentences(statement: dict[str, Any]) -> Iterator[str]:
    for reader in load_readers().values():
        for value in reader.show(statement).values():
            if isinstance(value, str):
                yield value


@pytest.mark.parametrize("unit", Plan.UNITS)
@pytest.mark.parametrize("vectors", [False, True])
def test_every_sentence_is_filled_with_the_words_of_its_unit(
    statement: dict[str, Any], unit: str, vectors: bool
) -> None:
    words = unit_words(unit, vectors=vectors)
    absent = {"image", "picture"} if words.item == "row" else set()
    for each in statements(statement, unit, vectors=vectors):
        for sentence in sentences(each):
            assert sentence
            assert not re.search(r"[{}]|\bNone\b(?! of its)|  ", sentence), sentence
            assert not absent & set(re.findall("image|picture", sentence)), sentence
            assert "test row" not in sentence or words.one == "row", sentence


def test_results_that_no_epsilon_covers_are_named_and_the_rest_counted(
    statement: dict[str, Any],
) -> None:
    uncovered = {"reason": choice.NOT_PRIVATE, "results": [NAMED] * 3, "more": 2}
    block = {"cells": 12, "epsilon": None, "uncovered": uncovered}
    said = choice.explain_choice(block, statement)
    named = "mnist: pixels/sgd/eps-inf"
    assert f"not private ({named}, {named}, {named} and 2 more)." in said
    unknown = {**block, "uncovered": uncovered | {"reason": choice.NOT_KNOWN, "more": 0}}
    assert f"not known yet ({named}, {named}, {named})." in choice.explain_choice(
        unknown, statement
    )


# Numbers


EPSILONS = st.floats(0.01, 100)


def stated_epsilons(sentence: str) -> list[float]:
    return [float(each.rstrip(".,;")) for each in re.findall(r"epsilon ([\d.e+-]+)", sentence)]


@given(EPSILONS, EPSILONS, st.floats(1e-10, 0.1))
def test_no_sentence_promises_less_than_its_own_field(
    epsilon: float, together: float, delta: float
) -> None:
    unit = unit_words("patient")
    priced = {"epsilon": epsilon, "together": together}
    ledger = LEDGER | {"epsilon": epsilon, "delta": delta}
    result = measured() | {"epsilon": epsilon, "interval": [0.1, 0.9]}
    block = {"cells": 3, "epsilon": epsilon, "uncovered": None}
    statement = with_tested({"delta": delta, "epsilon_realised": together, "evaluation": result})
    composed = show.show_result(result, unit, statement)
    spent = load_readers()["ledger"].values
    assert spent is not None
    for sentence, fields in (
        (explain_price(priced, unit, "It", "All of it"), [epsilon, together]),
        (spent(ledger, unit, statement)["spent"], [epsilon]),
        (choice.explain_choice(block, statement), [epsilon]),
        (composed["composition"], [together, epsilon]),
    ):
        for shown, field in zip(stated_epsilons(sentence), fields, strict=True):
            assert field <= shown <= field * 1.0011
        for small in re.findall(r"delta ([\d.e-]+)", sentence):
            assert delta <= float(small.rstrip(",.")) <= delta * 1.0011
    (of,) = re.findall(r"an epsilon of ([\d.e+-]+)\.$", composed["released"])
    assert epsilon <= float(of) <= epsilon * 1.0011


# Absence: a sentence denies a fact only if the statement's field shows that it is absent.


@pytest.mark.parametrize("sites", [None, of_sites()])
@pytest.mark.parametrize("compared", [None, [], ["bytes"], ["bytes", "pixels"]])
def test_no_image_is_on_both_sides_only_by_the_comparison_that_is_stated(
    compared: list[str] | None, sites: dict[str, Any] | None
) -> None:
    tested = {"n": 375, "split": {"by": "source"}, "compared": compared}
    statement = {
        "epsilon_realised": 1.0,
        "test_units": tested,
        **({"sites": sites} if sites else {}),
    }
    said = show.show_result(measured(), unit_words("image"), statement)["composition"]
    assert "that was read" in said, "others are on no side"
    assert ("sides with equal" in said) == bool(compared)
    assert ("states no comparison" in said) != bool(compared)
    assert ("pixels were not compared" in said) == (compared == ["bytes"])
    if sites and compared:
        assert f"at {sites['packed_by']} no image" in said
        assert "other sites compared is" in said
    assert ("at its site" in said) == (sites is not None)


@pytest.mark.parametrize("releases", [1, 2])
@pytest.mark.parametrize("sites", [None, of_sites()])
def test_the_only_release_determines_the_ledgers_total(
    releases: int, sites: dict[str, Any] | None
) -> None:
    read = load_readers()["ledger"].values
    assert read is not None
    statement = {"sites": sites} if sites else {}
    said = read(LEDGER | {"releases": releases}, unit_words("image"), statement)["spent"]
    assert ("counted no other release" in said) == (releases == 1)
    assert (f"counted {releases} releases" in said) == (releases > 1)
    assert ("the ledger of b:" in said) == (sites is not None)


def test_a_choice_has_no_bound_for_a_patient_with_several_images(
    statement: dict[str, Any],
) -> None:
    for patients in (None, {"images": 3, "epsilon": 3.5}):
        said = choice.explain_choice(CHOICES["priced"], {**statement, "patients": patients})
        assert ("no bound is stated" in said) == (patients is not None)


def test_omissions_of_a_result_follow_from_its_counts() -> None:
    unit, stated = unit_words("image"), {"epsilon_realised": 1.0}
    hidden = {"interval": [0.0, 1.0], "labels_left_out": 1}
    few = measured("auc", 0.5) | hidden
    wide = few | {"labels_left_out": 0}
    unknown = measured("macro_accuracy")
    for block, told in ((few, "Too few rows"), (wide, ""), (unknown, "At least one class")):
        said = show.show_result(block, unit, with_tested({**stated, "evaluation": block}))
        assert told in said["released"]
        assert ("Too few rows" in said["released"]) == (block is few)


# Trust among sites, and the training data


@pytest.mark.parametrize("colluders", [1, 2])
def test_the_number_of_colluding_sites_is_stated(colluders: int) -> None:
    block = of_sites() | {"colluders": colluders}
    said = explain_sites(block, unit_words("patient"), {})["sites"]
    others = "one other site" if colluders == 1 else "2 other sites"
    assert said.startswith("The sites a, b and c trained this head together.")
    assert f"to a site's patients holds even if {others} and everyone else pool" in said
    assert "By the protocol, no" in said
    assert "One patient at two sites counts as two patients." in said
    assert said.endswith("The ledger is that of b; each site keeps its own.")


@pytest.mark.parametrize(("names", "of_one"), [("ab", True), ("abcd", False)])
def test_an_aggregator_is_trusted(names: str, of_one: bool) -> None:
    block = describe_sites(
        names,
        packed_by="a",
        aggregator="b",
        colluders=1,
        agreement="ab" * 32,
        smallest_share=None,
        coordinates=7,
    )
    said = explain_sites(block, unit_words("image"), {})["sites"]
    assert "b added all the noise, so b could compute the exact sum" in said
    assert ("which is that of one site" in said) == of_one
    assert "pool all they know" not in said


def test_shares_never_cost_more_than_their_sentence_says() -> None:
    """The smallest share of any release gives less than 10^-1000."""
    for share in (50.0, 90.0, 9e3):
        block = describe_sites(
            "abc",
            packed_by="a",
            aggregator=None,
            colluders=1,
            agreement="ab" * 32,
            smallest_share=share,
            coordinates=2**30,
        )
        said = explain_sites(block, unit_words("image"), {})["sites"]
        assert ("10^-1000" in said) == (block["log10_penalty"] < -1000), share


@pytest.mark.parametrize("horizon", [None, 4, 12])
@pytest.mark.parametrize("count", [0, 1, 3, 4, 11])
def test_a_cohort_is_described_with_all_earlier_ones(
    statement: dict[str, Any], count: int, horizon: int | None
) -> None:
    if horizon is not None and count >= horizon:
        return
    earlier = [{"release": f"r{n}", "cohort": f"c{n}", "n": 500 + n} for n in range(count)]
    block = describe_cohort("now", earlier, horizon=horizon, n=1000)
    reader = load_readers()["cohort"]
    said = reader.show({**statement, "n": 1000, "cohort": block})["cohort"]
    limit = "" if horizon is None else f" of at most {horizon}"
    assert said.startswith(f"Cohort now, number {count + 1}{limit} in its chain.")
    assert (f"learned from {block['units']:,} images, 1,000 of them new" in said) == (count > 0)
    if 0 < count < 4:
        assert ", ".join(f"r{n}" for n in range(count)) in said
    elif count:
        assert f"noisy sums of r0 to r{count - 1} it" in said
    covers = "all later releases too" if horizon is None else f"all {horizon} releases together"
    assert f"The epsilon of each image of one cohort covers {covers}" in said
