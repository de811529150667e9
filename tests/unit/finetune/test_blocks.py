"""The blocks that `tune: {blocks: k}` counts: all of them, in the order of the forward pass."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from dpprobe.backbones.backbone import Backbone
from dpprobe.errors import ConfigError
from dpprobe.finetune.blocks import blocks_of
from dpprobe.finetune.prepared import frozen_model
from tests.support import tiny_clip
from tests.support.backbones import DEPTHS, images, open_clip_backbone, timm_backbone


def model_of(backbone: Backbone) -> nn.Module:
    assert backbone.graph is not None
    return backbone.graph.model  # type: ignore[return-value]


@pytest.mark.parametrize("kind", DEPTHS)
def test_blocks_are_all_blocks_in_the_order_of_the_pass(kind: str) -> None:
    backbone = timm_backbone(kind)
    assert backbone.graph is not None
    blocks = blocks_of(model_of(backbone), kind)
    assert len(blocks) == DEPTHS[kind]
    called: list[nn.Module] = []
    for block in blocks:
        block.register_forward_hook(lambda module, _inputs, _output: called.append(module))
    with torch.no_grad():
        backbone.graph(images(backbone, 1))
    assert len(called) == len(blocks)
    assert all(one is other for one, other in zip(called, blocks, strict=True))
    if kind == "mobilenet":  # no stages
        names = {type(block).__name__ for block in blocks}
        assert names == {"DepthwiseSeparableConv", "InvertedResidual"}


@pytest.mark.parametrize(("model", "depth"), [("tiny", 3), ("tiny-timm", 6), ("tiny-resnet", 4)])
def test_blocks_inside_open_clip_towers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, depth: int
) -> None:
    tiny_clip.register(tmp_path, monkeypatch)
    backbone = open_clip_backbone(model)
    assert len(blocks_of(model_of(backbone), model)) == depth
    # the copies that are trained have them too, within their wrappers
    assert len(blocks_of(frozen_model(backbone), model)) == depth


def test_a_network_without_blocks_is_refused_by_name() -> None:
    with pytest.raises(
        ConfigError, match="plain_net gives no access to its blocks; write `tune: all`"
    ):
        blocks_of(nn.Sequential(nn.Linear(2, 2)), "plain_net")
