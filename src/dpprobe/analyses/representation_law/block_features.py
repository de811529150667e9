"""Features of every block of a network, in one pass over images: class token, or pooled."""

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
_CPU_ROWS, _GPU_ROWS = 16, 128  # images of a pass


@dataclass
class Tap:
    """Takes the features of the input of the first block and of the output of each.

    Attributes:
      token: the class token or the mean over patches; maps are pooled.
      prefix: the number of tokens before the patches.
      taken: by layer, the features of each call since they were last handed out; a network that
        passes mirror images too calls its blocks twice.
    """

    blocks: Sequence[torch.nn.Module]
    token: Token
    prefix: int
    taken: dict[int, list[torch.Tensor]] = field(default_factory=dict)

    @contextmanager
    def collect_features(self) -> Iterator[None]:
        """Takes features while the `with` block runs."""
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
        """Returns float32 [m, width] of each layer, the mean over its calls, and forgets them."""
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
    """Makes the tap of a network's blocks; a network without a class token is pooled.

    Args:
      network: of timm or open_clip, or of fine-tuning around one.

    Raises:
      ConfigError: when it does not show its blocks.
    """
    blocks = blocks_of(network, name)
    for attribute in ("body", "tower"):  # the wrappers of fine-tuning
        network = getattr(network, attribute, network)
    shown = find_blocks(network)
    assert shown is not None, "blocks_of raises"
    return Tap(blocks=blocks, token=token if shown.class_token else "pooled", prefix=shown.prefix)


def read_images(table: SplitTable, backbone: Backbone, rows: npt.NDArray[np.int64]) -> torch.Tensor:
    """Decodes some rows of a split in the backbone's input form: [n, channels, height, width].

    Training examples are cropped as test examples are: no random crop.

    Raises:
      DataError: naming the row, when an image cannot be read, or has another size than the first
        where the backbone does not resize.
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
    """Passes images through a network: the features [n, width] of each layer, in order.

    Args:
      network: images as `read_images` gives them -> anything.
      taps: of blocks of this network.

    Raises:
      ConfigError: when a block gives neither tokens nor maps.
    """
    rows = _GPU_ROWS if is_gpu(device) else _CPU_ROWS
    parts: list[list[Features]] = []
    with taps.collect_features():
        for batch in images.split(rows):
            network(batch.to(device))
            parts.append([layer.cpu().numpy() for layer in taps.hand_out()])
    return [np.concatenate(layer) for layer in zip(*parts, strict=True)]
