"""Image files: HEIC, odd modes, hashes of pixels, and names in another spelling."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pytest
from PIL import Image

from dpprobe.data.image_files import hint_misspelling, open_image, pixel_hash
from dpprobe.data.problems import ImageError


def noise(mode: str = "RGB", *, size: tuple[int, int] = (40, 30), seed: int = 0) -> Image.Image:
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    values = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    return Image.fromarray(values)


def encoded(picture: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, format=kind, **options)
    return stream.getvalue()


def heic(picture: Image.Image, **options: Any) -> bytes:
    stream = io.BytesIO()
    pillow_heif.from_pillow(picture).save(stream, quality=-1, **options)
    return stream.getvalue()


def test_heic_is_read() -> None:
    smooth = Image.linear_gradient("L").resize((64, 48)).convert("RGB")
    picture = open_image(heic(smooth))
    assert (picture.mode, picture.size) == ("RGB", (64, 48))
    assert np.abs(np.asarray(picture, int) - np.asarray(smooth, int)).mean() < 4


def test_heic_is_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert open_image(heic(noise(size=(64, 48)), exif=exif.tobytes())).size == (48, 64)


@pytest.mark.parametrize("length", [12, 100, 400])
def test_heic_cut_short_is_an_image_error(length: int) -> None:
    with pytest.raises(ImageError, match="cannot be decoded"):
        open_image(heic(noise(size=(64, 48)))[:length])


def test_one_picture_in_two_files_has_one_hash() -> None:
    picture = noise()
    exif = Image.Exif()
    exif[0x010E] = "a comment"
    files = [
        encoded(picture, "PNG"), encoded(picture, "BMP"), encoded(picture, "PNG", exif=exif),
        encoded(picture, "TIFF"),
    ]  # fmt: skip
    assert len(set(files)) == 4
    assert len({pixel_hash(open_image(data)) for data in files}) == 1


def test_large_jpegs_are_compared_in_full() -> None:
    picture = noise(size=(600, 400))
    exif = Image.Exif()
    exif[0x010E] = "a comment"
    files = [encoded(picture, "JPEG"), encoded(picture, "JPEG", exif=exif)]
    files.append(encoded(open_image(files[0]), "PNG"))
    assert len({pixel_hash(open_image(data)) for data in files}) == 1
    striped = np.full((512, 512), 128, dtype=np.uint8)
    striped[:, ::2], striped[:, 1::2] = 96, 160
    both = [np.full_like(striped, 128), striped]
    jpegs = [open_image(encoded(Image.fromarray(values), "JPEG", quality=95)) for values in both]
    assert len({pixel_hash(each) for each in jpegs}) == 2, "at an eighth they are one grey"


def test_pictures_that_a_backbone_sees_alike_have_one_hash() -> None:
    """Grey is repeated over the colours, palettes are resolved, transparency is dropped."""
    grey = noise("L", size=(40, 600))
    alike = [grey, *(grey.convert(mode) for mode in ("P", "RGB", "RGBA", "LA"))]
    clear = grey.convert("RGBA")
    clear.putalpha(0)
    assert len({pixel_hash(each) for each in (*alike, clear)}) == 1


def test_grey_of_16_bits_is_compared_by_all_of_its_bits() -> None:
    values = np.random.default_rng(2).integers(0, 65536, (30, 40), dtype=np.uint16)
    pictures = [open_image(encoded(Image.fromarray(values), kind)) for kind in ("PNG", "TIFF")]
    other = values.copy()
    other[3, 4] ^= 1
    hashes = [pixel_hash(each) for each in (*pictures, Image.fromarray(other))]
    assert hashes[0] == hashes[1] != hashes[2]
    assert pixel_hash(Image.new("L", (4, 4))) != pixel_hash(Image.new("I;16", (4, 4)))


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_other_pixels_have_another_hash(mode: str) -> None:
    picture = noise(mode)
    other = picture.copy()
    other.putpixel((3, 4), 255 - int(np.asarray(picture)[4, 3]) if mode == "L" else (1, 2, 3))
    turned = picture.transpose(Image.Transpose.TRANSPOSE)
    assert len({pixel_hash(each) for each in (picture, other, turned)}) == 3


def test_palettes_are_part_of_the_pixels() -> None:
    picture = noise("L").convert("P")
    other = picture.copy()
    other.putpalette([255 - value for value in range(256) for _ in range(3)])
    assert picture.tobytes() == other.tobytes()
    assert pixel_hash(picture) != pixel_hash(other)


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        (Image.new("F", (4, 4), 0.5), "mode F have no known range"),
        (Image.new("I", (4, 4), -1), "mode I from -1 to -1 have no known range"),
        (Image.new("LAB", (4, 4)), "mode LAB cannot become RGB"),
    ],
)
def test_odd_modes_are_refused_while_all_images_are_checked(
    picture: Image.Image, message: str
) -> None:
    with pytest.raises(ImageError, match=message):
        open_image(encoded(picture, "TIFF"))


def test_a_missing_file_is_told_of_in_another_spelling(tmp_path: Path) -> None:
    (tmp_path / "A 1.JPG").write_bytes(b"")
    assert (
        hint_misspelling(str(tmp_path / "a  1.jpg"))
        == ": there is 'A 1.JPG', with a different spelling"
    )
    assert hint_misspelling(str(tmp_path / "b.jpg")) == ""
    assert "write / instead" in hint_misspelling(r"files\a.jpg")
    assert hint_misspelling(str(tmp_path / "nowhere/b.jpg")) == ""
