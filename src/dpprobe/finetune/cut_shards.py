"""Feature shards of the activations at a cut, computed once for all epsilons, seeds and trials.

A shard's row is one image's activation, flattened. `preprocessing.cut` in the header contains the
shape of an activation, and the number of blocks after the cut. Activations depend on private images
without noise, so they must not be released.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.backbones.network_forward import forward_pass
from dpprobe.errors import StoreError
from dpprobe.features.extraction import extract_shard
from dpprobe.features.feature_store import FeatureStore
from dpprobe.features.shard_header import REMEDY
from dpprobe.finetune.cut import cut_network
from dpprobe.finetune.trained_parameters import (
    check_cut,
    example_images,
    frozen_model,
    network_graph,
    network_name,
)

CUT = "cut"


def extract_cut_shard(*, blocks: int, **arguments: Any) -> None:
    """Writes a shard of the inputs to the last `blocks` blocks; see `extract_shard`."""
    extract_shard(
        **arguments, changed=lambda backbone, runtime: cut_backbone(backbone, runtime, blocks)
    )


def cut_backbone(backbone: Backbone, runtime: Runtime, blocks: int) -> Backbone:
    """Returns a backbone whose features are the inputs to the last blocks.

    Raises ConfigError if the network cannot be cut before its last `blocks` blocks.
    """
    check_cut(backbone)
    graph, name = network_graph(backbone), network_name(backbone)
    model = frozen_model(backbone).cpu()
    example = example_images(backbone, graph)
    prefix, _, shape = cut_network(model, blocks, example=example[:2], name=name)
    flat = nn.Sequential(prefix, nn.Flatten()).to(runtime.device)
    flat = flat.to(memory_format=torch.channels_last)
    forward = forward_pass(
        flat.eval(),
        runtime,
        name=name,
        mean=graph.mean.flatten().tolist(),
        std=graph.std.flatten().tolist(),
    )
    cut = {"blocks": blocks, "shape": list(shape)}
    return replace(
        backbone,
        dimension=math.prod(shape),
        preprocessing={**backbone.preprocessing, CUT: cut},
        forward=forward,
        layers={},
        forward_layers=None,
        graph=None,
    )


def cut_shape(store: FeatureStore) -> tuple[int, ...]:
    """Returns the shape of an activation; raises StoreError if the store has other features."""
    cut = store.preprocessing.get(CUT)
    if not isinstance(cut, dict):
        raise StoreError(
            f"{store.path}: has features of a whole backbone instead of activations at a cut; "
            f"{REMEDY}"
        )
    return tuple(cut["shape"])
