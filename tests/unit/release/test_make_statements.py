"""Whole releases: each statement follows from the options, the booking and the noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant

from dpprobe.privacy.entropy import SEEDED
from dpprobe.release import bundle
from dpprobe.release.ledger.ledger import Ledger
from dpprobe.release.verification.verify import verify_bundle
from tests.support import release_study
from tests.support.edited_bundles import failed
from tests.support.release_study import release, study, write_features
from tests.unit.release.ledger.test_ledger_prices import rounded_up

EVERYTHING = {"calibrate": {"epsilon": 2}, "evaluate": {"epsilon": 1}, "monitor": {"epsilon": 2}}
AREA_ALONE = {"evaluate": {"epsilon": 2, "metric": "auc"}}
POINT = {"operating_point": {"positive_class": "b", "sensitivity": 0.6}}
AREA = {"calibrate": POINT, **AREA_ALONE}
HALF = {"more": {"subsample": {"fraction": 0.5, "seed": 3}}}
BLOCKS = {"evaluate": "evaluation", "calibrate": "calibration", "monitor": "monitor"}
# Options of releases; `of` has the classes, the images per patient and options of the study.
RELEASES: dict[str, dict[str, Any]] = {
    "covariance": {},
    "sums": {"method": "sums", "evaluate": {"epsilon": 8, "metric": "macro_accuracy"}},
    "steps": {"method": "steps", "evaluate": {"epsilon": 1, "metric": "accuracy"}},
    "search": {"method": "search", "evaluate": {"epsilon": 3}, "monitor": {"epsilon": 2}},
    "auto of a half": {"method": "auto", "monitor": {"epsilon": 2}, **HALF},
    "balanced": {"method": "balanced", "card": {"license": "mit", "contact": "me"}},
    "patients": {"of_patients": True, "of": {"images_per_patient": 3}, **EVERYTHING},
    "everything": EVERYTHING,
    "calibrated": {"calibrate": {"epsilon": 2, **POINT}},
    "two": {"of": {"classes": 2, "accountant": "rdp"}, **EVERYTHING},
    "two of the area": {"of": {"classes": 2, "metric": "macro_accuracy"}, **AREA},
    "two of the area alone": {"of": {"classes": 2}, "monitor": {"epsilon": 2}, **AREA_ALONE},
    "horizon": {"cohort": "2026-01", "horizon": 4, "delta": 1e-5},
    "alone": {"of": {"methods": ("covariance",)}},
    "private cells": {"of": {"methods": ("covariance", "steps", "search")}, "epsilon": 1},
}


def make(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: Mapping[str, Any]
) -> tuple[Any, Path]:
    """Makes a release with seeded noise; returns the study and the bundle's folder."""
    for module in ("make", "transport"):
        monkeypatch.setattr(f"dpprobe.release.{module}.SystemEntropy", lambda: SEEDED)
    given = dict(options)
    of = dict(given.pop("of", {}))
    classes = of.pop("classes", 3)
    monkeypatch.setattr(release_study, "ROWS", {"train": 300, "test": 600})
    monkeypatch.setattr(release_study, "CLASSES", ("a", "b", "c")[:classes])
    write_features(
        folder, shares=(1,) * classes, images_per_patient=of.pop("images_per_patient", None)
    )
    made = study(folder, **given)
    if (metric := of.pop("metric", None)) is not None:  # it may follow from labels
        of["datasets"] = {"toy": made.datasets["toy"].model_copy(update={"metric": metric})}
    if "methods" in of:
        of["methods"] = {each: made.methods[each] for each in of["methods"]}
    made = made.model_copy(update=of)
    return made, release(folder, made)


def price(mechanisms: Sequence[Mapping[str, Any]], delta: float) -> float:
    """Returns the epsilon of a statement's mechanisms, by another library."""
    sampled = any(item["sample_rate"] < 1 for item in mechanisms)  # slow on a fine grid
    accountant = PLDAccountant(value_discretization_interval=2e-3 if sampled else 1e-4)
    for item in mechanisms:
        event: Any = GaussianDpEvent(item["noise_multiplier"])
        if item["sample_rate"] < 1:
            event = PoissonSampledDpEvent(item["sample_rate"], event)
        accountant.compose(event, item["count"])
    return float(accountant.get_epsilon(delta))


@pytest.mark.parametrize("name", RELEASES)
def test_a_release_is_whole_verified_booked_and_stated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    options = RELEASES[name]
    made, output = make(tmp_path, monkeypatch, options)
    assert failed(verify_bundle(output)) == []
    contents = {path.name: path.read_bytes() for path in output.iterdir()}
    assert set(contents) == set(bundle.BUNDLE_FILES)
    (kept,) = output.parent.glob(".first.*")
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == contents, "a copy is kept"
    read = bundle.read_bundle(output)
    ledger = Ledger.of_dataset(tmp_path / "data", "toy")
    (entry,) = ledger.read_entries()
    assert (entry.state, entry.digest) == ("closed", bundle.bundle_digest(output))
    assert release(tmp_path, made) == output
    assert bundle.bundle_digest(output) == entry.digest, "a release is final"
    check_promise(read.statement, options)
    check_tested(read.statement, options)
    check_ledger(read.statement, ledger)
    check_head(read, options)


def check_promise(statement: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    patients = options.get("of", {}).get("images_per_patient")
    assert statement["n"] == 300 // (patients or 1), "units, not images"
    assert statement["delta"] == options.get("delta", 1e-4)
    assert statement["epsilon_target"] == options.get("epsilon", 2)
    assert statement["epsilon_realised"] <= statement["epsilon_target"]
    assert statement["unit"] == ("patient" if patients else "image")
    assert statement["mode"] == "release"
    assert statement["method"] == options.get("method", "covariance")
    if statement["selection"] is None:
        loose = 0.2 if options.get("of", {}).get("accountant") == "rdp" else 5e-3
        least = price(statement["mechanisms"], statement["delta"])
        assert -5e-3 * least <= statement["epsilon_realised"] - least <= loose * least
    assert statement["epsilon_realised"] > 0.98 * statement["epsilon_target"], "none is wasted"
    methods = options.get("of", {}).get("methods")
    cells = len(methods) if methods else 6
    assert statement["choice"]["cells"] == cells
    assert statement["choice"]["epsilon"] >= statement["epsilon_realised"]
    assert ("cohort" in statement) == ("cohort" in options)
    if "cohort" in options:
        cohort = statement["cohort"]
        assert [cohort[key] for key in ("name", "place", "horizon", "units", "earlier")] == [
            *("2026-01", 1, 4, 300, [])
        ]


def check_tested(statement: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Checks each block's own epsilon and its number of test units."""
    patients = options.get("of", {}).get("images_per_patient")
    for option, name in BLOCKS.items():
        if option not in options:
            assert not statement.get(name), f"nobody asked for {name}"
        elif asked := options[option].get("epsilon"):
            block = statement[name]
            assert block["n"] == 600 // (patients or 1)
            assert block["epsilon_target"] == asked
            assert block["epsilon"] == pytest.approx(asked, rel=1e-3)
            assert block["epsilon"] == pytest.approx(price(block["mechanisms"], 1e-4), rel=2e-3)
        else:  # its counts are those of the AUC, already paid for
            assert "mechanisms" not in statement[name]
            assert name == "calibration"
    counted = options.get("evaluate", {}).get("metric") == "auc" and "calibrate" in options
    assert ("score_counts" in (statement["evaluation"] or {})) == counted
    metric = options.get("evaluate", {}).get("metric", "accuracy")
    if "evaluate" in options:
        assert statement["evaluation"]["metric"] == metric
        low, high = statement["evaluation"]["interval"]
        assert low <= statement["evaluation"]["value"] <= high
        if options.get("method") != "steps":  # five steps are too few
            assert statement["evaluation"]["value"] > 0.8, "classes that can be told apart"


def check_ledger(statement: Mapping[str, Any], ledger: Ledger) -> None:
    """Checks that the booked noise was drawn, and that without split tables both sides add up."""
    (entry,) = ledger.read_entries()
    stated, booking = statement["ledger"], entry.booking
    sides = {part.side: part for part in booking.parts}
    blocks = [statement.get(name) or {} for name in BLOCKS.values()]
    tested = [item for block in blocks for item in block.get("mechanisms", ())]
    drawn = {"train": statement["mechanisms"], "test": tested}
    for side, part in sides.items():
        noise = {(item.name, item.count, item.sensitivity) for item in part.mechanisms}
        assert noise == {(item["name"], item["count"], item["sensitivity"]) for item in drawn[side]}
        for item in part.mechanisms:
            (same,) = {
                each["noise_multiplier"] for each in drawn[side] if each["name"] == item.name
            }
            assert item.noise_multiplier == pytest.approx(same, rel=1e-6)
    assert ("test" in sides) == bool(tested)
    delta = statement["delta"]
    trained = statement["epsilon_realised"]
    if statement["selection"] is None:
        trained = price(statement["mechanisms"], delta)
    assert booking.pixels is False
    if not tested:
        assert stated["epsilon"] == pytest.approx(trained, rel=5e-3)
    else:  # the sides' images were not compared, so a unit may pay on both
        assert not stated["exact"]
        sides_alone = trained, price(tested, delta)
        assert max(sides_alone) < stated["epsilon"] < 1.1 * sum(sides_alone)
    assert rounded_up(ledger.compute_spent(delta), stated["epsilon"])
    assert stated["releases"] == stated["entry"] == 1
    assert (stated["unit"], stated["delta"]) == (booking.unit, delta)
    assert (booking.place == "toy/first 1") == ("cohort" in statement)
    assert (booking.column == "who") == (booking.unit == "patient")


def check_head(read: bundle.Bundle, options: Mapping[str, Any]) -> None:
    facts = read.facts
    classes = options.get("of", {}).get("classes", 3)
    assert facts.class_names == ("a", "b", "c")[:classes]
    assert read.weights.shape == (classes, 7)
    assert (facts.name, facts.study, facts.dataset, facts.multi_label) == (
        *("first", "unit", "toy", False),
    )
    priors = np.array(facts.head.class_priors or (), np.float32)
    assert np.array_equal(priors, read.arrays.get("class_priors", ()))
    balanced = options.get("method") == "balanced"
    assert bool(priors.size) == balanced
    if "typical_directions" in read.arrays:
        assert "monitor" in options
        found, dimension = read.arrays["typical_directions"].shape
        assert dimension == 6
        # `auto` whitens: more directions of its second moment exceed the noise
        assert 1 <= found <= 6 if options.get("method") == "auto" else found == 1
    else:
        assert options is not EVERYTHING, "its second moments have directions"
    assert (facts.head.chosen is not None) == (options.get("method") == "search")
    text = " ".join((read.folder / bundle.CARD_FILE).read_text().split())
    for words, wanted in {
        "| 90% | ": "calibrate" in options,
        "--operating-point": "operating_point" in options.get("calibrate", {}),
        "--monitor": "monitor" in options,
        "## Contact me": "card" in options,
    }.items():
        assert (words in text) == wanted, words
    subsample = "subsample" in read.statement["public_data"]
    assert subsample == ("subsample" in options.get("more", {}))


@pytest.mark.parametrize("seed", [1, 2])
def test_a_release_with_a_student_states_its_mechanisms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    write_features(tmp_path)
    films = (
        np.random.default_rng(seed).normal(size=(200, release_study.DIMENSION)).astype(np.float32)
    )
    np.save(path := tmp_path / "films.npy", films)
    options: dict[str, Any] = {"head": "momentum", "engine": "exact", "student_share": 0.1}
    options["normalize"] = {"kind": "centred", "public": str(path)}
    monkeypatch.setitem(release_study.METHODS, "student", options)
    folder = release(tmp_path, study(tmp_path, method="student", epsilon=8))
    checks = verify_bundle(folder).checks
    assert [check.detail for check in checks if check.passed is False] == []
    read = bundle.read_bundle(folder)
    student = read.facts.head.student
    assert student is not None
    assert student.used == (student.gain > student.threshold)
    assert read.statement["outputs"] == ["weights", "normalisation", "student_gain"]
    card = " ".join((folder / bundle.CARD_FILE).read_text(encoding="utf-8").split())
    assert "how many more training images a student had right" in card
