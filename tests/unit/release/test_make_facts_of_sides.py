"""Each fact that makes a person several units, on each side, with each part that uses a side.

A choice uses both sides: heads of the study's cells, and their test results without noise.

A fact is refused before anything is booked, or priced in the statement, or stated as not covered.
"""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Any

import pytest

from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.release.bundle import read_bundle
from dpprobe.release.ledger.ledger import Ledger
from dpprobe.release.parts.choice.measure import explain_choice
from dpprobe.release.verification.verify import verify_bundle
from tests.support import release_study
from tests.support.edited_bundles import failed
from tests.support.release_study import release, study, write_features

PARTS: dict[str, dict[str, Any]] = {
    "head": {},
    "evaluate": {"evaluate": {"epsilon": 2}},
    "calibrate": {"calibrate": {"epsilon": 2}},
    "monitor": {"monitor": {"epsilon": 2}},
}
COPIED = {"image": {"rows": 20, "most": 21, "by": "bytes and pixels"}}
NO_COPY = {"image": {"rows": 0, "most": 1, "by": "bytes and pixels"}}
BY_BYTES = {"image": {"rows": 0, "most": 1, "by": "bytes"}}
# Facts about both sides: copies among training rows, among test rows, and across the sides.
FACTS: dict[str, dict[str, Any]] = {
    "none": {"copies": NO_COPY, "test_copies": NO_COPY, "across": 0},
    "copies in train": {"copies": COPIED, "test_copies": NO_COPY, "across": 0},
    "copies in test": {"copies": NO_COPY, "test_copies": COPIED, "across": 0},
    "on both sides": {"copies": NO_COPY, "test_copies": NO_COPY, "across": 1},
    "only bytes compared": {"copies": BY_BYTES, "test_copies": BY_BYTES, "across": 0},
    "sides not compared": {"copies": NO_COPY, "test_copies": NO_COPY, "across": None},
    "test rows not counted": {"copies": NO_COPY, "test_copies": None, "across": 0},
}
COMPARED = {"only bytes compared": ["bytes"], "sides not compared": []}


@pytest.mark.parametrize(("fact", "part"), itertools.product(FACTS, PARTS))
def test_a_fact_of_one_side_is_refused_or_stated(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fact: str,
    part: str,
) -> None:
    monkeypatch.setattr(release_study, "ROWS", {"train": 300, "test": 600})
    write_features(tmp_path, **FACTS[fact])
    made, reads_test = study(tmp_path, **PARTS[part]), part != "head"
    if fact == "on both sides" and reads_test:
        with pytest.raises(PrivacyError, match="both splits"):
            release(tmp_path, made)
        assert not Ledger.of_dataset(tmp_path / "data", "toy").read_entries(), "nothing is booked"
        return
    with caplog.at_level(logging.WARNING):
        bundle = release(tmp_path, made)
    assert failed(verify_bundle(bundle)) == []
    statement = read_bundle(bundle).statement
    uncovered = {*statement["not_covered"]}
    assert "copies_of_items" in uncovered, "of training rows, whatever the count is"
    assert ("tested_copies_of_items" in uncovered) == reads_test, "whatever the count is"
    assert ("both_sides" in uncovered) == (reads_test and fact in COMPARED)
    assert ("n_test" in statement["public"]) == reads_test
    tested = statement["test_units"]
    assert (tested is None) == (not reads_test)
    if tested:
        assert (tested["n"], tested["compared"]) == (600, COMPARED.get(fact, ["bytes", "pixels"]))
    warned = [record.getMessage() for record in caplog.records]
    told = {
        "copies in train": any("training rows repeat" in each for each in warned),
        "copies in test": any("test rows repeat" in each for each in warned),
        "test rows not counted": any("nobody counted" in each for each in warned),
    }
    expected = {name: name == fact for name in told}
    if not reads_test:
        expected |= {"copies in test": False, "test rows not counted": False}
    assert told == expected
    assert "21" not in (bundle / "README.md").read_text().split("## What is not covered")[1]


@pytest.mark.parametrize("part", PARTS)
def test_an_id_on_both_sides_is_refused_with_a_test_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Only a column names items; ids that are positions in two files may be equal by chance."""
    monkeypatch.setattr(release_study, "ROWS", {"train": 300, "test": 600})
    of_patients: dict[str, Any] = {"images_per_patient": 1, **FACTS["none"]}
    write_features(tmp_path, shared_ids=1, **of_patients)
    named = study(tmp_path, of_patients=True, more={"id_column": "slide"}, **PARTS[part])
    if part != "head":
        with pytest.raises(
            PrivacyError, match="an id of `id_column` is in both .* measure nothing"
        ):
            release(tmp_path, named)
        assert not Ledger.of_dataset(tmp_path / "data", "toy").read_entries(), "nothing is booked"
        named = study(tmp_path, of_patients=True, **PARTS[part])
    assert verify_bundle(release(tmp_path, named)).passed


@pytest.mark.parametrize("fact", FACTS)
def test_duplicates_are_priced_with_a_choice(tmp_path: Path, fact: str) -> None:
    write_features(tmp_path, **FACTS[fact])
    statement = read_bundle(release(tmp_path, study(tmp_path))).statement
    block = statement["choice"]
    assert block["cells"] > 0
    assert block["epsilon"] > statement["epsilon_realised"], "priced for one training unit"
    assert {"copies_of_items", "choice_of_release"} <= {*statement["not_covered"]}
    said = explain_choice(block, statement)
    assert "covers their test units" in said, "whatever the copies on the test side are"
    assert "there: as a copy" in said


@pytest.mark.parametrize("images", [2, None])
def test_a_choice_has_no_bound_for_patients_with_several_images(
    tmp_path: Path, images: int | None
) -> None:
    write_features(tmp_path, images_per_patient=2, **FACTS["none"])
    made = study(tmp_path, of_patients=True, more={"max_images_per_patient": images})
    made = made.model_copy(update={"privacy": made.privacy.model_copy(update={"unit": "image"})})
    statement = read_bundle(release(tmp_path, made)).statement
    assert statement["choice"]["epsilon"] > statement["epsilon_realised"], "to one image"
    said = explain_choice(statement["choice"], statement)
    assert "no bound is stated" in said
    whole = explain_choice(statement["choice"], {**statement, "patients": None})
    assert "no bound is stated" not in whole


def test_a_choice_by_another_dataset_of_the_same_images_is_stated_or_refused(
    tmp_path: Path,
) -> None:
    write_features(tmp_path, **FACTS["none"])
    made = study(tmp_path)
    plain = made.datasets["toy"]
    same = plain.model_copy(update={"same_units_as": "toy"})
    undeclared, declared = (
        made.model_copy(update={"datasets": {"toy": plain, "other": other}})
        for other in (plain, same)
    )
    with pytest.raises(ConfigError, match="same_units_as"):
        release(tmp_path, undeclared)
    assert not Ledger.of_dataset(tmp_path / "data", "toy").read_entries(), "nothing is booked"
    block = read_bundle(release(tmp_path, declared)).statement["choice"]
    assert block["epsilon"] is None, "the number of its units is not known here"
    assert {each.get("dataset") for each in block["uncovered"]["results"]} == {"other"}


@pytest.mark.parametrize("part", PARTS)
def test_patients_with_several_images_are_priced_in_training_and_stated_in_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(release_study, "ROWS", {"train": 300, "test": 600})
    write_features(tmp_path, images_per_patient=2, **FACTS["none"])
    made = study(tmp_path, of_patients=True, more={"max_images_per_patient": 2}, **PARTS[part])
    made = made.model_copy(update={"privacy": made.privacy.model_copy(update={"unit": "image"})})
    statement = read_bundle(release(tmp_path, made)).statement
    assert statement["unit"] == "image"
    assert statement["patients"]["images"] == 2
    assert statement["patients"]["epsilon"] > statement["epsilon_realised"]
    assert ("tested_patients" in statement["not_covered"]) == (part != "head")
