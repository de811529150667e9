"""Damaged files of each format are noticed, and whole files of flat pictures are not refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pillow_heif
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from dpprobe.data.image_files import open_image
from dpprobe.data.problems import ImageError
from tests.unit.data.test_image_files import encoded

pillow_heif.register_heif_opener()
ZEROS_PASS = ("BMP", "PPM", "TIFF")  # in which zeros are pixels
# Damages that leave some kinds of a format undamaged, as far as can be seen.
UNSEEN = {
    ("a third of zeros", "lossless WEBP"), ("one sector of zeros", "lossless WEBP"),
    ("one sector of zeros", "progressive JPEG"),
}  # fmt: skip
FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind: (kind, {}) for kind in ("AVIF", "BMP", "GIF", "HEIF", "JPEG", "PNG", "PPM")},
    **{kind: (kind, {}) for kind in ("TIFF", "WEBP")},
    "JPEG 2000": ("JPEG2000", {}),
    "JPEG of own tables": ("JPEG", {"optimize": True, "quality": 90}),
    "JPEG with restarts": ("JPEG", {"restart_marker_rows": 1}),
    "TIFF of JPEG": ("TIFF", {"compression": "jpeg"}),
    "TIFF of LZW": ("TIFF", {"compression": "tiff_lzw"}),
    "TIFF of deflate": ("TIFF", {"compression": "tiff_deflate"}),
    "TIFF of packbits": ("TIFF", {"compression": "packbits"}),
    "lossless WEBP": ("WEBP", {"lossless": True}),
    "progressive JPEG": ("JPEG", {"progressive": True}),
}


def with_hole(data: bytes, start: int, end: int) -> bytes:
    return data[:start] + bytes(end - start) + data[end:]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "half are zeros": lambda data: with_hole(data, len(data) // 2, len(data)),
    "a third of zeros": lambda data: with_hole(data, len(data) // 3, 2 * len(data) // 3),
    "one sector of zeros": lambda data: with_hole(data, len(data) // 2, len(data) // 2 + 512),
    "cut in the middle": lambda data: data[: len(data) // 2],
    "cut at the end": lambda data: data[:-20],
}


@functools.cache
def photograph() -> Image.Image:
    return Image.fromarray(load_sample_images().images[1]).resize((224, 168))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_holes_and_cuts_are_noticed(name: str, damage: str) -> None:
    kind, options = FORMATS[name]
    data = encoded(photograph(), kind, **options)
    assert open_image(data).size == (224, 168)
    if ("zeros" in damage and name in ZEROS_PASS) or (damage, name) in UNSEEN:
        return
    with pytest.raises(ImageError):
        open_image(DAMAGES[damage](data))


def test_a_transfer_in_text_mode_is_noticed() -> None:
    for kind, options in (FORMATS[name] for name in FORMATS if name[:3] in ("JPE", "PNG", "pro")):
        with pytest.raises(ImageError):
            open_image(encoded(photograph(), kind, **options).replace(b"\n", b"\r\n"))


@pytest.mark.parametrize("mode", ["RGB", "I;16", "P"])
def test_each_wrong_byte_of_a_png_is_noticed(mode: str) -> None:
    picture = Image.effect_noise((20, 16), 60).convert("RGB" if mode == "RGB" else "L")
    if mode == "I;16":
        picture = Image.fromarray(np.asarray(picture, dtype=np.uint16) * 200)
    data = encoded(picture.convert(mode) if mode == "P" else picture, "PNG")
    for place in range(len(data)):
        wrong = bytearray(data)
        wrong[place] ^= 1 << place % 8
        with pytest.raises(ImageError):
            open_image(bytes(wrong))
    assert open_image(data + b"something else").size == (20, 16)


@pytest.mark.parametrize("name", FORMATS)
def test_flat_pictures_are_whole(name: str) -> None:
    """Their files have long runs of zeros."""
    kind, options = FORMATS[name]
    spotted = np.full((640, 640, 3), 255, np.uint8)
    spotted[:40] = np.random.default_rng(0).integers(0, 256, (40, 640, 3))
    for values in (np.zeros_like(spotted), np.full_like(spotted, 128), spotted, spotted[..., 0]):
        data = encoded(Image.fromarray(values), kind, **options)
        assert open_image(data).size == (640, 640)


def test_exif_may_be_filled_up_with_zeros() -> None:
    exif = Image.Exif()
    exif[0x010E] = "a\0" + "\0" * 2000
    for kind in ("HEIF", "JPEG", "PNG", "TIFF", "WEBP"):
        data = encoded(photograph(), kind, exif=exif.tobytes())
        assert bytes(1000) in data or kind == "PNG"
        assert open_image(data).size == (224, 168)
