"""Pixels in, pixels out: colour modes and sizes, common to all families."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from PIL import Image

from dpprobe.errors import DataError

Mode = Literal["L", "RGB"]
SIXTEEN_BITS = 65535


def convert(image: Image.Image, mode: Mode) -> Image.Image:
    """The image in 8-bit grey ("L") or colour ("RGB").

    Palettes are resolved, alpha is dropped, grey is repeated over the colours. 16-bit grey is
    scaled to 8 bits: Pillow's own conversion clips it, so that nearly all of it turns white.

    Raises:
      DataError: for pixels without a known range (floats, integers beyond 16 bits), and for a
        mode that Pillow cannot convert (LAB).
    """
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _from_sixteen_bits(image).convert(mode)
    if image.mode == mode:
        return image
    try:
        return image.convert(mode)
    except ValueError as error:
        raise DataError(
            f"pixels of mode {image.mode} cannot become {mode}; convert the image to RGB"
        ) from error


def _from_sixteen_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > SIXTEEN_BITS:
        raise DataError(
            f"pixels of mode {image.mode} from {values.min()} to {values.max()} have no known "
            "range; convert the image to 8 or 16 bits"
        )
    scaled = (values.astype(np.uint32) * 255 + SIXTEEN_BITS // 2) // SIXTEEN_BITS
    return Image.fromarray(scaled.astype(np.uint8))


@dataclass(frozen=True, kw_only=True)
class ToTensor:
    """Image -> float32 [channels, size, size]: values over 255, minus `mean`, over `std`.

    Images of another size are resized (bicubic, with antialiasing); size None leaves them.
    """

    mode: Mode
    size: int | None
    mean: float = 0.0
    std: float = 1.0

    def __call__(self, image: Image.Image) -> torch.Tensor:
        image = convert(image, self.mode)
        if self.size is not None and image.size != (self.size, self.size):
            image = image.resize((self.size, self.size), Image.Resampling.BICUBIC)
        values = np.array(image, dtype=np.float32).reshape(image.height, image.width, -1)
        values = (values / np.float32(255) - np.float32(self.mean)) / np.float32(self.std)
        return torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1)))
