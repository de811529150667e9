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
