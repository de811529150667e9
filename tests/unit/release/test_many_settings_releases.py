"""Whole releases over many settings: verified, booked, final, and stated as before."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpprobe.privacy.entropy import SEEDED
from dpprobe.release import bundle
from dpprobe.release.ledger import Ledger
from dpprobe.release.verification.verify import verify_bundle
from tests.support import release_study
from tests.support.edited_bundles import failed
from tests.support.release_study import release, study, write_features
from tests.support.stored_records import check_values, to_plain

VERSION = re.compile(r" \d[\w.+-]*(?=\))")
EVERYTHING = {"calibrate": {"epsilon": 2}, "evaluate": {"epsilon": 1}, "monitor": {"epsilon": 2}}
AREA = {"calibrate": {}, "evaluate": {"epsilon": 2, "metric": "auc"}}
HALF = {"more": {"subsample": {"fraction": 0.5, "seed": 3}}}
# Options of a release; `of` has the classes, images per patient and options of the study.
RELEASES: dict[str, dict[str, Any]] = {
    "covariance": {},
    "sums": {"method": "sums", "evaluate": {"epsilon": 8, "metric": "macro_accuracy"}},
    "steps": {"method": "steps", "evaluate": {"epsilon": 1, "metric": "accuracy"}},
    "search": {"method": "search", "evaluate": {"epsilon": 3}, "monitor": {"epsilon": 2}},
    "auto of a half": {"method": "auto", "monitor": {"epsilon": 2}, **HALF},
    "balanced": {"method": "balanced", "card": {"license": "mit", "contact": "me"}},
    "patients": {"of_patients": True, "of": {"images_per_patient": 3}, **EVERYTHING},
    "everything": EVERYTHING,
    "calibrated": {"calibrate": {"epsilon": 2}},
    "two": {"of": {"classes": 2, "accountant": "rdp"}, **EVERYTHING},
    "two of the area": {"of": {"classes": 2, "metric": "macro_accuracy"}, **AREA},
    "horizon": {"cohort": "2026-01", "horizon": 4, "delta": 1e-5},
    "alone": {"of": {"methods": ("covariance",)}},
    "private cells": {"of": {"methods": ("covariance", "steps", "search")}, "epsilon": 1},
}


@pytest.mark.parametrize("name", RELEASES)
def test_a_release_is_whole_verified_booked_and_stated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Its noise comes from a seed here."""
    for module in ("make", "transport"):
        monkeypatch.setattr(f"dpprobe.release.{module}.SystemEntropy", lambda: SEEDED)
    given = dict(RELEASES[name])
    of = dict(given.pop("of", {}))
    classes = of.pop("classes", 3)
    monkeypatch.setattr(release_study, "ROWS", {"train": 300, "test": 600})
    monkeypatch.setattr(release_study, "CLASSES", ("a", "b", "c")[:classes])
    write_features(
        tmp_path, shares=(1,) * classes, images_per_patient=of.pop("images_per_patient", None)
    )
    made = study(tmp_path, **given)
    if (metric := of.pop("metric", None)) is not None:  # of the dataset; it may follow from labels
        of["datasets"] = {"toy": made.datasets["toy"].model_copy(update={"metric": metric})}
    if "methods" in of:
        of["methods"] = {each: made.methods[each] for each in of["methods"]}
    made = made.model_copy(update=of)
    output = release(tmp_path, made)
    assert failed(verify_bundle(output)) == []
    contents = {path.name: path.read_bytes() for path in output.iterdir()}
    assert set(contents) == set(bundle.BUNDLE_FILES)
    (kept,) = output.parent.glob(".first.*")
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == contents, "a copy is kept"
    read = bundle.read_bundle(output)
    priors = np.array(read.facts.head.class_priors or (), np.float32)
    assert np.array_equal(priors, read.arrays.get("class_priors", ()))
    (entry,) = Ledger.of_dataset(tmp_path / "data", "toy").read_entries()
    assert (entry.state, entry.digest) == ("closed", bundle.bundle_digest(output))
    assert release(tmp_path, made) == output
    assert bundle.bundle_digest(output) == entry.digest, "a release is final"
    facts = to_plain(read.facts.model_dump(exclude={"dpprobe": True, "backbone": True}))
    booking = entry.booking.to_dict()
    del booking["identity"], booking["units"]
    statement = dict(read.statement)
    for key in ("accountant", "checks", "check_notes"):  # without the libraries' versions
        statement[key] = [
            VERSION.sub("", each)
            for each in ([statement[key]] if key == "accountant" else statement[key])
        ]
    text = " ".join((output / bundle.CARD_FILE).read_text().split())
    said = [
        words
        for words in ("How sure it is", "--monitor", "assume equally frequent")
        if words in text
    ]
    check_values(
        f"releases_{name.replace(' ', '_')}",
        {
            "facts": facts,
            "arrays": {key: each.shape for key, each in sorted(read.arrays.items())},
            "booking": booking,
            "said": said,
            "statement": statement,
        },
        rel=1e-4,
    )
