"""Sizes of what studies fetch and keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from dpprobe.errors import ConfigError
from reproduction import disk, facts
from reproduction.disk import measure_disk
from tests.support.reproduction import known


def test_features_and_activations_are_rows_by_numbers_by_two_bytes() -> None:
    law = measure_disk("config/representation_law.yaml", facts.read())
    assert law.features == pytest.approx(2 * 11_000 * 768 / 1e9)
    assert law.activations == pytest.approx(12 * 2 * 11_000 * 197 * 768 / 1e9)
    assert law.weights == pytest.approx(4 * 85_798_656 / 1e9)
    assert law.fetched == {"cifar10": 0.16}


def test_networks_of_searches_count() -> None:
    """12 block counts at three epsilons: three seeds each, constant and after 25 trials."""
    law = measure_disk("config/representation_law.yaml", facts.read())
    constant, searched = 13 * 3, 12 * (3 + 25)
    assert law.networks == 3 * (constant + searched)
    models = measure_disk("config/large_scale_transfer_models.yaml", facts.read())
    assert models.networks == 2 * (3 + 54)


def test_one_model_at_several_sizes_is_fetched_once() -> None:
    steps = measure_disk("config/large_scale_transfer_one_step.yaml", facts.read())
    assert steps.weights == pytest.approx(4 * 630_764_800 / 1e9)
    assert steps.features == pytest.approx(4 * 2 * 1_331_167 * 1280 / 1e9)
    assert steps.fetched == {"imagenet": 150}


def test_stored_crops_of_training_images_are_kept() -> None:
    crops = measure_disk("config/large_scale_transfer_crops.yaml", facts.read())
    vectors = 3 * (11 * 1_281_167 + 50_000) + 1_331_167
    assert crops.features == pytest.approx(2 * vectors * 1280 / 1e9)


def test_scattering_fetches_no_weights() -> None:
    mnist = measure_disk("config/scatternet_mnist.yaml", facts.read())
    assert (mnist.weights, mnist.networks, mnist.activations) == (0, 0, 0)
    assert mnist.features == pytest.approx(2 * 70_000 * 81 * 7 * 7 / 1e9)


def test_a_network_without_sizes_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"networks: no 'vit_base_patch16_224\S+'; add its sizes"):
        measure_disk("config/representation_law.yaml", known())


def test_a_private_dataset_without_a_catalog_entry_is_your_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (disk.ROOT / "config/own_images.yaml").read_text(encoding="utf-8")
    (tmp_path / "own.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(disk, "ROOT", tmp_path)
    measured = measure_disk("own.yaml", facts.read())
    assert (measured.fetched, measured.features) == ({}, 0)


@pytest.mark.parametrize("model", ["resnet50.tv_in1k", "vit_base_patch16_224.augreg_in21k"])
def test_sizes_of_networks_are_those_of_timm(model: str) -> None:
    with torch.device("meta"):
        network: Any = timm.create_model(model.partition(".")[0], pretrained=False, num_classes=0)
    sizes = facts.read().networks[model]
    assert sum(p.numel() for p in network.parameters()) == sizes.parameters
    assert network.num_features == sizes.features
