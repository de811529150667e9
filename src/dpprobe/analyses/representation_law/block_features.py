"""Features of all blocks of a network in one pass: the class token, or pooled tokens or maps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.backbones.backbone import Backbone
from dpprobe.backbones.network_forward import Tapped, Token, find_blocks
from dpprobe.data.table import SplitTable, decode_image
from dpprobe.devices import is_gpu
from dpprobe.finetune.blocks import blocks_of

Features = npt.NDArray[np.float32]
_CPU_ROWS, _GPU_ROWS = 16, 128  # number of images per forward pass
_FAULT = "representation_law: block {} of {} {}, so it has no laws; remove the backbone"


def tap_blocks(
    network: torch.nn.Module, body: torch.nn.Module, name: str, *, token: Token
) -> Tapped:
    """Makes a network return all its blocks' features; without a class token, they are pooled.

    Args:
      body: the part of the network with the blocks: a network of timm or open_clip, or
        fine-tuning's wrapper of one.

    Raises:
      ConfigError: if the network gives no access to its blocks.
    """
    blocks = blocks_of(body, name)
    for attribute in ("body", "tower"):  # removes fine-tuning's wrappers of a network
        body = getattr(body, attribute, body)
    shown = find_blocks(body)
    assert shown is not None, "blocks_of raises"
    shown = replace(shown, modules=blocks)
    return Tapped(network, name, shown, range(len(blocks) + 1), token=token, fault=_FAULT)


def read_images(table: SplitTable, backbone: Backbone, rows: npt.NDArray[np.int64]) -> torch.Tensor:
    """Decodes some rows of a split into the backbone's input form: [n, channels, height, width].

    Training examples are cropped like test examples, without random crops.

    Raises:
      DataError: naming the row, if an image cannot be read.
    """
    wanted = set(rows.tolist())
    images: list[torch.Tensor] = []
    for image in table.read_images(0, table.rows):
        if image.row not in wanted:
            continue
        images.append(backbone.transform(decode_image(image, split=table.split)))
    return torch.stack(images)  # backbones with blocks give all images one size


@torch.inference_mode()
def block_features(network: Tapped, images: torch.Tensor, *, device: str) -> list[Features]:
    """Passes images through a network; returns the features [n, width] of each layer, in order.

    Args:
      network: takes images in the form of `read_images`.

    Raises:
      ConfigError: if a block is not called, or gives neither tokens nor maps.
    """
    rows = _GPU_ROWS if is_gpu(device) else _CPU_ROWS
    parts: list[list[Features]] = []
    for batch in images.split(rows):
        _, layers = network(batch.to(device))
        parts.append([layers[str(layer)].cpu().numpy() for layer in range(len(layers))])
    return [np.concatenate(layer) for layer in zip(*parts, strict=True)]
