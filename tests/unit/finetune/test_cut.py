"""A cut network computes what the whole one does, wherever it is cut; what cannot be is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dpprobe.backbones.backbone import Backbone
from dpprobe.errors import ConfigError
from dpprobe.finetune.blocks import blocks_of
from dpprobe.finetune.cut import cut_network
from dpprobe.finetune.prepared import example_images, frozen_model, network_graph
from tests.support import tiny_clip
from tests.support.backbones import (
    DEPTHS,
    images,
    open_clip_backbone,
    real_mobilenet,
    timm_backbone,
)

# The same numbers in other memory formats are rounded differently.
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}


def normalised(backbone: Backbone, bytes_: torch.Tensor) -> torch.Tensor:
    graph = network_graph(backbone)
    values: torch.Tensor = (bytes_.float() / 255 - graph.mean) / graph.std
    return values


def check_every_cut(backbone: Backbone, cuts: Iterator[int] | list[int]) -> None:
    model = frozen_model(backbone)
    x = normalised(backbone, images(backbone, 5))
    with torch.no_grad():
        whole = model(x)
        expected = backbone.forward(images(backbone, 5))
    torch.testing.assert_close(whole, expected, **CLOSE)
    example = example_images(backbone, network_graph(backbone))
    for blocks in cuts:
        prefix, suffix, shape = cut_network(model, blocks, example=example)
        with torch.no_grad():
            activations = prefix(x)
            assert activations.shape == (5, *shape), blocks
            torch.testing.assert_close(suffix(activations), whole, **CLOSE)
            # stored rows are flat and contiguous: the same again
            stored = activations.flatten(1).contiguous().unflatten(1, shape)
            torch.testing.assert_close(suffix(stored), whole, **CLOSE)


@pytest.mark.parametrize("kind", DEPTHS)
def test_a_cut_network_is_the_whole_one_at_every_cut(kind: str) -> None:
    check_every_cut(timm_backbone(kind), list(range(1, DEPTHS[kind] + 1)))


@pytest.mark.parametrize(("model", "depth"), [("tiny", 3), ("tiny-timm", 6), ("tiny-resnet", 4)])
def test_a_cut_tower_of_open_clip_is_the_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, depth: int
) -> None:
    tiny_clip.register(tmp_path, monkeypatch)
    check_every_cut(open_clip_backbone(model), list(range(1, depth + 1)))


def test_the_real_mobilenet_is_cut_at_both_ends_and_between(shared_data: Path) -> None:
    """The small one of its family is cut before every block above."""
    check_every_cut(real_mobilenet(shared_data), [1, 6, 12, 17])


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
    """Four blocks on vectors, in a pass that subclasses write."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.scale = nn.Parameter(torch.full((6,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x * self.scale


class Skipping(Chain):
    """Its input goes around its blocks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for block in self.blocks:
            y = block(y)
        return x + y


class Branching(Chain):
    """It asks for a value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            x = -x
        return super().forward(x)


class Counting(Chain):
    """It asks for the number of images."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.blocks[0](x).shape[0] > 1:
            x = -x
        return super().forward(x)


class Shared(Chain):
    """One parameter scales before and after its blocks, and a size crosses the cut."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        width = x.shape[1]
        return super().forward(x * self.scale) / width


class Defaulted(Chain):
    """Further arguments decide its way, and have their defaults."""

    def forward(self, x: torch.Tensor, mask: Any = None, *, double: bool = False) -> torch.Tensor:
        if mask is not None:
            x = x * mask
        return super().forward(x) * (2 if double else 3)


class Dividing(Chain):
    """The number of images crosses the cut."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = x.shape[0]
        return super().forward(x) / count


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
