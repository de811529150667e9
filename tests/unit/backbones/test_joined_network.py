"""Joined networks give the rows that the feature store joins from its members' shards."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from dpprobe.backbones.joined import Options
from dpprobe.backbones.joined_network import join_backbones
from dpprobe.backbones.loading import load_backbone
from dpprobe.errors import ConfigError
from dpprobe.features.joined_rows import unit_rows
from tests.support.backbones import CPU, load, noise, run
from tests.support.refusals import refuses

# One network on 64 x 64 pixels in bytes, and 8 x 8 grey pixels in float32.
MEMBERS = {
    "network": load(family="timm", model="test_resnet", pretrained=False),
    "pixels": load(family="pixels", size=8, color="gray"),
}


def test_rows_equal_stored_rows_of_the_members() -> None:
    """Each member's features are rounded as in its shards, then scaled."""
    joined = join_backbones(MEMBERS, ["float16", "float32"])
    pictures = [noise((90, 70), seed=seed) for seed in range(3)]
    parts = [run(member, *pictures).numpy() for member in MEMBERS.values()]
    expected = np.hstack([unit_rows(parts[0].astype(np.float16)), unit_rows(parts[1])])
    assert joined.dimension == expected.shape[1]
    np.testing.assert_array_equal(run(joined, *pictures).numpy(), expected)


def test_the_preprocessing_can_be_sent_to_decoding_processes() -> None:
    joined = join_backbones(MEMBERS, ["float16", "float16"])
    sent = pickle.loads(pickle.dumps(joined.transform))
    assert torch.equal(sent(noise()), joined.transform(noise()))


def test_only_networks_on_bytes_have_a_graph() -> None:
    both = {"first": MEMBERS["network"], "second": MEMBERS["network"]}
    joined = join_backbones(both, ["float16", "float16"])
    images = torch.stack([joined.transform(noise((90, 70)))])
    assert joined.graph is not None
    torch.testing.assert_close(joined.graph(images), joined.forward(images))
    assert join_backbones(MEMBERS, ["float16", "float16"]).graph is None


def test_features_that_depend_on_the_images_size_are_refused() -> None:
    with refuses(ConfigError, "free", "size"):
        join_backbones({**MEMBERS, "free": load(family="pixels")}, ["float16"] * 3)


def test_a_joined_backbone_alone_cannot_be_loaded() -> None:
    with refuses(ConfigError, "joined", "a, b", "join_backbones"):
        load_backbone(Options(of=("a", "b")), runtime=CPU)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"of": ["a"]}, ("of", "2")),
        ({"of": ["a", "b", "a"]}, ("a", "twice", "remove")),
        ({"of": ["a", "b"], "jpeg_decoding": "scaled"}, ("jpeg_decoding", "of")),
        ({"of": ["a", "b"], "grey_bits": 12}, ("grey_bits", "of")),
    ],
)
def test_options_without_effect_are_refused(
    options: dict[str, object], words: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError, match="joined|Options") as raised:
        Options.model_validate(options)
    assert all(word in str(raised.value) for word in words)
