"""`jpeg_decoding: scaled`: the scale of each JPEG, in every family's preprocessing.

The reference is Pillow: a photograph is opened, `draft` to twice the size after the resize, and
passed to the family's own transform.
"""

from __future__ import annotations

import io
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from dpprobe.backbones.backbone import Backbone
from dpprobe.backbones.image_preprocessing import ToBytes, scale_decoding
from dpprobe.backbones.registry import backbone_options
from dpprobe.data.images.image_files import ScaledDecoding, open_image
from dpprobe.data.table import EncodedImage
from dpprobe.errors import ConfigError
from dpprobe.features.extraction_pipeline import Decoder
from tests.support.backbones import load, smooth_noise
from tests.unit.data.images.test_image_files import encoded

SCALED = {"jpeg_decoding": "scaled"}


def drafted(data: bytes, least: tuple[int, int]) -> Image.Image:
    """Decodes a JPEG by Pillow's `draft`; drops a last row or column that is mostly padding."""
    picture: Any = Image.open(io.BytesIO(data))
    _, box = picture.draft(None, least)
    sides = [int(side + 0.5) for side in box[2:]]
    return ImageOps.exif_transpose(picture.crop((0, 0, *sides)))


def same(first: Image.Image, second: Image.Image) -> bool:
    return first.size == second.size and first.tobytes() == second.tobytes()


def exif(orientation: int) -> Image.Exif:
    values = Image.Exif()
    values[0x0112] = orientation
    return values


@pytest.mark.parametrize("size", [(640, 480), (639, 481), (161, 159), (97, 480), (960, 23)])
@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("RGB", {}),
        ("RGB", {"progressive": True, "subsampling": 2}),
        ("L", {}),
        ("CMYK", {}),
        ("RGB", {"exif": exif(6)}),
    ],
)
def test_jpegs_have_the_pixels_of_pillows_draft(
    size: tuple[int, int], mode: str, options: dict[str, Any]
) -> None:
    data = encoded(smooth_noise(size).convert(mode), **options)
    assert same(open_image(data, ScaledDecoding(20, 20)), drafted(data, (40, 40)))


@pytest.mark.parametrize(("orientation", "size"), [(1, (160, 40)), (3, (160, 40)), (6, (10, 40))])
def test_targets_are_of_the_upright_picture(orientation: int, size: tuple[int, int]) -> None:
    """For 80 x 20, 320 x 80 takes scale 1/2; turned to 80 x 320, its width only allows scale 1."""
    data = encoded(smooth_noise((320, 80)), exif=exif(orientation))
    wanted = size if orientation != 6 else (80, 320)
    assert open_image(data, ScaledDecoding(80, 20)).size == wanted
    turned = open_image(data, ScaledDecoding(20, 80)).size
    assert turned == ((320, 80) if orientation != 6 else (40, 160))


@given(
    width=st.integers(1, 200),
    height=st.integers(1, 200),
    target=st.tuples(st.integers(1, 24), st.integers(1, 24)),
    longest=st.sampled_from([0.0, 1.0]),
)
def test_the_scale_is_the_smallest_that_keeps_twice_the_size(
    width: int, height: int, target: tuple[int, int], longest: float
) -> None:
    data = encoded(Image.linear_gradient("L").resize((width, height)))
    full = open_image(data)
    picture = open_image(data, ScaledDecoding(*target, longest=longest))
    ratios = (width / target[0], height / target[1])
    ratio = max(ratios) if longest else min(ratios)
    if ratio < 4:
        assert same(picture, full), "below twice the size at half the scale"
    elif min(width, height) >= 8:
        scale = 2 if ratio < 8 else 4 if ratio < 16 else 8
        assert np.allclose(picture.size, (width / scale, height / scale), atol=0.5)
    assert min(picture.size) >= 1


FAMILIES: dict[str, dict[str, Any]] = {
    "timm, centre": {"crop_mode": "center", "crop_pct": 0.9},
    "timm, squash": {"crop_mode": "squash"},
    "timm, border": {"crop_mode": "border"},
    "open_clip, shortest": {"resize_mode": "shortest"},
    "open_clip, longest": {"resize_mode": "longest"},
    "open_clip, squash": {"resize_mode": "squash"},
}
BASES: dict[str, dict[str, Any]] = {
    "timm": {"family": "timm", "model": "test_resnet", "pretrained": False},
    "open_clip": {"family": "open_clip", "model": "RN50", "pretrained": False},
}
OTHERS: dict[str, dict[str, Any]] = {
    "convolutional": {"family": "convolutional", "stages": [{"filters": 4}]},
    "pixels": {"family": "pixels", "size": 24},
    "scattering": {"family": "scattering", "size": 32},
}


def resized(transform: Any, picture: Image.Image) -> tuple[int, int]:
    """Returns a picture's size after the first step of a transform."""
    if isinstance(transform, ToBytes):
        return transform.steps.transforms[0](picture).size  # type: ignore[attr-defined]
    return transform.size, transform.size


def check_family(backbone: Backbone) -> None:
    transform = backbone.transform
    factors = set()
    for size in ((1200, 900), (900, 1200), (1120, 1121), (2100, 400), (60, 80)):
        data = encoded(smooth_noise(size))
        full = open_image(data)
        width, height = resized(transform, full)
        wanted = drafted(data, (2 * width, 2 * height))
        picture = open_image(data, backbone.scaled)
        assert same(picture, wanted), (size, (width, height), picture.size, wanted.size)
        factors.add(round(size[0] / picture.width))
        assert transform(picture).shape == transform(full).shape
    assert len(factors) > 1, "some photographs are scaled, and small ones are not"


@pytest.mark.parametrize("family", FAMILIES)
def test_networks_of_libraries_decode_at_twice_their_resize(family: str) -> None:
    base = BASES[family.partition(",")[0]]
    views = FAMILIES[family] | {"size": 64}
    check_family(load(**base, **SCALED, preprocessing=views))


@pytest.mark.parametrize("family", OTHERS)
def test_other_families_decode_at_twice_their_resize(family: str) -> None:
    backbone = load(**OTHERS[family], **SCALED)
    assert backbone.preprocessing["jpeg_decoding"] == "scaled"
    check_family(backbone)


@pytest.mark.parametrize("split", ["train", "test"])
def test_extraction_and_fine_tuning_decode_each_image_at_its_scale(split: str) -> None:
    """`Decoder` decodes each image at its scale, whatever the split and the images before."""
    backbone = load(**OTHERS["pixels"], **SCALED)
    decoder = Decoder(backbone, split)
    files = [encoded(smooth_noise(size)) for size in ((640, 480), (60, 50), (640, 480))]
    rows = [EncodedImage(i, f, None, "", sha256(f).digest()) for i, f in enumerate(files)]
    piece = decoder.decode_piece(rows)
    assert piece.images is not None
    for file, tensor, least in zip(files, piece.images, (48, 999, 48), strict=True):
        assert tensor.equal(backbone.transform(drafted(file, (least, least))))
    assert not piece.images[0].equal(backbone.transform(open_image(files[0])))


@pytest.mark.parametrize("family", OTHERS)
def test_identity_changes_with_scaled_decoding_and_not_with_the_default(family: str) -> None:
    plain, full, scaled = (
        load(**OTHERS[family], **change) for change in ({}, {"jpeg_decoding": "full"}, SCALED)
    )
    assert plain.fingerprint == full.fingerprint != scaled.fingerprint
    assert plain.preprocessing == full.preprocessing
    assert (plain.scaled, full.scaled) == (None, None)
    options = backbone_options(OTHERS[family])
    assert "jpeg_decoding" not in options.extraction_params()
    changed = backbone_options(OTHERS[family] | SCALED)
    assert changed.extraction_params() == options.extraction_params() | SCALED


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"family": "pixels"}, "jpeg_decoding scaled has no effect without size; set a size"),
        (
            OTHERS["convolutional"] | {"preprocessing": {"crop": "inception"}},
            "jpeg_decoding scaled with preprocessing.crop inception: .* remove one of the two",
        ),
        (
            {"family": "external", "model": "m", "each_by_itself": True},
            "jpeg_decoding scaled has no effect on vectors; remove it",
        ),
    ],
)
def test_scaled_decoding_without_meaning_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        backbone_options(options | SCALED)


def test_a_transform_without_a_first_resize_is_refused() -> None:
    from torchvision import transforms

    for first in (transforms.CenterCrop(8), transforms.Resize(8, max_size=9)):
        steps = transforms.Compose([first, transforms.PILToTensor()])
        with pytest.raises(ConfigError, match="preprocessing begins with .* remove jpeg_decoding"):
            scale_decoding(ToBytes(mode="L", steps=steps))
