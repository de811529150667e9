"""Bundles of a joined backbone: every member is loaded and run, also in one ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import timm
import torch
from PIL import Image

from dpprobe.backbones.feature_digest import NO_PROBE
from dpprobe.errors import ConfigError
from dpprobe.features.joined_rows import unit_rows
from dpprobe.files.plain_files import sha256_file
from dpprobe.release.bundle import BackboneFacts, read_bundle
from dpprobe.release.export import export_onnx
from dpprobe.release.predict import Predictor
from dpprobe.release.verification.verify import verify_bundle
from tests.support.bundles import write_files
from tests.support.network_bundles import write_release
from tests.support.refusals import refuses

MODELS = {"first": "test_vit", "second": "test_resnet"}


def describe_member(one: BackboneFacts) -> dict[str, Any]:
    return {
        "backbone": one.name,
        "backbone_options": one.options,
        "trained": one.trained,
        "weights_sha256": one.weights_sha256,
    }


def write_joined(folder: Path, *members: BackboneFacts) -> Path:
    """Writes a bundle of a joined backbone with the members' facts and a random head."""
    single = read_bundle(folder.with_name("first"))
    options = {
        "family": "joined",
        "of": [one.name for one in members],
        "members": [describe_member(one) for one in members],
    }
    joined = BackboneFacts(
        name="both",
        options=options,
        checkpoint=None,
        weights_sha256=None,
        architecture=None,
        pretrained_tag=None,
        trained=True,
        preprocessing={},
        precision="float32",
        dtype="float32",
        probe=dict(NO_PROBE),
        versions={},
        members=members,
    )
    width = 64 + 96  # the sum of both models' widths
    weights = np.random.default_rng(3).normal(size=(3, width + 1)).astype(np.float32)
    facts = single.facts.model_copy(update={"backbone": joined, "dimension": width})
    return write_files(folder, facts, weights=weights, arrays={}, statement=single.statement)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes the bundle `both` of two networks, with the weights in first.pth and second.pth."""
    folder = tmp_path_factory.mktemp("joined")
    members = []
    for name, model in MODELS.items():
        torch.manual_seed(len(name))
        weights = folder / f"{name}.pth"
        torch.save(timm.create_model(model, num_classes=0).state_dict(), weights)
        backbone = {"family": "timm", "model": model, "checkpoint": str(weights)}
        made = write_release(folder / name, backbone, dtype="float16")
        members.append(read_bundle(made).facts.backbone.model_copy(update={"name": name}))
    write_joined(folder / "both", *members)
    return folder


@pytest.fixture(scope="module")
def weights(folder: Path) -> list[Path]:
    return [folder / f"{name}.pth" for name in reversed(MODELS)]


def picture(seed: int) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 256, (90, 70, 3), dtype=np.uint8)
    return Image.fromarray(values)


def test_scores_of_joined_backbones_use_unit_rows(folder: Path, weights: list[Path]) -> None:
    """Files of weights are recognised by their hashes, in any order."""
    predictor = Predictor.load_bundle(folder / "both", checkpoint=weights, device="cpu")
    images = [picture(seed) for seed in range(3)]
    rows = []
    for name in MODELS:
        member = Predictor.load_bundle(
            folder / name, checkpoint=folder / f"{name}.pth", device="cpu"
        ).backbone
        features = member.forward(torch.stack([member.transform(image) for image in images]))
        rows.append(unit_rows(features.numpy().astype(np.float16)))
    expected = predictor.score_features(np.hstack(rows))
    np.testing.assert_allclose(predictor.predict_images(images), expected, atol=1e-5)


def test_one_onnx_file_has_all_members(folder: Path, weights: list[Path], tmp_path: Path) -> None:
    done = export_onnx(folder / "both", tmp_path / "both.onnx", checkpoint=weights)
    predictor = Predictor.load_bundle(folder / "both", checkpoint=weights, device="cpu")
    images = [picture(seed) for seed in range(2)]
    rows = torch.stack([predictor.backbone.transform(image) for image in images]).numpy()
    session = onnxruntime.InferenceSession(str(done.path), providers=["CPUExecutionProvider"])
    given = session.run(None, {"images": rows})[0]
    np.testing.assert_allclose(given, predictor.predict_images(images), atol=1e-4)
    assert all(name in done.input for name in MODELS)


def test_verify_runs_the_members_that_it_has_weights_of(folder: Path, weights: list[Path]) -> None:
    def check(given: list[Path] | None) -> bool | None:
        report = verify_bundle(folder / "both", checkpoint=given)
        (found,) = (one for one in report.checks if one.name == "backbone")
        return found.passed

    assert check(weights) is not False
    assert check(None) is None


def test_missing_and_foreign_weights_are_refused(folder: Path, tmp_path: Path) -> None:
    sha256 = sha256_file(folder / "second.pth")
    with refuses(ConfigError, "--checkpoint FILE", "second", "second.pth", sha256):
        Predictor.load_bundle(folder / "both", checkpoint=folder / "first.pth")
    other = tmp_path / "other.pth"
    other.write_bytes(b"other")
    with refuses(ConfigError, "--checkpoint", other, "first.pth", "second.pth", sha256):
        Predictor.load_bundle(folder / "both", checkpoint=[folder / "first.pth", other])
