"""Features of all blocks of a network in one pass: the class token, or pooled tokens or maps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.backbones.backbone import Backbone
from dpprobe.backbones.network_forward import find_blocks
from dpprobe.data.table import SplitTable, decode_image
from dpprobe.devices import is_gpu
from dpprobe.errors import ConfigError, DataError
from dpprobe.finetune.blocks import blocks_of

Features = npt.NDArray[np.float32]
Token = Literal["class", "pooled"]
_CPU_ROWS, _GPU_ROWS = 16, 128  # number of images in a pass


@dataclass
class Tap:
    """Collects the features of the first block's input and of each block's output.

    Attributes:
      token: which features of tokens to use, class token or mean over patches; maps are pooled.
      prefix: the number of tokens before the patches.
      taken: by layer, the features of each call since the last `hand_out`. If a network also passes
        mirrored images, it calls each block twice.
    """

    blocks: Sequence[torch.nn.Module]
    token: Token
    prefix: int
    taken: dict[int, list[torch.Tensor]] = field(default_factory=dict)

    @contextmanager
    def collect_features(self) -> Iterator[None]:
        """Collects features while the `with` block runs."""
        handles = [
            self.blocks[0].register_forward_pre_hook(
                lambda _m, inputs: self._take_features(0, inputs[0])
            )
        ]
        for layer, block in enumerate(self.blocks, start=1):
            handles.append(
                block.register_forward_hook(
                    lambda _m, _i, out, layer=layer: self._take_features(layer, out)
                )
            )
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def hand_out(self) -> list[torch.Tensor]:
        """Returns each layer's features [m, width], the mean over its calls, and clears them."""
        missing = [layer for layer in range(len(self.blocks) + 1) if layer not in self.taken]
        if missing:
            raise ConfigError(
                f"representation_law: block {max(1, missing[0])} is not called in a forward pass, "
                "so this backbone has no laws; remove the backbone"
            )
        values = [
            torch.stack(self.taken[layer]).mean(dim=0) for layer in range(len(self.blocks) + 1)
        ]
        self.taken.clear()
        return values

    def _take_features(self, layer: int, value: Any) -> None:
        if not isinstance(value, torch.Tensor) or value.ndim not in (3, 4):
            raise ConfigError(
                f"representation_law: block {layer} gives neither tokens nor maps, so this "
                "backbone has no laws; remove the backbone"
            )
        if value.ndim == 4:  # [batch, channels, height, width]
            rows = value.float().mean((2, 3))
        elif self.token == "class":
            rows = value[:, 0].float()
        else:
            rows = value[:, self.prefix :].float().mean(1)
        self.taken.setdefault(layer, []).append(rows)


def tap_blocks(network: torch.nn.Module, name: str, *, token: Token) -> Tap:
    """Makes the tap of a network's blocks; without a class token, features are pooled.

    Args:
      network: a network of timm or open_clip, or fine-tuning's form of such a network.

    Raises:
      ConfigError: if the network gives no access to its blocks.
    """
    blocks = blocks_of(network, name)
    for attribute in ("body", "tower"):  # fine-tuning's wrappers of a network
        network = getattr(network, attribute, network)
    shown = find_blocks(network)
    assert shown is not None, "blocks_of raises"
    return Tap(blocks=blocks, token=token if shown.class_token else "pooled", prefix=shown.prefix)


def read_images(table: SplitTable, backbone: Backbone, rows: npt.NDArray[np.int64]) -> torch.Tensor:
    """Decodes some rows of a split into the backbone's input form: [n, channels, height, width].

    Training examples are cropped like test examples, without random crops.

    Raises:
      DataError: naming the row, if an image cannot be read, or if its size differs from the first
        image's and the backbone does not resize.
    """
    wanted = set(rows.tolist())
    images: list[torch.Tensor] = []
    for image in table.read_images(0, table.rows):
        if image.row not in wanted:
            continue
        tensor = backbone.transform(decode_image(image, split=table.split))
        if images and tensor.shape != images[0].shape:
            raise DataError(
                f"{table.split} row {image.row} (id {image.id}): the image has shape "
                f"{list(tensor.shape)}, but earlier images have {list(images[0].shape)}; set the "
                "backbone's size"
            )
        images.append(tensor)
    return torch.stack(images)


@torch.inference_mode()
def block_features(
    network: torch.nn.Module, taps: Tap, images: torch.Tensor, *, device: str
) -> list[Features]:
    """Passes images through a network; returns the features [n, width] of each layer, in order.

    Args:
      network: takes images in the form of `read_images`; its output is not used.
      taps: the tap of this network's blocks.

    Raises:
      ConfigError: if a block gives neither tokens nor maps.
    """
    rows = _GPU_ROWS if is_gpu(device) else _CPU_ROWS
    parts: list[list[Features]] = []
    with taps.collect_features():
        for batch in images.split(rows):
            network(batch.to(device))
            parts.append([layer.cpu().numpy() for layer in taps.hand_out()])
    return [np.concatenate(layer) for layer in zip(*parts, strict=True)]
