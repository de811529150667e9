"""Release notes: of one bundle, and of what changed since another."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpprobe.artifacts import read_json, write_json
from dpprobe.errors import DataError
from dpprobe.release.bundle import write_sums
from dpprobe.release.notes import release_notes
from tests.support.bundles import LEDGER, write_example
from tests.support.releases import measured


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_example(tmp_path_factory.mktemp("notes") / "bundle", evaluation=measured())


def changed(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Changes bundle.json, and the sums with it."""
    facts = read_json(folder / "bundle.json")
    change(facts)
    write_json(folder / "bundle.json", facts)
    write_sums(folder)


def test_they_tell_what_it_is_and_promises(bundle: Path) -> None:
    notes = release_notes(bundle)
    statement = read_json(bundle / "privacy.json")
    for fact in (
        "3 classes", "`covariance`", "`pixels`", "epsilon 1 at delta 1e-5 for one training image",
        "finds at most 2% of those that were", "Accuracy 81.2% (95% CI 77.2 to 85.2%)",
        "the only release from this dataset", "dpprobe verify .", "sha256sum --check SHA256SUMS",
    ):  # fmt: skip
        assert fact in notes
    paragraph = notes.partition("## Not covered\n\n")[2].partition("\n\n")[0]
    for item in statement["not_covered"]:
        assert item[1:].replace("`", "") in paragraph
    assert "Since" not in notes


def test_they_tell_what_changed(tmp_path: Path, bundle: Path) -> None:
    options = {"head": "feature_covariance", "normalize": "l2", "steps": 9}
    ledger = {**LEDGER, "entry": 2, "releases": 2, "epsilon": 2.6}
    after = write_example(
        tmp_path / "after", options=options, epsilon=2.0, evaluation=measured(value=0.85),
        ledger=ledger,
    )  # fmt: skip

    def change(facts: dict[str, Any]) -> None:
        facts["name"] = "lesions_v2"
        facts["class_names"] = ["naevus", "melanoma", "a|b"]
        facts["backbone"]["name"] = "vit"

    changed(after, change)
    notes = release_notes(after, previous=bundle)
    since = notes.partition("## Since lesions\\_v1\n\n")[2].partition("\n\n")[0].splitlines()
    assert since == [
        "- Classes. New: a\\|b.",
        "- Classes. No longer there: keratosis.",
        "- Backbone: pixels, now vit.",
        "- Method: steps from 6 to 9.",
        "- Promise: epsilon 1 at delta 1e-5 for one training image, with n = 1,500 training "
        "images; now epsilon 2 at delta 1e-5 for one training image, with n = 1,500 training "
        "images.",
        "- Accuracy 81.2% (95% CI 77.2 to 85.2%); now Accuracy 85.0% (95% CI 81.0 to 89.0%).",
        "- Ledger: epsilon 1 at delta 1e-5 over 1 release, now epsilon 2.6 at delta 1e-5 over 2 "
        "releases.",
    ]


def test_the_same_plan_trained_again_changed_in_the_ledger_alone(
    tmp_path: Path, bundle: Path
) -> None:
    again = write_example(tmp_path / "again", evaluation=None)
    notes = release_notes(again, previous=bundle)
    since = notes.partition("## Since")[2].partition("## Not covered")[0]
    assert [line for line in since.splitlines() if line.startswith("- ")] == [
        "- Ledger: epsilon 1 at delta 1e-5 over 1 release, now epsilon 1 at delta 1e-5 over 1 "
        "release."
    ]
    assert "None is published" in notes


def test_a_damaged_bundle_has_no_notes(tmp_path: Path) -> None:
    folder = write_example(tmp_path / "bundle")
    statement = read_json(folder / "privacy.json")
    statement["epsilon_realised"] = 0.1
    (folder / "privacy.json").write_text(json.dumps(statement))
    with pytest.raises(DataError, match=r"privacy\.json"):
        release_notes(folder)
