"""Vectors of a model outside dpprobe: what a study declares of them, and what cannot be done."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from PIL import Image
from pydantic import ValidationError

from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.backbones.external import Options
from dpprobe.backbones.feature_digest import NO_PROBE, take_probe
from dpprobe.backbones.loading import load_backbone
from dpprobe.backbones.registry import backbone_options
from dpprobe.errors import ConfigError, DataError

DECLARED: dict[str, Any] = {"family": "external", "model": "speech-96", "each_by_itself": True}


def load(**changes: Any) -> Backbone:
    return load_backbone(backbone_options({**DECLARED, **changes}), runtime=Runtime(device="cpu"))


def test_vectors_pass_as_they_are() -> None:
    vectors = torch.randn(5, 96)
    backbone = load()
    assert torch.equal(backbone.forward(vectors), vectors)
    assert backbone.takes_vectors
    assert backbone.dimension is None
    assert load(dimension=96).dimension == 96
    assert dict(backbone.preprocessing) == {}


def test_it_has_no_probe_because_it_computes_nothing() -> None:
    assert take_probe(load()) == NO_PROBE


def test_an_image_is_refused_with_the_remedy() -> None:
    with pytest.raises(DataError, match=r"vectors of speech-96.*a .npy file with these vectors"):
        load().transform(Image.new("RGB", (8, 8)))


@pytest.mark.parametrize(
    "change", [{"model": "speech-97"}, {"version": "2"}, {"weights_sha256": "0" * 64}], ids=str
)
def test_another_model_is_another_backbone(change: dict[str, str]) -> None:
    """Stored vectors of one are never taken for those of the other."""
    assert load(**change).fingerprint != load().fingerprint
    assert load().fingerprint == load().fingerprint


@pytest.mark.parametrize("trained", [True, False])
def test_the_statement_knows_whether_it_was_trained(trained: bool) -> None:
    assert load(pretrained=trained).trained is trained


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"each_by_itself": False}, "each_by_itself"),
        ({"each_by_itself": None}, "each_by_itself"),
        ({"model": ""}, "model"),
        ({"weights_sha256": "abc"}, "weights_sha256"),
        ({"vectors": "Two Words"}, "vectors"),
        ({"checkpoint": "model.pt"}, "checkpoint"),
    ],
)
def test_what_is_not_declared_well_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        backbone_options({**DECLARED, **changes})


def test_the_declaration_has_no_default() -> None:
    with pytest.raises(ValidationError, match="each_by_itself"):
        Options(model="speech-96")  # type: ignore[call-arg]
