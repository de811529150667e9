"""Vectors from another program: what their options promise, and how vectors are chosen."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dpprobe.backbones import external
from dpprobe.backbones.registry import backbone_options
from dpprobe.errors import ConfigError, DataError
from tests.support.backbones import load, noise

VECTORS: dict[str, Any] = {"family": "external", "model": "speech-96", "each_by_itself": True}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"each_by_itself": False}, "each_by_itself: .*[Tt]rue"),
        ({"each_by_itself": None}, "each_by_itself: .*[Tt]rue"),
        ({"model": ""}, "model: "),
        ({"weights_sha256": "abc"}, "weights_sha256: "),
        ({"vectors": "Two Words"}, "vectors: "),
        ({"grey_bits": 12}, "grey_bits 12 has no effect on vectors; remove it"),
        ({"project": 9}, "project: "),
    ],
)
def test_invalid_options_of_an_external_backbone_are_refused(
    change: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        backbone_options(VECTORS | change)


def test_the_promise_must_be_written() -> None:
    with pytest.raises(ConfigError, match="each_by_itself"):
        backbone_options({"family": "external", "model": "m"})


@pytest.mark.parametrize(
    ("wanted", "known", "chosen"),
    [
        (None, ["one", "speech"], "speech"),  # the backbone's name
        (None, ["vectors"], "vectors"),  # the dataset names no vectors
        (None, ["vectors", "x"], None),
        (None, ["one"], None),
        ("one", ["one", "speech"], "one"),
        ("one", ["vectors"], None),
    ],
)
def test_the_option_or_the_backbone_names_the_vectors_to_use(
    wanted: str | None, known: list[str], chosen: str | None
) -> None:
    options = external.Options(**VECTORS | {"vectors": wanted})
    if chosen is not None:
        assert options.choose_vectors("speech", known) == chosen
        return
    name = wanted or "speech"
    said = (
        f"vectors: the dataset has no vectors named '{name}', only {', '.join(known)}; choose one"
    )
    with pytest.raises(ConfigError, match=said):
        options.choose_vectors("speech", known)


def test_vectors_pass_unchanged_and_images_are_refused() -> None:
    known = {"version": "2", "pretrained": False, "weights_sha256": "0" * 64, "dimension": 96}
    backbone = load(**VECTORS, **known)
    vectors = torch.randn(5, 96)
    assert torch.equal(backbone.compute_features(vectors)[0], vectors)
    assert torch.equal(backbone.forward(vectors.reshape(5, 4, 24)), vectors), "one row per item"
    assert (backbone.architecture, backbone.pretrained_tag) == ("speech-96", "2")
    assert (backbone.trained, backbone.weights_sha256, backbone.dimension) == (False, "0" * 64, 96)
    assert backbone.takes_vectors
    assert load(**VECTORS).trained
    with pytest.raises(DataError, match="takes vectors of speech-96, which dpprobe does not"):
        backbone.transform(noise())
    options = backbone_options(VECTORS)
    assert (options.computed_dimension, options.fewer_features) == (None, None)
    assert not options.network
