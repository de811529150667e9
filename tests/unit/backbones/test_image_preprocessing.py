"""Colour modes, bit depths and random crops equal Pillow's, NumPy's and torchvision's."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import RandomResizedCrop

from dpprobe.backbones import image_preprocessing
from dpprobe.backbones.image_preprocessing import (
    AssumeGreyBits,
    InceptionCrop,
    ToBytes,
    ToTensor,
    convert_mode,
    crop_box,
)
from dpprobe.data.images.image_files import GREY_BITS, WHITE_IS_ZERO
from dpprobe.errors import DataError
from tests.support.backbones import noise

RED, GREEN, GREY = (200, 0, 0), (0, 100, 0), (7, 7, 7)


def deep(values: Any, kind: Any = np.int32, *, bits: int | None = None, **info: Any) -> Image.Image:
    """Returns a grey image of more than 8 bits; `bits` is the depth that its file states."""
    image = Image.fromarray(np.asarray(values).astype(kind)[None])
    image.info.update({GREY_BITS: bits}, **info)
    return image


def pixels(image: Image.Image) -> list[Any]:
    return np.asarray(image).reshape(-1, len(image.getbands())).squeeze().tolist()


def test_colours_survive_palettes_and_alpha_and_grey_is_copied_into_each_channel() -> None:
    palette = Image.new("P", (3, 1))
    palette.putpalette([*RED, *GREEN, *GREY])
    palette.putdata([2, 0, 1])
    clear = Image.new("RGBA", (3, 1))
    clear.putdata([(*GREY, 0), (*RED, 128), (*GREEN, 255)])
    for image in (palette, clear):
        assert pixels(convert_mode(image, "RGB")) == [list(each) for each in (GREY, RED, GREEN)]
    grey = Image.new("L", (2, 1))
    grey.putdata([9, 250])
    assert pixels(convert_mode(grey, "RGB")) == [[9] * 3, [250] * 3]
    assert pixels(convert_mode(Image.new("1", (2, 1), 1), "L")) == [255, 255]
    assert (
        pixels(convert_mode(Image.new("CMYK", (2, 1), (0, 255, 255, 0)), "RGB"))
        == [[255, 0, 0]] * 2
    )


def test_colours_become_grey_by_the_weights_of_itu_r_601() -> None:
    """Grey is 0.299 red + 0.587 green + 0.114 blue."""
    image = noise((20, 10))
    expected = np.asarray(image) @ [0.299, 0.587, 0.114]
    found = np.asarray(convert_mode(image, "L"))
    np.testing.assert_allclose(found, expected, atol=1)
    assert convert_mode(image, "RGB") is image


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_pixels_of_unknown_colours_are_refused(mode: Any) -> None:
    if mode == "L":
        with pytest.raises(DataError, match="mode LAB cannot be converted to L; convert it to RGB"):
            convert_mode(Image.new("LAB", (4, 3)), mode)
    with pytest.raises(DataError, match=r"mode F from 0.0 to 2.0 have no known range"):
        convert_mode(deep([0, 2], np.float32), mode)


@given(
    bits=st.integers(9, 16),
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=6),
    white_is_zero=st.booleans(),
    mode=st.sampled_from(["L", "RGB"]),
    kind=st.sampled_from([np.uint16, np.int32]),
)
def test_deep_grey_is_the_nearest_of_256_values(
    bits: int, shares: list[float], white_is_zero: bool, mode: Any, kind: Any
) -> None:
    white = 2**bits - 1
    values = np.rint(white * np.array(shares)).astype(int)
    shown = white - values if white_is_zero else values
    expected = np.rint(255 * shown / white).astype(np.uint8)
    image = deep(values, kind, bits=bits, **{WHITE_IS_ZERO: white_is_zero})
    found = np.asarray(convert_mode(image, mode))[0]
    np.testing.assert_array_equal(found.T if mode == "RGB" else found[None], [expected] * len(mode))


def test_grey_beyond_its_range_is_refused() -> None:
    full = deep([0, 65535])
    assert pixels(convert_mode(full, "L")) == [0, 255], "without stated bits, white has 16"
    assert pixels(convert_mode(deep([0, 4095], bits=12), "L")) == [0, 255]
    for values in ([-1, 5], [0, 65536]):
        said = f"mode I from {values[0]} to {values[1]} have no known range; convert the image to 8"
        with pytest.raises(DataError, match=said):
            convert_mode(deep(values), "L")
    with pytest.raises(DataError, match="value of 4096 has more than 12 bits.*larger grey_bits"):
        convert_mode(deep([0, 4096], bits=12), "L")


def test_assumed_bits_hold_only_for_files_that_state_none() -> None:
    def numbers(image: Image.Image) -> torch.Tensor:
        return AssumeGreyBits(ToTensor(mode="L", size=None), 10)(image).flatten()

    assert numbers(deep([0, 1023])).tolist() == [0, 1]
    assert numbers(deep([0, 4095], bits=12)).tolist() == [0, 1]
    with pytest.raises(DataError, match="value of 1024 has more than 10 bits"):
        numbers(deep([0, 1024]))
    given: list[bytes] = []
    crop: Any = lambda image, sha256: given.append(sha256)  # noqa: E731, ARG005
    AssumeGreyBits(crop, 12)(deep([0]), b"hash")
    assert given == [b"hash"], "a random crop needs the image's hash"


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3)])
def test_numbers_are_scaled_and_ordered_by_channel(mode: Any, channels: int) -> None:
    image = noise((5, 3))
    found = ToTensor(mode=mode, size=None, mean=0.5, std=0.25)(image)
    values: npt.NDArray[Any] = np.asarray(convert_mode(image, mode)).reshape(3, 5, channels)
    assert found.shape == (channels, 3, 5)
    assert found.dtype == torch.float32
    for channel, row, column in np.ndindex(*found.shape):
        expected = (values[row, column, channel] / 255 - 0.5) / 0.25
        assert found[channel, row, column] == pytest.approx(expected, abs=1e-5)
    steps: Any = lambda image: (image.mode, image.size)  # noqa: E731
    assert ToBytes(mode=mode, steps=steps)(image) == (mode, (5, 3))


def test_another_size_is_resized_by_pillows_bicubic_filter() -> None:
    image = noise((9, 6))
    found = ToTensor(mode="RGB", size=4)(image)
    wanted = np.asarray(image.resize((4, 4), Image.Resampling.BICUBIC)) / 255
    np.testing.assert_allclose(found.movedim(0, 2), wanted, atol=1e-6)
    same = noise((6, 6))
    kept = ToTensor(mode="RGB", size=6)(same).movedim(0, 2) * 255
    np.testing.assert_allclose(kept, np.asarray(same), atol=1e-4)


SHA = b"b" * 32


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("number", [0, 1, 12])
@pytest.mark.parametrize("sha256", [b"a", SHA])
def test_a_crop_is_drawn_from_the_hash_of_seed_number_and_image(
    seed: int, number: int, sha256: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every machine must be able to draw stored crops again."""
    monkeypatch.setattr(image_preprocessing, "CROP_RATIO", (1 - 1e-12, 1 + 1e-12))  # all crops fit
    text = {0: f"{seed}:"}.get(number, f"{seed}:{number}:")
    digest = hashlib.sha256(text.encode() + sha256).hexdigest()
    generator = np.random.default_rng(int(digest, 16))
    side = round(math.sqrt(1000 * 1000 * generator.uniform(0.08, 1)))
    generator.uniform()  # draws the ratio
    top, left = generator.integers(0, 1000 - side + 1), generator.integers(0, 1000 - side + 1)
    found = crop_box(1000, 1000, seed=seed, sha256=sha256, number=number)
    assert found == (int(top), int(left), side, side)


@given(
    width=st.integers(1, 40),
    height=st.integers(1, 40),
    seed=st.integers(0, 3),
    number=st.integers(0, 3),
)
def test_a_crop_lies_within_the_image_and_is_a_function_of_its_arguments(
    width: int, height: int, seed: int, number: int
) -> None:
    given: dict[str, Any] = {"seed": seed, "sha256": SHA, "number": number}
    top, left, h, w = crop_box(width, height, **given)
    assert 0 <= top <= top + h <= height
    assert 0 <= left <= left + w <= width
    assert h > 0 < w
    assert crop_box(width, height, **given) == (top, left, h, w)
    # rounded sides and very narrow images may exceed the range of shapes slightly
    assert min(3 / 4, width / height) * 0.7 - 1 / h <= w / h
    assert w / h <= max(4 / 3, width / height) * 1.5 + 1 / h


@pytest.mark.parametrize(
    ("width", "height"),
    [(80, 80), (60, 301), (300, 61), (9, 12), (12, 9), (100, 80), (5, 7), (1, 2), (13, 9), (9, 13)],
)
def test_where_no_part_fits_the_centre_is_torchvisions(
    width: int, height: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No crop can have a hundred times the image's area, in torchvision neither."""
    monkeypatch.setattr(image_preprocessing, "CROP_AREA", (100.0, 100.0))
    blank = Image.new("L", (width, height))
    expected = RandomResizedCrop.get_params(blank, [100.0, 100.0], [3 / 4, 4 / 3])
    assert crop_box(width, height, seed=0, sha256=b"a") == expected


def test_a_part_is_cut_out_and_resized_to_bytes() -> None:
    image, crop = (
        noise((40, 30)),
        InceptionCrop(mode="L", size=(6, 9), interpolation="bilinear", seed=2),
    )
    top, left, height, width = crop_box(40, 30, seed=2, sha256=SHA)
    shown = image.convert("L").crop((left, top, left + width, top + height))
    expected = np.asarray(shown.resize((9, 6), Image.Resampling.BILINEAR))
    found = crop(image, SHA)
    assert found.dtype == torch.uint8
    np.testing.assert_array_equal(found, expected[None])
    second = InceptionCrop(mode="L", size=(6, 9), interpolation="bilinear", seed=2, number=1)
    assert not torch.equal(second(image, SHA), found)
