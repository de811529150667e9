"""Lists the blocks of a network in order, as counted by `tune: {blocks: k}`."""

from __future__ import annotations

from torch import nn

from dpprobe.backbones.network_forward import list_blocks
from dpprobe.errors import ConfigError
from dpprobe.finetune.options import no_blocks


def blocks_of(model: nn.Module, name: str) -> list[nn.Module]:
    """Returns a ViT's blocks in order, or the blocks of all stages of a convolutional net.

    Raises ConfigError if the network gives no access to its blocks.
    """
    for attribute in ("body", "tower"):  # removes dpprobe's wrappers of a network
        model = getattr(model, attribute, model)
    blocks = list_blocks(model)
    if not blocks:
        raise ConfigError(no_blocks(name))
    return blocks
