"""Image files: HEIC, unusual modes, pixel hashes, other suffixes, and damage in each format."""

from __future__ import annotations

import functools
import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from dpprobe.backbones.image_preprocessing import AssumeGreyBits, convert_mode
from dpprobe.data.images.image_files import (
    count_used_bits,
    hint_misspelling,
    open_image,
    pixel_hash,
)
from dpprobe.data.problems import ImageError
from dpprobe.data.sources import imagefolder
from dpprobe.errors import DataError
from tests.support.shards import png


def noise(mode: str = "RGB", *, size: tuple[int, int] = (40, 30), seed: int = 0) -> Image.Image:
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    values = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    return Image.fromarray(values)


def encoded(picture: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, format=kind, **options)
    return stream.getvalue()


def heic(picture: Image.Image, **options: Any) -> bytes:
    stream = io.BytesIO()
    pillow_heif.from_pillow(picture).save(stream, quality=-1, **options)
    return stream.getvalue()


def test_heic_is_read_and_upright() -> None:
    smooth = Image.linear_gradient("L").resize((64, 48)).convert("RGB")
    picture = open_image(heic(smooth))
    assert (picture.mode, picture.size) == ("RGB", (64, 48))
    assert np.abs(np.asarray(picture, int) - np.asarray(smooth, int)).mean() < 4
    exif = Image.Exif()
    exif[0x0112] = 6
    assert open_image(heic(noise(size=(64, 48)), exif=exif.tobytes())).size == (48, 64)


def test_photographs_with_a_preview_and_other_colours_are_read() -> None:
    picture = noise()
    previews = {"save_all": True, "append_images": [picture.resize((4, 3))]}
    files = [encoded(picture, "MPO", **previews), encoded(picture.convert("CMYK"), "JPEG")]
    files += [encoded(Image.new(mode, (40, 30), 3), "PNG") for mode in ("I;16", "P")]
    files += [encoded(Image.new("I", (40, 30), 65535), "TIFF")]
    assert [open_image(data).size for data in files] == [(40, 30)] * 5


def test_one_picture_in_two_files_has_one_hash() -> None:
    picture = noise()
    exif = Image.Exif()
    exif[0x010E] = "a comment"
    files = [
        encoded(picture, "PNG"),
        encoded(picture, "BMP"),
        encoded(picture, "PNG", exif=exif),
        encoded(picture, "TIFF"),
    ]
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
    """Grey is repeated for each colour, palettes are resolved, and transparency is dropped."""
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
    assert count_used_bits(open_image(BLUE)) == ("colours", 12)


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


RAMP = np.linspace(0, 4095, 32 * 64).round().astype(np.uint16).reshape(32, 64)


def tiff(
    data: bytes, bits: int, *tags: tuple[int, int], photometric: int = 1, order: str = "<"
) -> bytes:
    """Returns a grey TIFF file of 64 x 32 pixels."""
    given = {
        256: 64,
        257: 32,
        258: bits,
        259: 1,
        262: photometric,
        273: 0,
        277: 1,
        278: 32,
        279: len(data),
        **dict(tags),
    }
    given[273] = 8 + 2 + 12 * len(given) + 4
    fields = [struct.pack(f"{order}HHII", tag, 4, 1, given[tag]) for tag in sorted(given)]
    start = b"II*\0" if order == "<" else b"MM\0*"
    return start + struct.pack(f"{order}IH", 8, len(given)) + b"".join(fields) + bytes(4) + data


def packed() -> bytes:
    """Packs two pixels of twelve bits into three bytes."""
    first, second = RAMP.reshape(-1, 2).T.astype(int)
    parts = (first >> 4, (first & 15) << 4 | second >> 8, second & 255)
    return np.stack(parts, 1).astype(np.uint8).tobytes()


def with_chunk(png: bytes, kind: bytes, body: bytes) -> bytes:
    checked = kind + body
    chunk = struct.pack(">I", len(body)) + checked + struct.pack(">I", zlib.crc32(checked))
    return png[:33] + chunk + png[33:]


SHORT, PNG = RAMP.tobytes(), encoded(Image.fromarray(RAMP), "PNG")
# 16-bit colours: blue uses twelve bits, the others fewer.
BLUE = tiff(np.stack([RAMP // 9, 0 * RAMP, RAMP], 2).tobytes(), 16, (277, 3), photometric=2)
# name -> file, bits to set in the options (None if the file states them), whether 0 is white
GREY: dict[str, tuple[bytes, int | None, bool]] = {
    "12 bits in a PNG of 16": (PNG, 12, False),
    "10 bits in a PNG of 16": (encoded(Image.fromarray(RAMP // 4), "PNG"), 10, False),
    "8 bits in a PNG of 16": (encoded(Image.fromarray(RAMP // 16), "PNG"), 8, False),
    "12 bits with sBIT": (with_chunk(PNG, b"sBIT", b"\x0c"), 12, False),
    "a text called as our key": (with_chunk(PNG, b"tEXt", b"dpprobe_grey_bits\x0014"), 12, False),
    "12 bits at the upper end": (encoded(Image.fromarray(RAMP * 16), "PNG"), 16, False),
    "a TIFF of 16 bits": (tiff(SHORT, 16), 12, False),
    "a TIFF of ImageJ": (tiff(RAMP.astype(">u2").tobytes(), 16, order=">"), 12, False),
    "a TIFF with its largest value": (tiff(SHORT, 16, (281, 4095), (341, 4095)), 12, False),
    "a TIFF whose 0 is white": (tiff(SHORT, 16, photometric=0), 12, True),
    "a turned TIFF whose 0 is white": (tiff(SHORT, 16, (274, 3), photometric=0), 12, True),
    "a TIFF with a sign": (tiff((RAMP * 8).tobytes(), 16, (339, 2)), 15, False),
    "a TIFF of 32 bits": (tiff(RAMP.astype(np.uint32).tobytes(), 32), 12, False),
    "a TIFF of 12 bits": (tiff(packed(), 12), None, False),
    "PGM": (b"P5 64 32 4095\n" + RAMP.astype(">u2").tobytes(), None, False),
    "JPEG 2000": (encoded(Image.fromarray(RAMP), "JPEG2000", irreversible=False), 12, False),
}


@pytest.mark.parametrize("kind", GREY)
def test_grey_uses_its_range_once_its_bits_are_known(kind: str) -> None:
    data, bits, negative = GREY[kind]
    used = count_used_bits(open_image(data))
    assert used == (None if bits is None else ("grey", bits))
    convert: Any = lambda image: np.asarray(convert_mode(image, "L"))  # noqa: E731
    seen: Any = AssumeGreyBits(convert, bits or 9)(open_image(data))
    wanted = np.round(RAMP / 4095 * 255).astype(int)
    wanted = 255 - wanted if negative else wanted
    wanted = wanted[::-1, ::-1] if "turned" in kind else wanted
    assert np.abs(seen.astype(int) - wanted).max() <= 1
    assert len(np.unique(seen)) == 256


def test_negatives_are_other_pictures_and_too_few_bits_are_refused() -> None:
    plain, negative = (open_image(tiff(SHORT, 16, photometric=kind)) for kind in (1, 0))
    assert pixel_hash(plain) != pixel_hash(negative)
    with pytest.raises(DataError, match="grey_bits"):
        AssumeGreyBits(lambda image: convert_mode(image, "L"), 11)(plain)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (encoded(Image.new("F", (4, 4), 0.5), "TIFF"), "mode F have no known range"),
        *(
            (encoded(Image.new("I", (4, 4), value), "TIFF"), f"mode I from {value} to {value} have")
            for value in (-1, 65536)
        ),
        (encoded(Image.new("LAB", (4, 4)), "TIFF"), "mode LAB cannot be converted to RGB"),
        (tiff(RAMP.astype(np.uint8).tobytes(), 8, (339, 2)), "signed 8-bit values"),
        (b"II*\0" + bytes(90), "TIFF with an unusual pixel format"),
        (b"MM\0*" + bytes(90), "TIFF with an unusual"),
        (b"", "it is empty"),
        (b"\0\0\0\x18ftypheix" + bytes(90), "HEIC or a video"),
        (b"<html>404, not found", "it is a web page"),
        (b"SECRET=xyzzy\n\t" + bytes(18), "^(?!.*(SECRET|xyzzy)).*of an unknown format"),
        (b"SECRET=xyzzy\n\t", "^(?!.*(SECRET|xyzzy)).*it is a text"),
        (b"\x08\0\x1f" + bytes(90), "perhaps DICOM"),
        (b"\2\0 " + bytes(90), "it is of an unknown format"),
        (encoded(noise(), "JPEG")[:-2] + b"\xff\2\0\2\xff\xd9", r"byte \d+ is not part of a JPEG"),
    ],
)
def test_odd_modes_are_refused_while_all_images_are_checked(data: bytes, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        open_image(data)


def test_images_of_a_netpbm_file_are_counted() -> None:
    raw = [encoded(Image.new(mode, (2, 1)), "PPM") for mode in ("1", "L", "I", "RGB")]
    for data in (*raw, b"P6\n2 1\n256\n" + bytes(12), b"P2\n# P5\n2 1\n9\n1 2\n# P2\n"):
        assert open_image(data + b"\n# P5 ").size == (2, 1)
        with pytest.raises(ImageError, match="several images in one file"):
            open_image(data + data)


def test_a_missing_file_is_reported_in_another_spelling(tmp_path: Path) -> None:
    (tmp_path / "A 1.JPG").write_bytes(b"")
    assert (
        hint_misspelling(str(tmp_path / "a  1.jpg"))
        == ": there is 'A 1.JPG', with a different spelling"
    )
    assert hint_misspelling(str(tmp_path / "b.jpg")) == ""
    assert "use / instead" in hint_misspelling(r"files\a.jpg")
    assert hint_misspelling(str(tmp_path / "nowhere/b.jpg")) == ""


pillow_heif.register_heif_opener()
ZEROS_PASS = ("BMP", "PPM", "TIFF")  # formats in which zero bytes are valid pixels
# Damage that cannot be detected in some kinds of a format.
UNSEEN = {
    ("a third of zeros", "lossless WEBP"),
    ("one sector of zeros", "lossless WEBP"),
    ("one sector of zeros", "progressive JPEG"),
}
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
def test_holes_and_truncation_in_image_files_are_detected(name: str, damage: str) -> None:
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
    """Flat pictures are accepted although their files have long runs of zeros."""
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


# Folders and previews that storage systems add to class folders are ignored and counted.


# Files that a system adds next to cat/1.png, and how many of them are images.
ADDED = {
    "Synology": (["@eaDir/1.png/SYNOPHOTO_THUMB_M.jpg", "@eaDir/1.png/SYNOPHOTO_THUMB_XL.jpg"], 2),
    "Synology 2": (["@eaDir/1.png/SYNOFILE_THUMB_M.jpg", "SYNOPHOTO_THUMB_S.jpg"], 2),
    "QNAP": (["@__thumb/s1001.png", ".@__thumb/s800.png", "@Recycle/7.png"], 3),
    "Samba": (["#recycle/3.png", ".recycle/4.png"], 2),
    "NetApp": ([".snapshot/hourly/1.png", "~snapshot/daily/1.png"], 2),
    "Windows": (["Thumbs.db", "$RECYCLE.BIN/5.png", "System Volume Information/x.png"], 2),
    "macOS": ([".AppleDouble/1.png", "__MACOSX/._1.png", "._1.png", "Icon\r", ".DS_Store"], 3),
    "Linux": (["lost+found/9.png", ".thumbnails/normal/1.png", ".Trash-1000/files/1.png"], 3),
    "other case": (["@EADIR/1.png/a.jpg", "THUMBS.DB", "__macosx/2.png"], 2),
}


def make_folder(root: Path, added: list[str] = []) -> Path:  # noqa: B006
    names = [f"{kind}/{number}.png" for kind in ("cat", "dog") for number in range(1, 9)]
    for number, name in enumerate([*names, *(f"cat/{each}" for each in added)]):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(png(number))
    return root


@pytest.mark.parametrize(("added", "images"), ADDED.values(), ids=ADDED)
@pytest.mark.parametrize("parts", [False, True])
def test_helpers_are_left_out_and_counted(
    tmp_path: Path, added: list[str], images: int, parts: bool
) -> None:
    for part in ("train/", "test/") if parts else ("",):
        make_folder(tmp_path / part, added if part != "test/" else [])
    options = imagefolder.Options(path=str(tmp_path))
    listing = imagefolder.list_images(options)
    assert listing.class_names == ("cat", "dog")
    listed = [len(files) for classes in listing.files.values() for files in classes.values()]
    assert listed == [8] * (4 if parts else 2)
    (line,) = options.list_warnings()
    assert f"{images} images left out, in files and folders that operating systems add: " in line
    assert not any("@" in str(folder) for folder in options.input_files())
