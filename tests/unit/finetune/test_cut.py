"""A cut network computes the same as the whole network, also from stored activations."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.backbones.loading import load_backbone
from dpprobe.backbones.network_forward import Graph
from dpprobe.backbones.registry import backbone_options
from dpprobe.backbones.row_mixing import make_public_rows
from dpprobe.data.table import read_info
from dpprobe.errors import ConfigError, StoreError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.features.shard_manifest import write_manifest
from dpprobe.finetune.blocks import blocks_of
from dpprobe.finetune.cut import cut_network
from dpprobe.finetune.cut_shards import cut_backbone, cut_shape, extract_cut_shard
from dpprobe.finetune.fine_tuned_network import build_network, tuned_state, whole_network
from dpprobe.finetune.options import Options
from dpprobe.finetune.trained_parameters import example_images, frozen_model, network_graph
from dpprobe.heads.normalisation import L2
from dpprobe.heads.transform import Transform
from tests.support import tiny_clip
from tests.support.backbones import (
    DEPTHS,
    images,
    open_clip_backbone,
    real_mobilenet,
    timm_backbone,
)
from tests.support.split_tables import encode, write_tables

# Other memory formats round the same numbers differently.
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}


def normalised(backbone: Backbone, bytes_: torch.Tensor) -> torch.Tensor:
    graph = network_graph(backbone)
    values: torch.Tensor = (bytes_.float() / 255 - graph.mean) / graph.std
    return values


def check_every_cut(backbone: Backbone, cuts: list[int], depth: int) -> None:
    """Cuts a network at each of `cuts`; checks that the pass runs all `depth` blocks in order."""
    assert isinstance(backbone.graph, Graph)
    assert len(blocks_of(backbone.graph.model, "net")) == depth
    model = frozen_model(backbone)
    x = normalised(backbone, images(backbone, 5))
    blocks, called = blocks_of(model, "net"), list[nn.Module]()
    hooks = [
        block.register_forward_hook(lambda module, _inputs, _output: called.append(module))
        for block in blocks
    ]
    with torch.no_grad():
        whole = model(x)
        expected = backbone.forward(images(backbone, 5))
    assert len(called) == len(blocks) == depth
    assert all(one is other for one, other in zip(called, blocks, strict=True))
    for hook in hooks:
        hook.remove()
    torch.testing.assert_close(whole, expected, **CLOSE)
    example = example_images(backbone, network_graph(backbone))
    rows = make_public_rows(example.shape[1:], torch.uint8)
    assert torch.equal(example, normalised(backbone, rows))
    for count in cuts:
        prefix, suffix, shape = cut_network(model, count, example=example)
        with torch.no_grad():
            activations = prefix(x)
            assert activations.shape == (5, *shape), count
            torch.testing.assert_close(suffix(activations), whole, **CLOSE)
            # stored rows are flat and contiguous, but give the same result
            stored = activations.flatten(1).contiguous().unflatten(1, shape)
            torch.testing.assert_close(suffix(stored), whole, **CLOSE)


@pytest.mark.parametrize("kind", DEPTHS)
def test_a_cut_network_is_the_whole_one_at_every_cut(kind: str) -> None:
    check_every_cut(timm_backbone(kind), list(range(1, DEPTHS[kind] + 1)), DEPTHS[kind])


@pytest.mark.parametrize(("model", "depth"), [("tiny", 3), ("tiny-timm", 6), ("tiny-resnet", 4)])
def test_a_cut_tower_of_open_clip_is_the_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, depth: int
) -> None:
    tiny_clip.register(tmp_path, monkeypatch)
    check_every_cut(open_clip_backbone(model), list(range(1, depth + 1)), depth)


def test_the_real_mobilenet_is_cut_at_both_ends_and_between(test_data: Path) -> None:
    """The small model of its family, in the test above, is cut before every block."""
    check_every_cut(real_mobilenet(test_data), [1, 6, 12, 17], 17)


def test_parts_share_the_parameters_of_the_whole_under_their_names() -> None:
    backbone = timm_backbone("mobilenet")
    model = frozen_model(backbone)
    example = example_images(backbone, network_graph(backbone))
    prefix, suffix, _ = cut_network(model, 3, example=example)
    whole = dict(model.named_parameters())
    parts = dict(prefix.named_parameters()) | dict(suffix.named_parameters())
    assert parts.keys() == whole.keys()
    assert all(parts[path] is one for path, one in whole.items())
    assert not set(dict(prefix.named_parameters())) & set(dict(suffix.named_parameters()))
    last = {f"blocks.{stage}.{block}" for stage, block in ((5, 1), (5, 2), (6, 0))}
    blocks = {path for path, _ in suffix.named_parameters() if path.startswith("blocks.")}
    assert {".".join(path.split(".")[:3]) for path in blocks} == last


class Chain(nn.Module):
    """Four blocks on vectors; subclasses write the pass."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.scale = nn.Parameter(torch.full((6,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x * self.scale


class Skipping(Chain):
    """Adds its input to the output of its blocks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for block in self.blocks:
            y = block(y)
        return x + y


class Branching(Chain):
    """Branches on a value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            x = -x
        return super().forward(x)


class Counting(Chain):
    """Branches on the number of images."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.blocks[0](x).shape[0] > 1:
            x = -x
        return super().forward(x)


class Shared(Chain):
    """Scales by one parameter before and after the blocks, and uses a size across the cut."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        width = x.shape[1]
        return super().forward(x * self.scale) / width


class Defaulted(Chain):
    """Has further arguments with defaults, which change its computation."""

    def forward(self, x: torch.Tensor, mask: Any = None, *, double: bool = False) -> torch.Tensor:
        if mask is not None:
            x = x * mask
        return super().forward(x) * (2 if double else 3)


class Dividing(Chain):
    """Uses the number of images across the cut."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = x.shape[0]
        return super().forward(x) / count


class Changing(Chain):
    """Returns other numbers in each call."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x) + 1e-3 * self.calls


class Naming(Chain):
    """Passes tensors to its blocks by name."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(input=x)
        return x


class Transposed(Chain):
    """Its blocks take [length, batch, width]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.stack([x, 2 * x, 3 * x])
        for block in self.blocks:
            x = block(x)
        return x.mean(0)


@pytest.mark.parametrize("make", [Shared, Defaulted])
def test_constants_and_sizes_are_copied_behind_the_cut(make: type[Chain]) -> None:
    model, x = make().eval(), torch.randn(3, 6)
    prefix, suffix, shape = cut_network(model, 2, example=x)
    assert shape == (6,)
    torch.testing.assert_close(suffix(prefix(x)), model(x))
    assert "scale" in dict(suffix.named_parameters())


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Skipping(), "more than one tensor of net would cross the cut"),
        (Dividing(), "more than one tensor of net would cross the cut"),
        (Branching(), "the forward pass of net cannot be traced"),
        (Counting(), "the forward pass of net cannot be traced"),
        (Changing(), "net gives different features when it is cut into two"),
        (nn.Sequential(nn.Linear(6, 6)), "net gives no access to its blocks; write `tune: all`"),
        (Naming(), "net does not pass a tensor through its blocks one by one"),
        (Transposed(), r"activations of net have shape \[3, 1, 6\] for one image"),
    ],
)
def test_networks_that_cannot_be_cut_are_refused(model: nn.Module, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        cut_network(model.eval(), 2, example=torch.randn(2, 6), name="net")


def test_a_cut_leaves_the_whole_network_as_it_was() -> None:
    model, x = Chain().eval(), torch.randn(2, 6)
    before, modules = model(x), [type(one) for one in model.modules()]
    cut_network(model, 2, example=x)
    assert torch.equal(model(x), before)
    assert [type(one) for one in model.modules()] == modules
    assert len(blocks_of(model, "net")) == 4


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
    dataset: Path, output: Path, *, blocks: int = 2, shards: int = 1, **changed: Any
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
        extract_cut_shard(blocks=blocks, **arguments)
    info = read_info(dataset / "dataset.json")
    manifest = output / "manifest.json"
    write_manifest(paths, manifest, rows=ROWS, dataset_fingerprint=info.fingerprint)
    return FeatureStore(manifest)


def test_features_are_not_accepted_as_stored_activations() -> None:
    store: Any = SimpleNamespace(preprocessing={"color": "RGB"}, path="here")
    with pytest.raises(StoreError, match="here: has features of a whole backbone instead of"):
        cut_shape(store)


def test_a_network_of_shards_starts_where_the_whole_one_does_in_any_division(
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
