"""Writes a small complete bundle for images of 8 x 8 pixels, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.backbones.feature_digest import take_probe
from dpprobe.code_version import code_version
from dpprobe.heads.fitted import CLASS_PRIORS
from dpprobe.heads.registry import method_options
from dpprobe.privacy.noise_calibration import calibrate
from dpprobe.privacy.target import Target
from dpprobe.release.bundle import BackboneFacts, BundleFacts, HeadFacts, write_bundle, write_sums
from dpprobe.release.documents.release_statement import describe_test_units, release_statement
from dpprobe.release.parts.predecessor.measure import identify_bundle

CLASSES = ("naevus", "melanoma", "keratosis")
PRIORS = np.array([0.7, 0.25, 0.05], dtype=np.float32)
LEDGER: dict[str, Any] = {
    "entry": 1,
    "releases": 1,
    "unit": "image",
    "delta": 1e-5,
    "epsilon": 1.0,
    "exact": True,
}
CHOICE: dict[str, Any] = {"cells": 0, "epsilon": None, "uncovered": None}


def state_tested(n: int) -> dict[str, Any]:
    """Returns the facts of test units that were drawn by ids and compared with training units."""
    return describe_test_units(n=n, rule="id, seed 0, fraction 0.2", compared=("bytes", "pixels"))


def describe_backbone(loaded: Backbone, **facts: Any) -> BackboneFacts:
    """Returns a bundle's description of a loaded backbone."""
    facts = {"checkpoint": None, "precision": "float32", "dtype": "float32", "versions": {}} | facts
    return BackboneFacts(
        weights_sha256=loaded.weights_sha256,
        architecture=loaded.architecture,
        pretrained_tag=loaded.pretrained_tag,
        trained=loaded.trained,
        preprocessing=dict(loaded.preprocessing),
        probe=take_probe(loaded),
        **facts,
    )


def write_files(folder: Path, facts: BundleFacts, **contents: Any) -> Path:
    """Writes a bundle with placeholder documents; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_bundle(folder, facts, **contents)
    for name in ("README.md", "release.html"):
        (folder / name).write_text("written by other tests\n")
    write_sums(folder)
    return folder


def write_example(
    folder: Path,
    *,
    options: dict[str, Any] | None = None,
    epsilon: float = 1.0,
    n: int = 1500,
    evaluation: dict[str, Any] | None = None,
    choice: dict[str, Any] | None = None,
    ledger: dict[str, Any] | None = None,
    subsample: dict[str, Any] | None = None,
    name: str = "lesions_v1",
    predecessor: Path | None = None,
    classes: tuple[str, ...] = CLASSES,
) -> Path:
    """Writes a bundle of random weights with placeholder documents; returns its folder."""
    from dpprobe.backbones.loading import load_backbone
    from dpprobe.backbones.pixels import Options as Pixels

    folder.mkdir(parents=True)
    method = method_options(options or {"head": "feature_covariance", "normalize": "l2"})
    plan = calibrate(
        method.list_mechanisms(n),
        Target(n=n, epsilon=epsilon, delta=1e-5),
        cache=folder.parent / "calibration",
        selection=method.priced_selection(n),
    )
    backbone = Pixels(family="pixels", size=8)
    loaded = load_backbone(backbone, runtime=Runtime(device="cpu"))
    generator = np.random.default_rng(0)
    weights = generator.normal(size=(len(classes), 64 + 1)).astype(np.float32)
    facts = BundleFacts(
        name=name,
        study="clinic",
        dataset="lesions",
        dpprobe=code_version(),
        class_names=classes,
        multi_label=False,
        dimension=64,
        backbone=describe_backbone(loaded, name="pixels", options=backbone.extraction_params()),
        head=HeadFacts(
            options=method.model_dump(mode="json"),
            method="covariance",
            chosen=None,
            class_priors=tuple(PRIORS.tolist()) if method.releases_priors else None,
            link=method.link_on(False),
        ),
    )
    statement = release_statement(
        plan,
        method,
        facts,
        file_hashes={},
        blocks={
            "evaluation": evaluation,
            "choice": CHOICE if choice is None else choice,
            "ledger": LEDGER if ledger is None else ledger,
            "predecessor": identify_bundle(predecessor) if predecessor else None,
        },
        subsample=subsample,
        test_units=evaluation and state_tested(evaluation["n"]),
    )
    arrays = {CLASS_PRIORS: PRIORS} if method.releases_priors else {}
    return write_files(folder, facts, weights=weights, arrays=arrays, statement=statement)
