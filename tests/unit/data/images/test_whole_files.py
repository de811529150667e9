"""Valid images open, damaged images are refused, and no external program starts."""

from __future__ import annotations

import io
import struct
import subprocess
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image
from pydicom.encaps import encapsulate
from pydicom.uid import UID, JPEGBaseline8Bit, JPEGExtended12Bit

from dpprobe.data.images.image_files import open_image
from dpprobe.data.images.whole_files import FORMATS
from dpprobe.data.problems import ImageError
from dpprobe.data.table import EncodedImage
from dpprobe.release.image_sources import open_encoded
from tests.unit.data.images.test_dicom import encoded, header

GENERATOR = np.random.default_rng(0)
SHAPE = (70, 90)
PICTURES = {
    "flat": np.zeros(SHAPE),
    "white": np.full(SHAPE, 255),
    "steps": np.indices(SHAPE)[0] // 24 * 80,
    "noise": GENERATOR.integers(0, 256, SHAPE),
    "half": np.where(np.indices(SHAPE)[1] < 50, 0, GENERATOR.integers(0, 256, SHAPE)),
}


def tiff(pixels: Any, *, level: int, tile: int, order: str = "<") -> bytes:
    """Returns a TIFF, grey or in colour, with deflated tiles (strips if `tile` is 0)."""
    height, width = pixels.shape[:2]
    samples = 1 if pixels.ndim == 2 else 3
    high, wide = (tile, tile) if tile else (16, width)
    parts = []
    for top in range(0, height, high):
        for left in range(0, width, wide):
            part = pixels[top : top + high, left : left + wide]
            if tile:
                rows, columns = high - len(part), wide - part.shape[1]
                part = np.pad(part, ((0, rows), (0, columns), (0, 0))[: pixels.ndim])
            packed = zlib.compress(part.astype(part.dtype.newbyteorder(order)).tobytes(), level)
            parts.append(packed)
    bits = 8 * pixels.itemsize
    places = (324, 325) if tile else (273, 279)
    data = (b"II*\0" if order == "<" else b"MM\0*") + bytes(4)
    starts = []
    for part in parts:
        starts.append(len(data))
        data += part + bytes(len(part) % 2)
    entries = {
        256: [width],
        257: [height],
        258: [bits] * samples,
        259: [8],
        262: [1 if samples == 1 else 2],
        277: [samples],
        places[0]: starts,
        places[1]: [len(part) for part in parts],
    }
    entries |= {322: [wide], 323: [high]} if tile else {278: [high]}
    head = struct.pack(f"{order}H", len(entries))
    outside, extra = len(data) + 2 + 12 * len(entries) + 4, b""
    for tag, values in sorted(entries.items()):
        body = struct.pack(f"{order}{len(values)}I", *values)
        if len(body) > 4:
            place, extra = outside + len(extra), extra + body
            body = struct.pack(f"{order}I", place)
        head += struct.pack(f"{order}HHI", tag, 4, len(values)) + body
    where = struct.pack(f"{order}I", len(data))
    return data[:4] + where + data[8:] + head + bytes(4) + extra


CASES = [(level, tile, order) for level in (0, 1, 6, 9) for tile in (0, 16, 64) for order in "<>"]


@pytest.mark.parametrize(("level", "tile", "order"), CASES)
@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
@pytest.mark.parametrize("name", PICTURES)
def test_valid_deflated_tiffs_are_opened(
    name: str, kind: Any, level: int, tile: int, order: str
) -> None:
    pixels = PICTURES[name].astype(kind) * (257 if kind is np.uint16 else 1)
    data = tiff(pixels, level=level, tile=tile, order=order)
    np.testing.assert_array_equal(np.asarray(open_image(data)), pixels)


@pytest.mark.parametrize("tile", [0, 16, 64])
def test_valid_tiffs_of_colours_are_opened(tile: int) -> None:
    for name in PICTURES:
        pixels = np.stack([PICTURES[name], 0 * PICTURES[name], 255 - PICTURES[name]], 2)
        data = tiff(pixels.astype(np.uint8), level=6, tile=tile)
        np.testing.assert_array_equal(np.asarray(open_image(data)), pixels)


@pytest.mark.parametrize("tile", [0, 16, 64])
@pytest.mark.parametrize("level", [0, 6])
@pytest.mark.parametrize("name", ["noise", "half", "steps"])
def test_damaged_tiffs_are_refused(name: str, level: int, tile: int) -> None:
    pixels = PICTURES[name].astype(np.uint8)
    whole = tiff(pixels, level=level, tile=tile)
    changed = [whole[:cut] for cut in (40, len(whole) // 2, len(whole) - 200, len(whole) - 1)]
    for start, stop in ((15, 16), (20, 36)):
        other = bytes(byte ^ 90 for byte in whole[start:stop])
        changed.append(whole[:start] + other + whole[stop:])
    for data in changed:
        with pytest.raises(ImageError, match="damaged|truncated"):
            open_image(data)


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
STRANGERS = {
    "PostScript": POSTSCRIPT,
    "PostScript in DOS's envelope": b"\xc5\xd0\xd3\xc6"
    + struct.pack("<II", 32, len(POSTSCRIPT))
    + bytes(20)
    + POSTSCRIPT,
    "PDF": b"%PDF-1.4\n1 0 obj\n",
    "PCX": b"\x0a\x05\x01\x08" + bytes(124),
    "XPM": b"/* XPM */\n",
    "ICO": b"\0\0\1\0\1\0\x10\x10\0\0\1\0\x20\0" + bytes(60),
    "WMF": b"\xd7\xcd\xc6\x9a" + bytes(90),
    "TGA": bytes([0, 0, 2]) + bytes(9) + bytes([4, 0, 4, 0, 24, 0]) + bytes(60),
    "PSD": b"8BPS\0\1" + bytes(40),
}


def dicom(frame: bytes, syntax: UID, **changed: Any) -> bytes:
    dataset = header(np.zeros(SHAPE, np.uint16), PixelData=encapsulate([frame]), **changed)
    dataset["PixelData"].is_undefined_length = True
    dataset.file_meta.TransferSyntaxUID = syntax
    return encoded(dataset)


@pytest.mark.parametrize("data", STRANGERS.values(), ids=STRANGERS)
def test_image_files_in_unsupported_formats_are_refused(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files, embedded bytes and DICOM frames of other formats are all refused."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a program is started")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", refuse)
    for name in ("Popen", "run", "check_call"):
        monkeypatch.setattr(subprocess, name, refuse)
    with pytest.raises(ImageError, match="cannot be decoded"):
        open_image(data)
    with pytest.raises(ImageError, match="cannot be decoded"):
        open_encoded(EncodedImage(0, data, "photo.jpg", "photo", b""))
    with pytest.raises(ImageError, match="cannot be decoded"):
        open_image(dicom(data, JPEGBaseline8Bit))
    assert not {"EPS", "WMF", "PDF", "PSD"} & set(FORMATS)


@pytest.mark.parametrize("kind", ["BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"])
def test_named_formats_are_opened(kind: str) -> None:
    stream = io.BytesIO()
    Image.fromarray(PICTURES["steps"].astype(np.uint8)).save(stream, kind)
    assert open_image(stream.getvalue()).size == SHAPE[::-1]


def test_jpeg_of_12_bits_needs_another_decoder() -> None:
    """The file is valid, but Pillow cannot read 12-bit JPEGs."""
    stream = io.BytesIO()
    Image.fromarray(PICTURES["noise"].astype(np.uint8)).save(stream, "JPEG")
    data = stream.getvalue()
    frame = data.index(b"\xff\xc0") + 4
    data = data[: frame - 3] + b"\xc1" + data[frame - 2 : frame] + b"\x0c" + data[frame + 1 :]
    with pytest.raises(ImageError, match="JPEG of 12 bits cannot be decoded here; rewrite"):
        open_image(dicom(data, JPEGExtended12Bit, BitsStored=12, HighBit=11))
