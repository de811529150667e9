"""Runs several loaded backbones on one image, and joins their features as the feature store does.

The members' preprocessed images are packed into one row of bytes, because members may take images
of different sizes and number formats.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dpprobe import json_values
from dpprobe.backbones.backbone import Backbone
from dpprobe.backbones.feature_digest import probe_image
from dpprobe.errors import ConfigError

if TYPE_CHECKING:
    from PIL import Image

_SMALLEST = torch.finfo(torch.float32).tiny


def join_backbones(members: Mapping[str, Backbone], dtypes: Sequence[str]) -> Backbone:
    """Makes a backbone whose features equal the rows of the members' stored features.

    Args:
      members: the loaded backbones by name, in order; each has one number of features.
      dtypes: the number format to which each member's features are rounded in the feature store.
    """
    packed = _Packed(tuple(one.transform for one in members.values()))
    examples = [transform(probe_image()) for transform in packed.transforms]
    parts = _Parts(
        tuple(tuple(each.shape) for each in examples), tuple(each.dtype for each in examples)
    )
    rounded = [getattr(torch, dtype) for dtype in dtypes]
    widths = {name: one.dimension for name, one in members.items()}
    if unsized := [name for name, width in widths.items() if width is None]:
        raise ConfigError(
            f"backbone {unsized[0]}: its number of features depends on the images' size, so it "
            "cannot be joined; set its size"
        )

    def forward(images: torch.Tensor) -> torch.Tensor:
        rows = [
            unit_rows(one.forward(part).to(dtype))
            for one, part, dtype in zip(
                members.values(), parts.unpack(images), rounded, strict=True
            )
        ]
        return torch.cat(rows, dim=1)

    graphs = [one.graph for one in members.values()]
    networks = [graph for graph in graphs if graph is not None]
    as_bytes = all(dtype == torch.uint8 for dtype in parts.dtypes)
    return Backbone(
        dimension=sum(width for width in widths.values() if width is not None),
        preprocessing={},
        weights_sha256=None,
        fingerprint=json_values.hash_value([one.fingerprint for one in members.values()]),
        trained=any(one.trained for one in members.values()),
        transform=packed,
        forward=forward,
        graph=_Joined(networks, parts, rounded)
        if as_bytes and len(networks) == len(graphs)
        else None,
    )


def unit_rows(rows: torch.Tensor) -> torch.Tensor:
    """Returns float32 rows scaled to norm 1, like `features.joined_rows.unit_rows`; keeps zeros."""
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
    scale = (1 / torch.where(lengths > _SMALLEST, lengths, 1.0)).to(torch.float32)
    return rows.to(torch.float32) * scale


@dataclass(frozen=True)
class _Packed:
    """Preprocesses an image for each member; returns the bytes of all results, uint8 [bytes]."""

    transforms: tuple[Callable[[Image.Image], torch.Tensor], ...]

    def __call__(self, image: Image.Image) -> torch.Tensor:
        values = [transform(image).contiguous() for transform in self.transforms]
        return torch.cat([each.flatten().view(torch.uint8) for each in values])


@dataclass(frozen=True)
class _Parts:
    """The shapes and number formats of the members' preprocessed images."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]

    def unpack(self, images: torch.Tensor) -> list[torch.Tensor]:
        """Divides rows of bytes, uint8 [batch, bytes], into the members' images."""
        sizes = [
            math.prod(shape) * dtype.itemsize
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        ]
        ends = itertools.accumulate(sizes)
        return [
            # a copy, because another number format needs aligned bytes
            _read_format(images[:, end - size : end], dtype).reshape(-1, *shape)
            for shape, dtype, size, end in zip(self.shapes, self.dtypes, sizes, ends, strict=True)
        ]


def _read_format(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return values if dtype == torch.uint8 else values.clone().view(dtype)


class _Joined(torch.nn.Module):
    """The members' networks on rows of bytes, with operations that other tools can trace."""

    def __init__(
        self, graphs: Sequence[torch.nn.Module], parts: _Parts, dtypes: Sequence[torch.dtype]
    ) -> None:
        super().__init__()
        self.graphs = torch.nn.ModuleList(graphs)
        self.parts, self.dtypes = parts, dtypes

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        rows = []
        for graph, part, dtype in zip(
            self.graphs, self.parts.unpack(images), self.dtypes, strict=True
        ):
            values = graph(part).to(dtype).to(torch.float32)
            lengths = values.square().sum(dim=1, keepdim=True).sqrt()
            rows.append(values / torch.where(lengths > _SMALLEST, lengths, 1.0))
        return torch.cat(rows, dim=1)
