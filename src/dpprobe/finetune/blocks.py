"""The blocks of a network, in order: what `tune: {blocks: k}` counts."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from dpprobe.backbones.networks import find_blocks
from dpprobe.errors import ConfigError

_LISTS = (nn.Sequential, nn.ModuleList)


def blocks_of(model: nn.Module, name: str) -> list[nn.Module]:
    """Returns all blocks in order: of a ViT its blocks, of a convolutional net those of all stages.

    Args:
      model: a network of timm or open_clip, or a network of this room around one.
      name: for messages.

    Raises:
      ConfigError: when it does not show them.
    """
    for attribute in ("body", "tower"):  # the wrappers of this room
        model = getattr(model, attribute, model)
    shown = find_blocks(model)
    if shown is None:
        raise ConfigError(
            f"tune: {name} does not show its blocks; write tune: all, bias or norm, or take a ViT, "
            "ResNet, ConvNeXt, MobileNet or NFNet"
        )
    return [block for stage in shown.modules for block in _flattened(stage)]


def _flattened(stage: nn.Module) -> Iterator[nn.Module]:
    """Yields the blocks of a stage; a stage that keeps none is one itself."""
    inner = getattr(stage, "blocks", None)
    if isinstance(stage, _LISTS):
        for child in stage:
            yield from _flattened(child)
    elif isinstance(inner, _LISTS):
        yield from _flattened(inner)
    else:
        yield stage
