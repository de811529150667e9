"""Card, page and notes of releases: what they say over many settings, and what they escape."""

from __future__ import annotations

import html
import itertools
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from dpprobe.errors import DataError
from dpprobe.exhibits.html_page import content_policy
from dpprobe.privacy.plan import Plan
from dpprobe.release.bundle import FACTS_FILE, Bundle, CardFacts, bundle_digest, read_bundle
from dpprobe.release.documents import format_price
from dpprobe.release.ledger import Ledger
from dpprobe.release.ledger_prices import Limits
from dpprobe.release.model_card import write_card
from dpprobe.release.page import write_page
from dpprobe.release.release_notes import write_notes
from tests.support.bundles import CLASSES, LEDGER, PRIORS, write_example
from tests.support.edited_bundles import edit_file
from tests.support.releases import (
    HOSTILE,
    Release,
    calibrated,
    following,
    long_release,
    measured,
    of_sites,
    watched,
)
from tests.support.stored_records import check_values
from tests.unit.release.parts.evidence.test_measure import EVIDENCE
from tests.unit.release.test_ledger import DELTA, booking

DIGEST = "0123456789abcdef" * 4
RESNET = {
    "options": {"family": "timm", "model": "resnet50"},
    "architecture": "resnet50",
    "trained": True,
}
FILE = {"checkpoint": "weights.safetensors", "weights_sha256": "0" * 64}
# A head of vectors, which a model outside of dpprobe computed.
VECTORS = {"options": {"family": "external", "model": "clip-vit"}, "architecture": "clip-vit"}
OF_VECTORS = {
    "public_data": {"backbone_options": VECTORS["options"], "assumption": "None."},
    "unit_of_privacy": Plan.UNITS["row"],
    "ledger": LEDGER | {"unit": "row"},
}
SEARCH = {"mean": 10, "repeated": ["gradients"], "trials": "geometric"}
# Of facts, of the backbone's facts, and of the statement.
Changes = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]


def counted_classes(number: int) -> Changes:
    return {"class_names": tuple(f"kind {place}" for place in range(number))}, {}, {}


def with_link(link: str, *, several: bool) -> Changes:
    return {"link": link, "multi_label": several}, {}, {}


def with_card(**words: str) -> Changes:
    return {"card": CardFacts(**words)}, {}, {}


def with_result(metric: str, *interval: float, **more: Any) -> Changes:
    block = measured(metric) | ({"interval": [*interval]} if interval else {}) | more
    return {}, {}, {"evaluation": block}


SETTINGS: dict[str, Changes] = {
    "plain": ({}, {}, {}),
    **{
        f"license {each}": with_card(license=each)
        for each in ("Apache-2.0", "mit", "CC BY 4.0", "Our terms:\nask us", "-x", "é")
    },
    "words": with_card(
        intended_use="Sorting.", limits="Not at night.\n\nNot abroad.", contact="me"
    ),
    "accuracy": with_result("accuracy"),
    "auc": with_result("auc"),
    "macro": with_result("macro_accuracy"),
    "wide": with_result("accuracy", 0.3, 0.9),
    "widest": with_result("accuracy", 0.125, 0.925),
    "no result": with_result("auc", 0.1, 0.95),
    "worst": with_result(
        "macro_accuracy", worst_class={"name": "naevus", "recall": 0.5, "interval": [0.4, 0.6]}
    ),
    "calibrated": ({}, {}, {"calibration": calibrated()}),
    "scores, calibrated": ({"link": "none"}, {}, {"calibration": calibrated()}),
    "watched": ({}, {}, {"monitor": watched()}),
    "everything": (
        {},
        {},
        {
            "evaluation": measured(),
            "calibration": calibrated(),
            "monitor": watched(),
            "cohort": following(),
            "sites": of_sites(),
            "evidence": EVIDENCE,
        },
    ),
    "predecessor": ({}, {}, {"predecessor": {"name": "lesions v0", "sha256": DIGEST}}),
    "long predecessor": ({}, {}, {"predecessor": {"name": "lesions " * 6, "sha256": DIGEST}}),
    **{
        unit: ({}, {}, {"unit_of_privacy": Plan.UNITS[unit], "ledger": LEDGER | {"unit": unit}})
        for unit in ("patient", "group", "row")
    },
    **{
        f"{images} {epsilon}": ({}, {}, {"patients": {"images": images, "epsilon": epsilon}})
        for images, epsilon in ((5, 6.2003), (1, 0.5), (None, None))
    },
    "spent": ({}, {}, {"ledger": LEDGER | {"releases": 4, "epsilon": 2.31201, "exact": False}}),
    **{
        f"epsilon {epsilon}": ({}, {}, {"epsilon_realised": epsilon, "selection": SEARCH})
        for epsilon in (1.0, 30.0)
    },
    "risk": ({}, {}, {"risk_target": {"advantage": 0.3}, "mu": 0.77}),
    "auto": ({}, {}, {"chosen_from": {"head": "newton", "rule": "auto rule 1"}}),
    "priors": ({"class_priors": tuple(PRIORS.tolist())}, {}, {}),
    "labels": with_link("sigmoid", several=True),
    "scores": with_link("none", several=False),
    "label scores": with_link("none", several=True),
    **{f"{number} classes": counted_classes(number) for number in (2, 16, 17, 100, 101)},
    "weights": ({}, {"weights_sha256": "0" * 64}, {}),
    "timm": ({}, RESNET, {}),
    "timm tag": ({}, RESNET | {"pretrained_tag": "a1_in1k"}, {}),
    "file": ({}, RESNET | FILE | {"pretrained_tag": "a1_in1k"}, {}),
    "untrained": ({}, RESNET | {"pretrained_tag": "a1_in1k", "trained": False}, {}),
    **{
        f"hub {family} {model} {trained}": (
            {},
            {"options": {"family": family, "model": model}, "trained": trained},
            {},
        )
        for family, model, trained in (
            ("open_clip", "hf-hub:laion/clip", True),
            ("timm", "hf_hub:a/b", True),
            ("timm", "local-dir:a/b", True),
            ("timm", "hf-hub:a/b", False),
        )
    },
    "imported": ({}, {"options": {"family": "imported", "module": "nets:build"}}, {}),
    "vectors": ({}, VECTORS, OF_VECTORS),
    "vectors of a version": (
        {"multi_label": True},
        VECTORS | {"weights_sha256": "0" * 64, "pretrained_tag": "2.1"},
        OF_VECTORS | {"evaluation": measured(), "monitor": watched()},
    ),
}


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The first release."""
    place = tmp_path_factory.mktemp("old") / "v1"
    return read_bundle(write_example(place, evaluation=measured()))


@pytest.fixture(scope="module")
def new(old: Bundle) -> Bundle:
    """A release of the same head that replaces the first."""
    place = old.folder.with_name("v2")
    made = write_example(place, name="lesions_v2", predecessor=old.folder, evaluation=measured())
    return read_bundle(made)


@pytest.fixture
def release(old: Bundle) -> Release:
    return old.facts, {**old.statement, "evaluation": None}


def changed(bundle: Bundle, changes: Changes) -> Bundle:
    facts, backbone, statement = changes
    head: dict[str, Any] = {name: facts[name] for name in ("link", "class_priors") if name in facts}
    updates = {name: facts[name] for name in facts if name not in head} | {
        "backbone": bundle.facts.backbone.model_copy(update=backbone),
        "head": bundle.facts.head.model_copy(update=head),
    }
    return replace(
        bundle,
        facts=bundle.facts.model_copy(update=updates),
        statement={**bundle.statement, **statement},
    )


def write(folder: Path, facts: Any, statement: dict[str, Any]) -> tuple[ModelCard, str]:
    """The card as the Hub's library reads it, and the page."""
    write_card(folder, facts, statement)
    write_page(folder, facts, statement)
    card, page = (folder / name for name in ("README.md", "release.html"))
    text = card.read_text(encoding="utf-8")
    read = ModelCard(text)
    assert text.startswith(f"---\n{read.data.to_yaml()}\n---\n")  # as that library would write it
    return read, page.read_text(encoding="utf-8")


def test_card_and_page_say_the_same_as_before(tmp_path: Path, old: Bundle) -> None:
    """Of the plain release every line, of each other setting the lines that differ from these."""
    found: dict[str, Any] = {}
    known: set[str] = set()
    plain = changed(old, ({}, {}, {"evaluation": None}))
    for name, changes in SETTINGS.items():
        made = changed(plain, changes)
        card, page = write(tmp_path, made.facts, dict(made.statement))
        lines = [*card.text.splitlines(), *page.partition("<body>")[2].splitlines()]
        found[name] = [card.data.to_dict(), [one for one in lines if one.strip() not in known]]
        known |= {line.strip() for line in lines} if name == "plain" else set()
    check_values("documents_of_releases", found)


def test_a_release_with_long_lists_is_cut(tmp_path: Path, release: Release) -> None:
    facts, statement = long_release(release)
    card, page = write(tmp_path, facts, statement)
    assert "and 900 more, in `bundle.json`" in card.text
    assert "one patient (all of their training images together)" in card.text
    assert f"and {1000 - 16} more, in bundle.json" in page
    assert page.count("… (README.md)") == 2
    style = page.partition("<style>")[2].partition("</style>")[0]
    policy = html.unescape(page.partition('Policy" content="')[2].partition('"')[0])
    assert policy == content_policy(style, None)
    assert "script-src 'none'" in policy
    assert not re.search(r"<script| style=|(?:src|href)=\"(?!data:,)", page)


def test_nothing_breaks_out_of_the_page(tmp_path: Path, release: Release) -> None:
    facts, statement = release
    _, plain = write(tmp_path, facts, statement)
    joined = "\n".join(HOSTILE)
    card = CardFacts(intended_use=joined, limits=joined, contact=joined)
    named = {"name": HOSTILE[0], "dataset": HOSTILE[1], "class_names": HOSTILE, "card": card}
    replaced = {**statement, "predecessor": {"name": HOSTILE[0], "sha256": HOSTILE[1]}}
    _, page = write(tmp_path, facts.model_copy(update=named), replaced)
    tags, known = (set(re.findall(r"<[^>]*>", text)) for text in (page, plain))
    assert tags - known == set()
    assert "\u202e" not in page
    text = html.unescape(re.sub(r"<[^>]*>", " ", page))
    assert "<img src=x" in text
    assert "{{ 7 * 7 }}" in text


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_breaks_out_of_the_card(tmp_path: Path, release: Release, text: str) -> None:
    """The same lines as of a harmless text, but for those that show it; nothing else to the Hub."""
    facts, statement = release

    def written(words: str) -> ModelCard:
        said = CardFacts(license=words, intended_use=words, limits=words, contact=words)
        named = facts.model_copy(update={"class_names": (words, words), "card": said})
        return write(tmp_path, named, {**statement, "evaluation": measured()})[0]

    harmless, hostile = written("Two words."), written(text)
    fixed = [line for line in harmless.text.splitlines() if line and "Two words" not in line]
    lines = [line for line in hostile.text.splitlines() if line]
    assert [line for line in lines if line in fixed] == fixed
    shown = [line for line in lines if line not in fixed]
    # Classes, use, limits and contact; all but the first in paragraphs where the text has two.
    assert 4 <= len(shown) <= 7
    for line in shown:
        assert "<" not in line
        assert not line.lstrip().startswith(("---", "- ", "# ", "1. ", "```"))
        assert "\u202e" not in line
    assert set(hostile.data.to_dict()) - set(harmless.data.to_dict()) <= {"license_name"}


COVARIANCE = {
    "head": "feature_covariance",
    "normalize": {"kind": "centred", "max_norm": 2.0},
    "steps": 9,
}
NOTED: dict[str, Changes] = {
    "the same": ({}, {}, {}),
    **{
        name: SETTINGS[name]
        for name in (
            "auc",
            "macro",
            "wide",
            "no result",
            "watched",
            "calibrated",
            "patient",
            "vectors",
            "labels",
            "scores",
            "scores, calibrated",
            "priors",
            "spent",
            "2 classes",
            "timm",
            "weights",
        )
    },
    "none": ({}, {}, {"evaluation": None}),
    "more units": ({}, {}, {"n": 12345, "delta": 2.5e-6}),
    "better": with_result("accuracy", 0.9, 0.98, value=0.94),
    "just": with_result("accuracy", 0.8525, 0.98, value=0.94),
    "not just": with_result("accuracy", 0.852, 0.98, value=0.94),
    "worse": with_result("accuracy", 0.7, 0.76, value=0.72),
    "order": ({"class_names": CLASSES[::-1]}, {}, {}),
    "dataset": ({"dataset": "more"}, {}, {}),
    "unused": (
        {"dpprobe": "9"},
        {"name": "x", "versions": {"torch": "9"}, "trained": True, "probe": {"norm": 9.0}},
        {},
    ),
    "used": (
        {"dimension": 99},
        {"precision": "bfloat16", "dtype": "float16", "preprocessing": {"size": 9}},
        {},
    ),
}


def test_notes_compare_as_before(old: Bundle, new: Bundle) -> None:
    """With each change in the new release, and in the old one: lines that are not as without it."""
    found: dict[str, Any] = {}
    known: set[str] = set()
    trained = new.facts.head.model_copy(update={"options": COVARIANCE, "method": "other"})
    cases = {**NOTED, "options": ({"head": trained}, {}, {})}
    for (name, changes), place in itertools.product(cases.items(), (0, 1)):
        pair = [new, old]
        pair[place] = (
            changed(pair[place], changes)
            if name != "options"
            else replace(pair[place], facts=pair[place].facts.model_copy(update=changes[0]))
        )
        lines = write_notes(*pair, max_epsilon=1.0 if name == "spent" else 5.0).splitlines()
        found[f"{name} {place}"] = [line for line in lines if line not in known]
        known |= set(lines) if name == "the same" else set()
    found["no limit"] = [line for line in write_notes(new, old).splitlines() if line not in known]
    found["chosen"] = [line for line in write_notes(old, new).splitlines() if line not in known]
    check_values("notes_of_releases", found)


def test_a_bundle_that_is_not_its_predecessor_is_refused(
    old: Bundle, new: Bundle, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(old.folder, tmp_path / "other"))
    edit_file(other, FACTS_FILE, lambda facts: facts.update(study="other"))
    with pytest.raises(DataError, match="not the predecessor that .* names, which is lesions_v1"):
        write_notes(new, read_bundle(other))


def test_the_total_is_of_the_release_or_of_today(old: Bundle, new: Bundle, tmp_path: Path) -> None:
    ledger = Ledger.of_dataset(tmp_path, "lesions")
    with pytest.raises(DataError, match="has no entry of"):
        write_notes(new, old, ledger=ledger)
    for number, each in enumerate((old, new, None), 1):
        ledger.book_release(booking(f"secret_{number}"), Limits(delta=DELTA))
        if each:
            ledger.close_entry(number, bundle_digest(each.folder))
    text = write_notes(new, old, ledger=ledger, max_epsilon=5)
    spent = ledger.compute_spent(1e-5)
    assert spent.exact
    assert f"Today's total over 3 releases: epsilon {format_price(spent.epsilon)}." in text
    assert f"The limit is epsilon 5, which leaves {5 - spent.epsilon:.3g} if" in text
    assert "leaves 0 if" in write_notes(new, old, ledger=ledger, max_epsilon=0.1)
    assert not any(private in text for private in ("secret", "i" * 64, str(tmp_path), "ledger.j"))
