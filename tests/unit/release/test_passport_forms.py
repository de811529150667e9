"""Forms and tables state what the bundle states; all other fields are visibly empty."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
import yaml

from dpprobe.project_files import read_yaml
from dpprobe.release.bundle import Bundle, CardFacts, read_bundle
from dpprobe.release.passport_forms import (
    BY_A_PERSON,
    EMPTY,
    NOT_STATED,
    answer_questions,
    find_stated,
    list_fields,
    list_forms,
    write_form,
)
from tests.support.bundles import write_example
from tests.support.deployment_registry import MARKDOWN, SCHEMA, find_faults, list_properties
from tests.support.refusals import check_tokens
from tests.support.releases import (
    HOSTILE,
    calibrated,
    following,
    measured,
    of_sites,
    watched,
    with_tested,
)
from tests.unit.release.parts.evidence.test_measure import EVIDENCE

DAY = date(2026, 11, 29)
WORST = {"name": "melanoma", "recall": 0.5, "interval": [0.4, 0.6]}
# Keys of the leaderboard's template, at the commit that resources/passport.yaml names.
PAPER = ["name", "url", "authors", "code", "venue", "venue_date", "claims"]
CLAIM = ["public_data", "model", "epsilon", "delta", "private_accuracy", "dp_accountant"]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return read_bundle(write_example(tmp_path_factory.mktemp("bundle") / "lesions_v1"))


def change(read: Bundle, **blocks: Any) -> Bundle:
    return replace(read, statement=with_tested({**read.statement, **blocks}))


def with_everything(read: Bundle) -> Bundle:
    facts = read.facts.model_copy(update={"card": CardFacts(intended_use="Sorting of pictures.")})
    return replace(
        change(
            read,
            patients={"images": 7, "epsilon": 4.25},
            evaluation=measured() | {"n": 1000},
            calibration=calibrated(),
            monitor=watched(),
            cohort=following(),
            predecessor={"name": "lesions_v0", "sha256": "ab" * 32},
            sites=of_sites(),
            ledger={**read.statement["ledger"], "releases": 3, "epsilon": 5.5},
        ),
        facts=facts,
    )


def of_patients(read: Bundle) -> Bundle:
    names = ["copies_of_units", "tested_copies_of_units"]
    return change(read, unit="patient", not_covered=names, evaluation=measured() | {"n": 120})


def entry(read: Bundle) -> Any:
    return yaml.safe_load(write_form(list_fields(read), "registry.yaml", DAY))


def claim(read: Bundle) -> Any:
    (paper,) = yaml.safe_load(write_form(list_fields(read), "leaderboard.yaml", DAY))
    (made,) = paper["claims"]
    assert (list(paper), list(made)) == (PAPER, CLAIM)
    return made


@pytest.mark.parametrize("whole", [False, True])
def test_an_entry_is_valid_and_shows_every_property(read: Bundle, whole: bool) -> None:
    read = with_everything(read) if whole else read
    text = write_form(list_fields(read), "registry.yaml", DAY)
    assert find_faults(yaml.safe_load(text)) == []
    shown = re.findall(r"^ *(?:# )?([a-z_]+):", text, flags=re.MULTILINE)
    assert sorted(shown) == sorted(list_properties())
    assert text.startswith("url_slug: "), "the registry's script reads it in the first line"


def test_an_entry_states_what_one_unit_pays_for_everything(read: Bundle) -> None:
    """It is more than the epsilon of the weights if test results or other releases cost more."""
    loss = entry(with_everything(read))["deployment"]["privacy_loss"]
    assert loss["privacy_parameters"] == {"epsilon": 5.5, "delta": 1e-5}
    said = loss["privacy_parameters_details"].splitlines()
    assert len(said) == 6
    check_tokens(said[0], "training unit", "epsilon 0.999996")
    check_tokens(said[1], "1e-5", "1,500 training images", "0.015 images")
    check_tokens(said[3], "Calibration", "test images", "epsilon 1")
    check_tokens(said[5], 3, 5.5)
    check_tokens(loss["privacy_unit_details"], "7 training images", "epsilon 4.25")


def test_an_entry_says_who_worked_together_and_whether_more_follow(read: Bundle) -> None:
    alone = entry(read)["deployment"]["deployment_model"]
    assert (alone["model_name"], alone["release_type"]) == ("Central", "One release")
    assert (alone["actors"], alone["release_type_details"]) == ("", "")
    several = entry(with_everything(read))["deployment"]["deployment_model"]
    assert (several["model_name"], several["release_type"]) == ("Federated", "Many releases")
    check_tokens(several["actors"], "a, b and c")
    assert "the release `lesions_v0`" in several["release_type_details"]


@pytest.mark.parametrize("whole", [False, True])
def test_exactly_the_empty_fields_of_a_form_are_marked(read: Bundle, whole: bool) -> None:
    read = with_everything(read) if whole else read
    for name, (texts, choices) in {
        "registry.yaml": (8, 2) if whole else (11, 2),
        "leaderboard.yaml": (6, 0) if whole else (7, 0),
    }.items():
        text = write_form(list_fields(read), name, DAY)
        values = leaves(yaml.safe_load(text))
        assert values.count("") == text.count(f"''  {EMPTY}\n") == texts
        assert len(re.findall(r"^ *# [a-z_]+: empty: you must write it$", text, re.M)) == choices
        assert text.count(EMPTY[2:]) == texts + choices
        assert None not in values


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, list) else [value]


@pytest.mark.parametrize(
    ("evaluation", "shown"),
    [
        (None, ""),
        (measured(), "81.25%"),
        (measured("auc", 0.98), "98.00% AUC"),
        (measured("macro_accuracy", 0.5), "50.00% macro_accuracy"),
    ],
)
def test_a_claim_has_the_released_result_in_the_leaderboard_s_form(
    read: Bundle, evaluation: Any, shown: str
) -> None:
    two = read.facts.model_copy(update={"class_names": ("a", "b")})
    made = claim(replace(change(read, evaluation=evaluation), facts=two))
    assert made == {
        "public_data": "none",
        "model": "pixels (Final Layer)",
        "epsilon": 0.999996,
        "delta": 1e-5,
        "private_accuracy": shown,
        "dp_accountant": "gaussian (exact mu-GDP)",
    }


def test_a_claim_names_public_data_and_what_others_must_know(read: Bundle) -> None:
    backbone = read.facts.backbone.model_copy(
        update={
            "name": "backbone_a",
            "options": {"family": "timm", "model": "vit_base_patch16_224.augreg_in21k"},
            "pretrained_tag": "augreg_in21k",
            "trained": True,
        }
    )
    public = {**read.statement["public_data"], "trained": True}
    other = replace(
        change(read, public_data=public, evaluation=measured()),
        facts=read.facts.model_copy(update={"backbone": backbone}),
    )
    made, text = claim(other), write_form(list_fields(other), "leaderboard.yaml", DAY)
    assert made["public_data"] == "augreg_in21k"
    assert made["model"] == "vit_base_patch16_224.augreg_in21k (Final Layer)"
    comment = [line for line in text.splitlines() if line.startswith("# ")]
    for said in ("lesions", "pretrained", "image", "null rows", "375"):
        assert any(said in line for line in comment), said


@pytest.mark.parametrize("name", list_forms())
@pytest.mark.parametrize("text", [*HOSTILE, "''", "name: ''", "null", "# x", "{published}"])
def test_no_text_of_a_person_changes_a_form(read: Bundle, name: str, text: str) -> None:
    """A text appears unchanged, and all other values and comments stay."""
    carded = read.facts.model_copy(update={"card": CardFacts(intended_use="use")})
    plain = write_form(list_fields(replace(read, facts=carded)), name, DAY)
    backbone = read.facts.backbone.model_copy(update={"name": text})
    facts = read.facts.model_copy(
        update={
            "name": text,
            "dataset": text,
            "class_names": (text,),
            "backbone": backbone,
            "card": CardFacts(intended_use=text),
        }
    )
    shown = write_form(list_fields(replace(read, facts=facts)), name, DAY)
    assert keys(yaml.safe_load(shown)) == keys(yaml.safe_load(plain))
    for said in list_markdown(yaml.safe_load(shown)):
        assert "<script" not in re.sub(r"`[^`]*`", "", said), "code is shown as it is"
    assert plain.count(EMPTY) == shown.count(EMPTY)
    if name == "leaderboard.yaml":
        model = claim(replace(read, facts=facts))["model"]
        assert set(re.findall(r"[a-z]+", text)) <= set(re.findall(r"[a-z]+", model))


def list_markdown(entry: Any, schema: Any = SCHEMA) -> list[str]:
    """Returns the texts of an entry that are Markdown by the schema."""
    if schema == MARKDOWN:
        return [entry]
    if not isinstance(entry, dict):
        return []
    of = schema.get("properties", {})
    return [text for name, item in entry.items() for text in list_markdown(item, of.get(name, {}))]


def find_names(schema: Any, wanted: Any) -> set[str]:
    """Returns the names of a schema's properties that equal `wanted`."""
    of = schema.get("properties", {})
    here = {name for name, each in of.items() if each == wanted}
    return here.union(*(find_names(each, wanted) for each in of.values()))


def keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: keys(item) for name, item in value.items()}
    return [keys(item) for item in value] if isinstance(value, list) else type(value)


def rows(page: str) -> dict[str, str]:
    """Maps each question of a page to its answer."""
    cells = [line[2:-2].split(" | ") for line in page.splitlines() if line.startswith("| ")]
    assert {len(row) for row in cells} == {3}
    return {ask: answer for _, ask, answer in cells if ask != "question"}


def questions() -> list[dict[str, Any]]:
    return [
        each for block in read_yaml("passport.yaml")["questions"] for each in block["questions"]
    ]


def test_each_question_has_a_row_and_none_is_answered_without_a_field(read: Bundle) -> None:
    found = rows(answer_questions(list_fields(read)))
    assert list(found) == [each["ask"] for each in questions()]
    fields = list_fields(read)
    for each in questions():
        answer = found[each["ask"]]
        assert ("fields" in each) != answer.startswith(BY_A_PERSON)
        stated = [field for field in each.get("fields", ()) if find_stated(fields, field)]
        for field in stated or each.get("fields", ()):
            assert f"(`{field}`)" in answer
        assert (NOT_STATED in answer) == ("fields" in each and not stated)
        if not stated:
            assert answer.endswith(f"you must write it (`answers.yaml: {each['id']}`)")


def test_each_field_of_a_question_is_a_field_of_some_release(read: Bundle) -> None:
    """A misspelt field would look like a fact that the bundle lacks."""
    recalls = {**measured(), "worst_class": WORST}
    chosen = {"rule": "rule 1", "head": "prototypes"}
    public = {**read.statement["public_data"], "subsample": {"fraction": 0.5, "public_seed": 1}}
    stated = change(
        with_everything(read),
        evaluation=recalls | {"n": 1000},
        evidence=EVIDENCE,
        chosen_from=chosen,
        public_data=public,
        engine_limits="closed_form",
        sites=of_sites("a"),
        options={"head": "auto", "loss": "softmax", "chosen": {"head": "sgd", "loss": "softmax"}},
    )
    weights = {"architecture": "vit", "pretrained_tag": "in21k", "weights_sha256": "ab" * 32}
    facts = stated.facts.model_copy(
        update={"backbone": stated.facts.backbone.model_copy(update=weights)}
    )
    whole, patients = list_fields(replace(stated, facts=facts)), list_fields(of_patients(read))
    for each in questions():
        for field in each.get("fields", ()):
            assert find_stated(whole, field) or find_stated(patients, field), field


def test_answers_equal_values_of_the_bundle(read: Bundle) -> None:
    """The release has patients, a test result, a calibration and sites."""
    found = rows(answer_questions(list_fields(with_everything(read))))
    for ask, wanted in {
        "How much may the weights cost a training unit?": ["0.999996", "one training image"],
        "How large is delta, and which accountant and noise stand behind it?": ["1e-05"],
        "What does the guarantee mean for a person with several records?": ["one training image"],
        "From which parameters was epsilon computed, so that others can compute it for another "
        "delta?": ["covariance; gradients", "8.34198226802239; 10.2168", "1; 6", "1.0; 1.0"],
        "What do all differentially private releases from this data cost one unit together?": [
            "3",
            "5.5",
            "1e-05",
            "image",
        ],
        "On how many units of privacy was the head trained?": [
            "lesions",
            "1500",
            "one training image",
            "a; b; c",
        ],
        "What does the system predict?": ["naevus; melanoma; keratosis", "false", "softmax"],
    }.items():
        shown = [part.split(" (`")[0] for part in found[ask].split("<br>")]
        assert shown[: len(wanted)] == wanted
    answers = " ".join(found.values())
    check_tokens(answers, "7 training images", "epsilon 4.25")
    check_tokens(answers, "a, b and c", "none (`privacy.json: public_files`)", "epsilon 0.2")
    assert any("1000 (`privacy.json: evaluation.n`)" in answer for answer in found.values())


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_a_person_breaks_out_of_its_cell(read: Bundle, text: str) -> None:
    plain = answer_questions(list_fields(read)).splitlines()
    facts = read.facts.model_copy(update={"card": CardFacts(intended_use=text), "name": text})
    shown = answer_questions(list_fields(replace(read, facts=facts))).splitlines()
    assert len(shown) == len(plain)
    bars = [len(re.findall(r"(?<!\\)\|", line)) for line in shown[1:]]
    assert bars == [len(re.findall(r"(?<!\\)\|", line)) for line in plain[1:]]
    assert "<script" not in "".join(shown)


def test_no_sentence_claims_compliance(read: Bundle) -> None:
    read = with_everything(read)
    page = answer_questions(list_fields(read)) + json.dumps(read_yaml("passport.yaml"))
    page += "".join(write_form(list_fields(read), name, DAY) for name in list_forms())
    for word in ("comply", "complies", "complian", "conform", "fulfil", "satisf", "lawful"):
        assert word not in page.lower()
