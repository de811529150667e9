"""A user's answers fill a passport's documents, are marked there, and are refused if faulty."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpprobe.errors import ConfigError
from dpprobe.release.bundle import Bundle, CardFacts, read_bundle
from dpprobe.release.passport import write_passport
from dpprobe.release.passport_answers import list_questions, read_answers, write_answers
from dpprobe.release.passport_forms import (
    WRITTEN,
    answer_questions,
    list_fields,
    list_forms,
    write_form,
)
from tests.support.bundles import write_example
from tests.support.command_line import run_main
from tests.support.deployment_registry import find_faults
from tests.support.refusals import check_tokens, refuses
from tests.support.releases import HOSTILE
from tests.unit.release.verification.test_verify import documented

DAY = date(2026, 11, 29)
# A valid answer for each question that does not accept any text.
ANSWERS: dict[str, Any] = {
    "organisation": ["Clinic A", "Clinic B"],
    "authors": ["Ada", "Grace"],
    "contact": "privacy@clinic.example",
    "sector": "Healthcare",
    "data_source": "Static",
    "paper_url": "https://arxiv.org/abs/2601.17189",
    "code_url": "https://git.example/a?b=c#d",
    "venue_date": "2026-07-01",
}

IDS = [
    "epsilon_choice",
    "harm_outside_unit",
    "other_publications",
    "groups",
    "bias",
    "classes_fixed",
    "synthetic_data",
    "trust",
    "trust_holds",
    "data_security",
    "data_access",
    "data_needed",
    "usefulness",
    "sources_chosen",
    "pseudonyms",
    "review",
    "other_attacks",
    "impact_assessment",
    "likelihood",
    "legal_basis",
    "intended_use",
    "design_choices",
    "computers",
    "people",
    "data_origin",
    "oversight",
    "later_changes",
    "robustness",
    "test_logs",
    "cybersecurity",
    "organisation",
    "authors",
    "contact",
    "license",
    "region",
    "sector",
    "data_source",
    "sources",
    "paper_title",
    "paper_url",
    "code_url",
    "venue",
    "venue_date",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_example(tmp_path_factory.mktemp("bundle") / "lesions_v1")
    documented(made)
    return made


@pytest.fixture(scope="module")
def read(folder: Path) -> Bundle:
    return read_bundle(folder)


def fill(path: Path, answers: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(answers, allow_unicode=True), encoding="utf-8")
    return path


def everything(path: Path) -> dict[str, Any]:
    """Returns an answer to each question of a form."""
    return {name: ANSWERS.get(name, f"answer {name}") for name in yaml.safe_load(path.read_text())}


def test_a_form_has_each_open_question_once(read: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "new/answers.yaml"
    number = write_answers(read, path)
    text = path.read_text()
    ids = re.findall(r"^(\w+): (?:''|\[\])$", text, re.MULTILINE)
    page = answer_questions(list_fields(read))
    assert len(ids) == len(set(ids)) == number
    assert set(re.findall(r"you must write it \(`answers.yaml: (\w+)`\)", page)) <= set(ids)
    for name in ids:
        question = list_questions()[name]
        assert f"# {question.ask}\n# In {'; '.join(question.places)}\n" in text
        assert question.places, name
    assert Counter(re.findall(r"registry.yaml: registry_authors|leaderboard.yaml: authors", text))
    assert read_answers(read, path) == {}, "nothing is filled yet"


def test_ids_that_people_have_filled_stay() -> None:
    """Never rename or remove ids, only add: otherwise answers for earlier releases are refused."""
    assert list(list_questions()) == IDS


def test_every_answer_reaches_each_place_and_is_marked_as_a_person_s(
    read: Bundle, folder: Path, tmp_path: Path
) -> None:
    write_answers(read, tmp_path / "form.yaml")
    answers = everything(tmp_path / "form.yaml")
    made = write_passport(
        folder, tmp_path / "passport", published=DAY, answers=fill(tmp_path / "a.yaml", answers)
    )
    page = (made / "questions.md").read_text()
    assert "you must write it" not in page
    crate = json.loads((made / "ro-crate-metadata.json").read_text())
    texts = {name: (made / name).read_text() for name in list_forms()} | {
        "questions.md": page,
        "ro-crate-metadata.json": json.dumps(crate),
    }
    for name, answer in answers.items():
        for place in list_questions()[name].places:
            shown = texts[place.partition(":")[0]]
            for item in answer if isinstance(answer, list) else [answer]:
                assert item in shown or item.replace("_", r"\_") in shown, (name, place)
        if any(place.startswith("questions.md") for place in list_questions()[name].places):
            assert f"({WRITTEN}, `answers.yaml: {name}`)" in page
    entry = yaml.safe_load(texts["registry.yaml"])
    assert find_faults(entry) == []
    assert entry["deployment"]["administrative"]["registry_authors"] == ["Ada", "Grace"]
    assert entry["deployment"]["basic"]["data_curators"] == ["Clinic A", "Clinic B"]
    assert entry["deployment"]["basic"]["data_product_sector"] == "Healthcare"
    assert texts["registry.yaml"].count("empty: you must write it") == 1, "url_slug alone"
    found = {each["@id"]: each for each in crate["@graph"]}
    assert len(found) == len(crate["@graph"])
    named = {
        key: [found[each["@id"]] for each in found["./"][key]]
        for key in ("author", "publisher", "contactPoint")
    }
    assert [each["name"] for each in named["author"]] == ["Ada", "Grace"]
    assert {each["@type"] for each in named["publisher"]} == {"Organization"}
    assert named["contactPoint"][0]["email"] == "privacy@clinic.example"
    assert found["#license"]["name"] == "answer license"


@pytest.mark.parametrize("text", [*HOSTILE, "{bundle.json: name}", "''", "x: ''", "<b>|</b>"])
def test_no_answer_breaks_out_of_its_place(read: Bundle, tmp_path: Path, text: str) -> None:
    plain = "plain"
    answers = {"epsilon_choice": text, "trust": text, "authors": [text], "region": text}
    path = tmp_path / "a.yaml"
    try:
        written = read_answers(read, fill(path, answers))
    except ConfigError as error:  # line breaks and control characters
        check_tokens(str(error), path)
        return
    usual = list_fields(
        read, read_answers(read, fill(path, dict.fromkeys(answers, plain) | {"authors": [plain]}))
    )
    shown = list_fields(read, written)
    pages = [answer_questions(each).splitlines() for each in (usual, shown)]
    bars = [[len(re.findall(r"(?<!\\)\|", line)) for line in page] for page in pages]
    assert bars[0] == bars[1]
    assert "<b>" not in "".join(pages[1])
    entry = yaml.safe_load(write_form(shown, "registry.yaml", DAY))
    assert find_faults(entry) == []
    assert entry["deployment"]["basic"]["data_product_region"] == written["region"]
    assert entry["deployment"]["administrative"]["registry_authors"] == written["authors"]
    assert yaml.safe_load(write_form(shown, "leaderboard.yaml", DAY))[0]["url"] == ""


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("epsilon_chioce: x", ["epsilon_chioce", "epsilon_choice"]),
        ("zzzzzz: x", ["zzzzzz", "id", "remove"]),
        ("epsilon_choice: 12", ["epsilon_choice", "12", "text"]),
        ("epsilon_choice: true", ["epsilon_choice", "true", "text"]),
        ("epsilon_choice: [a, b]", ["epsilon_choice", "list", "one text"]),
        ("epsilon_choice: {a: b}", ["epsilon_choice", "mapping", "one text"]),
        ("authors: Ada", ["authors", "Ada", "list"]),
        ("authors: [Ada, [b]]", ["authors", "list", "one text"]),
        ('epsilon_choice: "a\\nb"', ["epsilon_choice", "one line"]),
        ('epsilon_choice: "a\\u0007b"', ["epsilon_choice", "control"]),
        ('epsilon_choice: "a\\u202eb"', ["epsilon_choice", "invisible"]),
        (f"epsilon_choice: {'a' * 5000}", ["epsilon_choice", 4000]),
        ("contact: the clinic", ["contact", "the clinic", "privacy@clinic.example"]),
        ("contact: a@b", ["contact", "a@b", "privacy@clinic.example"]),
        ("paper_url: javascript:alert(1)", ["paper_url", "javascript:alert(1)", "https://"]),
        ("code_url: 'https://'", ["code_url", "https://"]),
        ("code_url: 'https://a.example/b c'", ["code_url", "https://"]),
        ("code_url: 'https://[a/'", ["code_url", "https://"]),
        ("venue_date: 1/1/2026", ["venue_date", "1/1/2026", "2026-11-29"]),
        ("venue_date: 2026-13-01", ["a.yaml", "month"]),
        ("venue_date: '2026-02-30'", ["venue_date", "2026-02-30", "2026-11-29"]),
        ("sector: Medicine", ["sector", "Medicine", "Healthcare"]),
        ("region: &a EU\nvenue: *a", ["venue", "alias"]),
        ("authors: [&a Ada, *a]", ["authors", "alias"]),
        ("<<: {region: EU}", ["<<", "id"]),
        ("region: EU\nregion: US", ["region", "twice", "line 1"]),
        ("? [a]\n: b", ["a.yaml", "key"]),
        ("- region", ["a.yaml", "--write-answers"]),
        ("", ["a.yaml", "--write-answers"]),
        ("region: !!python/object:os.system x", ["a.yaml"]),
    ],
)
def test_a_faulty_answer_is_refused_with_its_id_value_and_remedy(
    read: Bundle, tmp_path: Path, text: str, tokens: list[Any]
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text, encoding="utf-8")
    with refuses(ConfigError, *tokens):
        read_answers(read, path)


def test_the_passport_form_omits_questions_that_the_bundle_answers(
    read: Bundle, tmp_path: Path
) -> None:
    card = CardFacts(intended_use="Sorting.", contact="Clinic", license="mit")
    carded = replace(read, facts=read.facts.model_copy(update={"card": card}))
    write_answers(carded, tmp_path / "form.yaml")
    asked = yaml.safe_load((tmp_path / "form.yaml").read_text())
    for name, value in (("intended_use", "x"), ("contact", "a@b.example"), ("license", "mit")):
        path = fill(tmp_path / "a.yaml", {name: value})
        assert name not in asked
        assert read_answers(read, path) == {name: value}
        with refuses(ConfigError, name, f"bundle.json: card.{name}", "remove"):
            read_answers(carded, path)
        assert read_answers(carded, fill(path, {name: ""})) == {}


def test_the_command_writes_the_form_or_reads_it(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    form, made = tmp_path / "answers.yaml", tmp_path / "passport"
    assert run_main(monkeypatch, "passport", str(folder), "--write-answers", str(form)) == 0
    assert str(form) in capsys.readouterr().out
    assert not made.exists()
    before = form.read_bytes()
    said = run_main(monkeypatch, "passport", str(folder), "--write-answers", str(form))
    check_tokens(str(said), "--write-answers", form)
    assert form.read_bytes() == before
    with_both = ("--write-answers", str(tmp_path / "b.yaml"), "--answers", str(form))
    said = run_main(monkeypatch, "passport", str(folder), *with_both)
    check_tokens(str(said), "--write-answers", "--answers")
    words = ("--published", "2026-11-29", "--output", str(made), "--answers", str(form))
    assert run_main(monkeypatch, "passport", str(folder), *words) == 0
    assert "you must write it" in (made / "questions.md").read_text()
    form.write_text("venue_date: soon")
    words = ("--published", "2026-11-29", "--output", str(tmp_path / "c"), "--answers", str(form))
    check_tokens(str(run_main(monkeypatch, "passport", str(folder), *words)), "venue_date", "soon")
    assert not (tmp_path / "c").exists()


def test_no_form_is_written_into_a_bundle(read: Bundle, folder: Path) -> None:
    with refuses(ConfigError, folder):
        write_answers(read, folder / "answers.yaml")
