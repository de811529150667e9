"""Converts the colour modes and sizes of images, for all families of backbones."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from dpprobe.backbones.options import MOST_GREY_BITS
from dpprobe.data.images.image_files import GREY_BITS, WHITE_IS_ZERO, ScaledDecoding
from dpprobe.errors import ConfigError, DataError
from dpprobe.extras import OptionalModule

if TYPE_CHECKING:
    from PIL import Image

    from dpprobe.backbones.network_options import Views
else:
    Image = OptionalModule("PIL.Image")

Mode = Literal["L", "RGB"]


def convert_mode(image: Image.Image, mode: Mode) -> Image.Image:
    """Converts an image to 8-bit grey ("L") or colour ("RGB").

    Resolves palettes, drops alpha and copies grey into each colour channel. Scales grey with more
    bits to 8 bits, because Pillow's own conversion clips values, so that most pixels turn white.
    Raises DataError for modes such as LAB, and for pixels without a known range (floats, integers
    beyond 16 bits).
    """
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _scale_grey(image).convert(mode)
    if image.mode == mode:
        return image
    try:
        return image.convert(mode)
    except ValueError as error:
        raise DataError(
            f"an image of mode {image.mode} cannot be converted to {mode}; convert it to RGB"
        ) from error


def _scale_grey(image: Image.Image) -> Image.Image:
    bits = image.info.get(GREY_BITS) or MOST_GREY_BITS
    white, values = 2**bits - 1, np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() >= 2**MOST_GREY_BITS:
        raise DataError(
            f"pixels of mode {image.mode} from {values.min()} to {values.max()} have no known "
            "range; convert the image to 8 or 16 bits"
        )
    if values.max() > white:
        raise DataError(
            f"a grey value of {values.max()} has more than {bits} bits; set a larger grey_bits"
        )
    values = values.astype(np.uint32)
    if image.info.get(WHITE_IS_ZERO):
        values = white - values
    return Image.fromarray(((values * 255 + white // 2) // white).astype(np.uint8))


@dataclass(frozen=True)
class AssumeGreyBits:
    """A transform that assumes `bits` bits for grey above 8 bits if the file states no depth."""

    transform: Callable[..., torch.Tensor]
    bits: int

    def __call__(self, image: Image.Image, *sha256: bytes) -> torch.Tensor:
        image.info[GREY_BITS] = image.info.get(GREY_BITS) or self.bits
        return self.transform(image, *sha256)


@dataclass(frozen=True, kw_only=True)
class ToTensor:
    """Turns an image into float32 [channels, size, size], (values / 255 - mean) / std.

    Images of another size are resized (bicubic, with antialiasing), unless `size` is None.
    """

    mode: Mode
    size: int | None
    mean: float = 0.0
    std: float = 1.0

    def __call__(self, image: Image.Image) -> torch.Tensor:
        image = convert_mode(image, self.mode)
        if self.size is not None and image.size != (self.size, self.size):
            image = image.resize((self.size, self.size), Image.Resampling.BICUBIC)
        values = np.array(image, dtype=np.float32).reshape(image.height, image.width, -1)
        values = (values / np.float32(255) - np.float32(self.mean)) / np.float32(self.std)
        return torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1)))


@dataclass(frozen=True, kw_only=True)
class ToBytes:
    """Turns an image into uint8 [channels, height, width], with a library's preprocessing steps."""

    mode: Mode
    steps: Callable[[Image.Image], torch.Tensor]

    def __call__(self, image: Image.Image) -> torch.Tensor:
        return self.steps(convert_mode(image, self.mode))


def scale_decoding(transform: Callable[..., torch.Tensor]) -> ScaledDecoding:
    """Returns the scaled decoding that suits a transform's first step, which must be a resize.

    Raises ConfigError if the first step is not a resize.
    """
    if isinstance(transform, ToTensor) and transform.size is not None:
        return ScaledDecoding(transform.size, transform.size)
    # `Resize` of torchvision, or `ResizeKeepRatio` of timm and open_clip.
    steps = getattr(getattr(transform, "steps", None), "transforms", (None,))
    size: Any = getattr(steps[0], "size", None)
    if not type(steps[0]).__name__.startswith("Resize") or getattr(steps[0], "max_size", None):
        raise ConfigError(
            f"jpeg_decoding scaled: the backbone's preprocessing begins with {steps[0]}, which "
            "does not resize to a fixed size; remove jpeg_decoding"
        )
    height, width = (size, size) if isinstance(size, int) else (size[0], size[-1])
    return ScaledDecoding(width, height, getattr(steps[0], "longest", 0.0))


@dataclass(frozen=True, kw_only=True)
class InceptionCrop:
    """Turns an image and its file's SHA-256 into a random part, uint8 [channels, *size].

    The random part is drawn as in torchvision's RandomResizedCrop (Szegedy et al. 2015). Only the
    image's hash, `seed` and `number` (the number of the part, from 0) seed the generator. So a
    row's features do not depend on the row's position or label, or on other rows.
    """

    mode: Mode
    size: tuple[int, int]
    interpolation: str
    seed: int
    number: int = 0

    def __call__(self, image: Image.Image, sha256: bytes) -> torch.Tensor:
        from torchvision.transforms import InterpolationMode, functional

        image = convert_mode(image, self.mode)
        box = crop_box(image.width, image.height, seed=self.seed, sha256=sha256, number=self.number)
        mode = InterpolationMode(self.interpolation)
        part = functional.resized_crop(image, *box, list(self.size), mode)
        return functional.pil_to_tensor(part)


def make_train_crop(
    views: Views, *, mode: Mode, size: tuple[int, int], interpolation: str
) -> InceptionCrop | None:
    """Makes the random crop of training images; None if training images get the central crop."""
    if views.crop == "centre":
        return None
    return InceptionCrop(
        mode=mode, size=size, interpolation=interpolation, seed=views.crop_seed or 0
    )


# The inception crop's share of an image's area, and its ratio of width to height.
CROP_AREA = (0.08, 1.0)
CROP_RATIO = (3 / 4, 4 / 3)
CROP_TRIES = 10


def crop_box(
    width: int, height: int, *, seed: int, sha256: bytes, number: int = 0
) -> tuple[int, int, int, int]:
    """Returns top, left, height and width of an image's inception crop."""
    start = f"{seed}:{number}:" if number else f"{seed}:"
    digest = hashlib.sha256(start.encode() + sha256).digest()
    generator = np.random.default_rng(int.from_bytes(digest, "big"))
    low, high = (math.log(ratio) for ratio in CROP_RATIO)
    for _ in range(CROP_TRIES):
        area = width * height * generator.uniform(*CROP_AREA)
        ratio = math.exp(generator.uniform(low, high))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = generator.integers(0, (height - h + 1, width - w + 1))
            return int(top), int(left), h, w
    w, h = width, height  # the largest central part of an allowed shape
    if width / height < CROP_RATIO[0]:
        h = round(w / CROP_RATIO[0])
    elif width / height > CROP_RATIO[1]:
        w = round(h * CROP_RATIO[1])
    return (height - h) // 2, (width - w) // 2, h, w
