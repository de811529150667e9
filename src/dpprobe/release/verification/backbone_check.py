"""Computes a bundle's backbone on the public test image, if no file must be fetched."""

from __future__ import annotations

from pathlib import Path

from dpprobe.release.bundle import BundleFacts
from dpprobe.release.verification.checks import Checks

# Sizes of pixel backbones that are computed without being asked for: a stranger's may be huge.
_SIZES = range(1, 513)


def check_backbone(
    checks: Checks,
    folder: Path | None,
    facts: BundleFacts | None,
    head: bool | None,
    checkpoint: Path | None,
) -> None:
    """Compares preprocessing and features of the test image, and scores it if the head is valid."""
    options = facts.backbone.options if facts else {}
    if facts and facts.backbone.takes_vectors:
        detail = f"vectors of {options.get('model')}, which dpprobe does not compute"
        checks.note_check("backbone", None, detail)
        return
    cheap = options.get("family") == "pixels" and options.get("size") in _SIZES
    if checkpoint is None and not cheap:
        detail = "not computed: give --checkpoint, or let dpprobe predict compare it"
        checks.note_check("backbone", None, detail)
        return

    def score_probe(place: Path, *_: object) -> tuple[str, bool]:
        # heavy: torch
        from dpprobe.backbones.feature_digest import probe_image
        from dpprobe.release.predict import Predictor

        predictor = Predictor.load_bundle(place, checkpoint=checkpoint, device="cpu")
        values = predictor.predict_images([probe_image()])[0]
        first = values.argmax()
        return (
            "preprocessing and features of the test image are the release's; the head gives it "
            f"{predictor.classes[first]}, {values[first]:.6g}"
        ), True

    checks.run_check("backbone", score_probe, folder, facts, head)
