"""Stored activations: those of a network's first part, in shards that are checked like features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dpprobe.backbones.backbone import Runtime
from dpprobe.backbones.loading import load_backbone
from dpprobe.backbones.registry import backbone_options
from dpprobe.data.table import read_info
from dpprobe.errors import ConfigError
from dpprobe.features.extraction import extract_shard
from dpprobe.features.feature_store import FeatureStore
from dpprobe.features.shard_manifest import write_manifest
from dpprobe.finetune.cut_shards import cut_backbone, cut_shape, extract_cut_shard
from dpprobe.finetune.options import Options
from dpprobe.finetune.tuned_network import build_network, tuned_state, whole_network
from dpprobe.heads.normalisation import L2
from dpprobe.heads.rows import Transform
from tests.support.split_tables import encode, write_tables

NETWORK: dict[str, Any] = {
    "family": "timm",
    "model": "mobilenetv2_035",
    "pretrained": False,
    "model_args": {"pad_type": "same"},
    "preprocessing": {"size": 32},
}
ROWS = 7
CPU = Runtime(device="cpu", precision="float32")


def picture(row: int) -> Image.Image:
    values = np.random.default_rng(row).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    return Image.fromarray(values)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    rows = {"train": range(ROWS), "test": range(90, 92)}
    images = {split: [encode(picture(row)) for row in each] for split, each in rows.items()}
    write_tables(folder, images)
    return folder


def extract(
    dataset: Path, output: Path, *, blocks: int | None = 2, shards: int = 1, **changed: Any
) -> FeatureStore:
    output.mkdir(parents=True, exist_ok=True)
    paths = [output / f"shard-{shard:05d}-of-{shards:05d}.h5" for shard in range(shards)]
    for shard, path in enumerate(paths):
        arguments: dict[str, Any] = {
            "table": dataset / "train.parquet",
            "info": dataset / "dataset.json",
            "backbone": backbone_options({**NETWORK, **changed}),
            "backbone_name": "net",
            "split": "train",
            "shard": shard,
            "shards": shards,
            "output": path,
            "batch_size": 4,
            "dtype": "float32",
            "threads": 2,
            "device": "cpu",
        }
        if blocks is None:
            extract_shard(**arguments)
        else:
            extract_cut_shard(blocks=blocks, **arguments)
    info = read_info(dataset / "dataset.json")
    manifest = output / "manifest.json"
    write_manifest(paths, manifest, rows=ROWS, dataset_fingerprint=info.fingerprint)
    return FeatureStore(manifest)


def test_a_network_trained_from_shards_starts_where_the_whole_one_does(
    dataset: Path, tmp_path: Path
) -> None:
    store = extract(dataset, tmp_path, shards=3)
    backbone = load_backbone(backbone_options(NETWORK), runtime=CPU)
    options = Options(tune={"blocks": 2}, init="lecun_normal")
    unit = Transform(L2())
    network = build_network(backbone, options, classes=2, seed=0, device="cpu", transform=unit)
    assert cut_shape(store) == network.shape == (56, 1, 1)
    assert store.preprocessing["cut"] == {"blocks": 2, "shape": [56, 1, 1]}
    assert store.labels.tolist() == [row % 3 for row in range(ROWS)]
    assert store.ids == [f"train-{row}" for row in range(ROWS)]
    stored = torch.from_numpy(store.read()).unflatten(1, network.shape)
    images = torch.stack([backbone.transform(picture(row)) for row in range(ROWS)])
    whole = whole_network(
        backbone, options, tuned_state(network), classes=2, device="cpu", transform=unit
    )
    expected = whole(images)
    assert float(expected.std()) > 0.001
    torch.testing.assert_close(network.module(stored).detach(), expected, rtol=1e-4, atol=1e-5)


def test_shards_and_layers_change_no_activation(dataset: Path, tmp_path: Path) -> None:
    one = extract(dataset, tmp_path / "one", shards=1)
    three = extract(dataset, tmp_path / "three", shards=3, layers="all")
    np.testing.assert_array_equal(one.read(), three.read())
    assert three.layers == {}
    assert extract(dataset, tmp_path / "again").fingerprint == one.fingerprint


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"preprocessing": {"size": 32, "crop": "inception"}}, "preprocessing.crop: inception"),
        ({"preprocessing": {"size": 32, "flip": True}}, "preprocessing.flip"),
        ({"blocks": 18}, "has 17 blocks"),
    ],
)
def test_what_cannot_be_cut_is_refused_before_any_row(
    dataset: Path, tmp_path: Path, changed: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        extract(dataset, tmp_path, **changed)
    assert list(tmp_path.iterdir()) == []


def test_activations_do_not_depend_on_the_batch() -> None:
    backbone = load_backbone(backbone_options(NETWORK), runtime=CPU)
    cut = cut_backbone(backbone, CPU, 4)
    images = torch.stack([backbone.transform(picture(row)) for row in range(5)])
    together = cut.forward(images)
    assert together.dtype == torch.float32
    for row in range(5):
        other = images.clone()
        other[[one for one in range(5) if one != row]] = 0
        assert torch.equal(cut.forward(other)[row], together[row])
