"""The page of a release: what it says, that it is closed, and that nothing breaks out of it."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest

from dpprobe.exhibits.html_page import content_policy
from dpprobe.release.bundle import BundleFacts, CardFacts
from dpprobe.release.page import CLASSES_SHOWN, write_page
from tests.support.releases import HOSTILE, Release, example, long_release


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return example(tmp_path_factory.mktemp("release") / "bundle")


def page(folder: Path, facts: BundleFacts, statement: dict[str, Any]) -> str:
    write_page(folder, facts, statement)
    return (folder / "release.html").read_text(encoding="utf-8")


def text_of(page: str) -> str:
    """What a reader sees, without tags, in one line."""
    body = page.partition("<body>")[2]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def test_it_tells_the_promise_and_every_mechanism(tmp_path: Path, release: Release) -> None:
    facts, statement = release
    text = text_of(page(tmp_path, facts, statement))
    for fact in (
        facts.name, facts.dataset, *facts.class_names, statement["promise"], "1e-5", "1,500",
        statement["choice"]["words"], "the only release", "dpprobe verify .",
        "sha256sum --check SHA256SUMS", "No test result is published with this head.",
    ):  # fmt: skip
        assert fact in text
    for item in statement["mechanisms"]:
        assert f"{item['name']}: {item['released']}" in text
        assert f"{item['noise_standard_deviation']:.4g}" in text
        assert f"{item['noise_multiplier']:.4g}" in text, "what the report shows, under one name"
    for item in [*statement["not_covered"], *statement["public"]]:
        assert item[1:].replace("`", "") in text


def test_it_allows_no_script_and_loads_nothing(tmp_path: Path, release: Release) -> None:
    content = page(tmp_path, *long_release(release))
    style = content.partition("<style>")[2].partition("</style>")[0]
    policy = html.unescape(content.partition('Policy" content="')[2].partition('"')[0])
    assert policy == content_policy(style, None)
    assert "script-src 'none'" in policy
    assert "<script" not in content
    assert not re.search(r"(?:src|href)=\"(?!data:,)", content)
    assert " style=" not in content


def test_nothing_breaks_out_of_it(tmp_path: Path, release: Release) -> None:
    facts, statement = release
    plain = page(tmp_path, facts, statement)
    joined = "\n".join(HOSTILE)
    hostile = facts.model_copy(
        update={
            "name": HOSTILE[0],
            "dataset": HOSTILE[1],
            "class_names": HOSTILE,
            "card": CardFacts(intended_use=joined, limits=joined, contact=joined),
        }
    )
    named = {"name": HOSTILE[0], "sha256": HOSTILE[1]}
    content = page(tmp_path, hostile, {**statement, "predecessor": named})
    allowed = set(re.findall(r"<[^>]*>", plain))
    new = set(re.findall(r"<[^>]*>", content)) - allowed
    assert new == set()
    assert "<img src=x" in text_of(content)
    assert "\u202e" not in content
    assert "{{ 7 * 7 }}" in text_of(content)


def test_long_lists_and_texts_are_cut(tmp_path: Path, release: Release) -> None:
    facts, statement = long_release(release)
    text = text_of(page(tmp_path, facts, statement))
    assert f"and {1000 - CLASSES_SHOWN} more, in bundle.json" in text
    assert text.count("… (README.md)") == 2
    assert "With the noisy sums of lesions_2026_01 to lesions_2026_11 it has learned from" in text
    del statement["cohort"]  # whose names stand in the predecessor's place
    replaced = "This release replaces lesions of all clinics, lesions of all … ."
    assert replaced not in text
    assert replaced in text_of(page(tmp_path, facts, statement))
    assert "Together they cost one patient at most epsilon 2.313" in text


@pytest.mark.parametrize(
    ("patients", "words"),
    [
        ({"images": 5, "epsilon": 6.2003}, "For a patient with 5 training images, the most that "
                                           "any patient has here, it is epsilon 6.201 at delta "
                                           "1e-5."),
        ({"images": None, "epsilon": None}, "so patients have no guarantee."),
    ],
)  # fmt: skip
def test_people_with_several_images_are_told(
    tmp_path: Path, release: Release, patients: dict[str, Any], words: str
) -> None:
    facts, statement = release
    assert words in text_of(page(tmp_path, facts, {**statement, "patients": patients}))


@pytest.mark.parametrize(("epsilon", "weak"), [(1.0, False), (30.0, True)])
def test_a_weak_promise_is_called_one(
    tmp_path: Path, release: Release, epsilon: float, weak: bool
) -> None:
    facts, statement = release
    values = {**statement, "epsilon_realised": epsilon, "selection": SELECTION}
    assert ("This is a weak promise" in page(tmp_path, facts, values)) == weak


SELECTION = {"mean": 10, "repeated": ["gradients"], "trials": "geometric"}
