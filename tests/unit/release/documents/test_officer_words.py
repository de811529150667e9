"""Answers to a privacy officer follow from the facts in a statement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpprobe.privacy.unit_words import unit_words
from dpprobe.release.bundle import read_bundle
from dpprobe.release.documents.officer_words import explain_delta
from dpprobe.release.passport_forms import WORDS, list_fields
from tests.support.refusals import check_tokens
from tests.support.stored_releases import unpack_release


@pytest.mark.parametrize(
    ("unit", "vectors", "delta", "n", "tokens"),
    [
        ("patient", False, 1e-5, 2000, ["1e-5", "2,000 training patients", "0.02 patients"]),
        ("image", False, 1e-6, 375, ["375 training images", "0.000375 images"]),
        ("image", True, 1e-5, 100, ["100 training rows", "0.001 rows"]),
        ("group", True, 1.00001e-5, 1000, ["1.001e-5", "0.01001 groups"]),
    ],
)
def test_delta_is_stated_in_units_rounded_up(
    unit: str, vectors: bool, delta: float, n: int, tokens: list[str]
) -> None:
    said = explain_delta({"delta": delta, "n": n}, unit_words(unit, vectors=vectors))
    check_tokens(said, *tokens)


def words_of(folder: Path, kind: str) -> dict[str, Any]:
    return dict(list_fields(read_bundle(unpack_release(folder, kind)))[WORDS])


def test_a_release_without_test_units_says_that_test_patients_pay_nothing(tmp_path: Path) -> None:
    words = words_of(tmp_path, "patients")
    check_tokens(words["test_price"], "test patient", "nothing")
    assert words["people"] is not None
    check_tokens(words["units"], "two names")
    check_tokens(words["limit"], "privacy.max_epsilon", "privacy.max_risk")
    assert "compared" not in words["copies"]


@pytest.mark.parametrize("kind", ["tested", "calibration", "monitor"])
def test_the_epsilon_of_test_units_covers_all_measurements(tmp_path: Path, kind: str) -> None:
    read = read_bundle(unpack_release(tmp_path, kind))
    blocks = [read.statement.get(name) for name in ("evaluation", "calibration", "monitor")]
    prices = [each.get("together") or each["epsilon"] for each in blocks if each]
    said = list_fields(read)[WORDS]["test_price"]
    assert float(said.partition("epsilon ")[2].split()[0]) >= max(p for p in prices if p)


def test_a_head_of_images_counts_no_people(tmp_path: Path) -> None:
    words = words_of(tmp_path, "images")
    assert words["people"] is None
    check_tokens(words["units"], "several units")
