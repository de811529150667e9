"""Vectors of a model outside dpprobe: what a study declares of them, and what cannot be done."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from PIL import Image

from dpprobe.backbones.backbone import Backbone
from dpprobe.backbones.feature_digest import NO_PROBE, take_probe
from dpprobe.errors import DataError
from tests.support import backbones

DECLARED: dict[str, Any] = {"family": "external", "model": "speech-96", "each_by_itself": True}


def load(**changes: Any) -> Backbone:
    return backbones.load(**DECLARED | changes)


def test_vectors_pass_as_they_are() -> None:
    vectors = torch.randn(5, 96)
    backbone = load()
    assert torch.equal(backbone.forward(vectors), vectors)
    assert backbone.takes_vectors
    assert backbone.dimension is None
    assert load(dimension=96).dimension == 96
    assert dict(backbone.preprocessing) == {}
    assert [load(pretrained=trained).trained for trained in (True, False)] == [True, False]
    assert take_probe(backbone) == NO_PROBE, "it computes nothing"
    with pytest.raises(DataError, match=r"vectors of speech-96.*a .npy file with these vectors"):
        backbone.transform(Image.new("RGB", (8, 8)))


@pytest.mark.parametrize(
    "change", [{"model": "speech-97"}, {"version": "2"}, {"weights_sha256": "0" * 64}], ids=str
)
def test_another_model_is_another_backbone(change: dict[str, str]) -> None:
    """Stored vectors of one are never taken for those of the other."""
    assert load(**change).fingerprint != load().fingerprint
    assert load().fingerprint == load().fingerprint
