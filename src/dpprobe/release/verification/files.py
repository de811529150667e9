"""Checks a bundle's files, and its backbone on the public test image."""

from __future__ import annotations

from pathlib import Path

from dpprobe.artifacts import sha256_file
from dpprobe.release import bundle
from dpprobe.release.bundle import (
    FACTS_FILE,
    HEAD_FILE,
    LISTED_FILES,
    STATEMENT_FILE,
    SUMS_FILE,
    BundleFacts,
    damaged_files,
)
from dpprobe.release.leak_check import check_keys, check_text
from dpprobe.release.stated_values import read_json, require_true
from dpprobe.release.verification.checks import Checks

# Image sizes for which pixel features are computed unasked: untrusted bundles may name huge sizes.
_SIZES = range(1, 513)


def check_files(folder: Path) -> tuple[str, Path]:
    """Checks that the folder contains the files of a bundle and no others."""
    return f"{bundle.check_files(folder)} files: all files of a bundle and no others", folder


def check_hashes(folder: Path) -> tuple[str, bool]:
    damaged = damaged_files(folder)
    require_true(
        not damaged,
        f"these files differ from {SUMS_FILE}: {', '.join(damaged)}; fetch the bundle again",
    )
    lines = "".join(f"{sha256_file(folder / name)}  {name}\n" for name in LISTED_FILES)
    require_true(
        (folder / SUMS_FILE).read_bytes() == lines.encode(),
        f"{SUMS_FILE}: its form differs from dpprobe's; fetch the bundle again",
    )
    return f"all files match {SUMS_FILE}", True


def read_facts(folder: Path) -> tuple[str, BundleFacts]:
    facts = bundle.read_facts(folder)
    return f"release {facts.name} of {facts.dataset}, by dpprobe {facts.dpprobe}", facts


def check_leaks(folder: Path) -> tuple[str, bool]:
    for name in (FACTS_FILE, STATEMENT_FILE):
        check_keys(read_json(folder / name), where=name)
    for name in LISTED_FILES:
        if name != HEAD_FILE:
            check_text((folder / name).read_text(encoding="utf-8"), where=name)
    return "no names or values that look like seeds, fingerprints, paths or times", True


def check_backbone(
    checks: Checks,
    folder: Path | None,
    facts: BundleFacts | None,
    head: bool | None,
    checkpoint: Path | None,
) -> None:
    """Compares preprocessing and features of the public test image, which a valid head scores."""
    options = facts.backbone.options if facts else {}
    if facts and facts.backbone.takes_vectors:
        detail = f"vectors of {options.get('model')}, which dpprobe does not compute"
        checks.note_check("backbone", None, detail)
        return
    cheap = options.get("family") == "pixels" and options.get("size") in _SIZES
    if checkpoint is None and not cheap:
        detail = "pass --checkpoint, or run dpprobe predict, which checks the backbone too"
        checks.note_check("backbone", None, detail)
        return

    def score_probe(place: Path, *_: object) -> tuple[str, bool]:
        # slow to import
        from dpprobe.backbones.feature_digest import probe_image
        from dpprobe.release.predict import Predictor

        predictor = Predictor.load_bundle(place, checkpoint=checkpoint, device="cpu")
        values = predictor.predict_images([probe_image()])[0]
        first = values.argmax()
        return (
            "preprocessing and features of the test image match the release; the head predicts "
            f"{predictor.classes[first]}, {values[first]:.6g}"
        ), True

    checks.run_check("backbone", score_probe, folder, facts, head)
