"""Stores features of several random crops of each training image, and of its central crop.

Features of random crops are layers of a shard (`layers/crop_00` and so on): hashed, verified,
streamed and selected like the rows. All crops of a row belong to the row's unit of privacy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.backbones.backbone import Backbone
from dpprobe.backbones.image_preprocessing import InceptionCrop
from dpprobe.features.feature_store import CROP_PREFIX, FeatureStore

if TYPE_CHECKING:
    from PIL import Image


def with_crops(backbone: Backbone, crops: int) -> Backbone:
    """Makes a backbone that returns the features of random crops of a training image as layers.

    Crops have separate forward passes, so random crops do not change the central crop's features.

    Args:
      backbone: a backbone with an inception crop; crop number 0 is the first random crop.
      crops: the number of random crops; 0 returns the backbone unchanged.
    """
    if not crops:
        return backbone
    first = backbone.train_transform
    assert isinstance(first, InceptionCrop), first
    parts = tuple(replace(first, number=number) for number in range(crops))
    names = [f"{CROP_PREFIX}{part.number:02d}" for part in parts]

    def forward_parts(images: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        if images.ndim == 4:  # images of a test split have only the central crop
            return backbone.forward(images), {}
        central, *others = (backbone.forward(part.contiguous()) for part in images.unbind(1))
        return central, dict(zip(names, others, strict=True))

    return replace(
        backbone, train_transform=_Parts(backbone.transform, parts), forward_layers=forward_parts
    )


@dataclass(frozen=True)
class _Parts:
    """Turns an image and its file's SHA-256 into central and random crops, [1 + crops, ...]."""

    central: Callable[[Image.Image], torch.Tensor]
    others: tuple[InceptionCrop, ...]

    def __call__(self, image: Image.Image, sha256: bytes) -> torch.Tensor:
        return torch.stack([self.central(image), *(part(image, sha256) for part in self.others)])


@dataclass(frozen=True)
class StoredCrop:
    """The features of one stored crop, read from disk at each pass."""

    store: FeatureStore
    layer: str

    @property
    def rows(self) -> int:
        return self.store.rows

    @property
    def dimension(self) -> int:
        return self.store.layers[self.layer]

    def read_blocks(self, rows: int) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        return self.store.read_blocks(rows, layer=self.layer)

    def read(self) -> npt.NDArray[Any]:
        return self.store.read(layer=self.layer)
