"""Finds damage in image files that a decoder would not notice.

PNG has a checksum for each part, so any damage is found. Formats without checksums are checked for
a valid structure, and for long runs of zeros, which unfinished downloads and faulty disks leave.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from dpprobe.data.problems import ImageError

if TYPE_CHECKING:
    from PIL import Image

_HOLE = 64  # run of zero bytes that an encoder writes only for a flat area
_JPEG_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # any marker except restarts
_END_OF_IMAGE, _START_OF_SCAN, _PROGRESSIVE = 0xD9, 0xDA, 0xC2
_HUFFMAN_TABLES, _QUANTISATION = 0xC4, 0xDB
# TIFF tags: compression, then offsets and sizes of strips, and of tiles.
_COMPRESSION, _STRIPS = 259, ((273, 279), (324, 325))
# JPEG markers (frames, tables, comments, applications) that begin a segment with a length.
_JPEG_SEGMENTS = frozenset({*range(0xC0, 0xD0), *range(0xDA, 0xE0), *range(0xE0, 0xF0), 0xFE})


def check_whole(data: bytes, picture: Image.Image) -> None:
    """Raises ImageError if an opened image shows signs of damage; much faster than decoding.

    Damage in formats without a check is detected only by Pillow's decoder.
    """
    if check := _CHECKS.get(picture.format or ""):
        check(data, picture)


def _damaged(sign: str) -> ImageError:
    return ImageError(f"cannot be decoded (damaged: {sign})")


def _check_holes(
    data: bytes, _picture: Any = None, *, size: int = _HOLE, start: int = 0, end: int | None = None
) -> None:
    if (place := data.find(bytes(size), start, end)) >= 0:
        raise _damaged(f"{size} or more zeros at byte {place}, where no encoder writes them")


def _check_png(data: bytes, _picture: Image.Image) -> None:
    place, kind = 8, b""
    while kind != b"IEND":
        length = int.from_bytes(data[place : place + 4])
        end = place + 8 + length
        kind, checksum = data[place + 4 : place + 8], data[end : end + 4]
        if len(checksum) < 4:
            raise _damaged(f"it ends at byte {len(data)}, before its last part")
        if zlib.crc32(memoryview(data)[place + 4 : end]) != int.from_bytes(checksum):
            raise _damaged(f"the checksum of its part at byte {place} is wrong")
        place = end + 4


def _check_jpeg(data: bytes, picture: Image.Image) -> None:
    progressive = False
    by_zeros: dict[int, bool] = {}
    blocks = picture.width * picture.height * len(picture.getbands()) // 64
    for marker, start, end in _walk_jpeg(data):
        if marker in (_HUFFMAN_TABLES, _QUANTISATION):
            _check_holes(data, size=_HOLE // 2, start=start, end=end)
        if marker == _HUFFMAN_TABLES:
            by_zeros.update(_ends_by_zeros(data[start + 2 : end]))
        elif marker == _PROGRESSIVE:
            progressive = True
        elif marker == _START_OF_SCAN:
            tables = data[start + 4 : start + 3 + 2 * data[start + 2] : 2]
            flat = progressive or all(by_zeros.get(table & 15) for table in tables)
            # If zeros encode a flat area, each of its blocks takes less than half a byte.
            _check_holes(data, size=_HOLE + flat * blocks // 2, start=start, end=end)


def _walk_jpeg(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yields marker, start and end of each JPEG segment; a scan's segment includes its pixels."""
    place = 2
    while marked := _JPEG_MARKER.search(data, place):
        marker, start = data[marked.start() + 1], marked.end()
        # A file transfer in text mode leaves bytes between segments.
        if data[place : marked.start()].strip(b"\0\xff"):
            raise _damaged(f"bytes from {place} are no part of a JPEG file")
        if marker == _END_OF_IMAGE:
            return
        if marker not in _JPEG_SEGMENTS:
            raise _damaged(f"byte {marked.start()} is no part of a JPEG file")
        place = start + int.from_bytes(data[start : start + 2])
        if marker == _START_OF_SCAN:
            after = _JPEG_MARKER.search(data, place)
            place = after.start() if after else len(data)
        yield marker, start, place
    raise _damaged("truncated, as it has no end marker")


def _ends_by_zeros(tables: bytes) -> Iterator[tuple[int, bool]]:
    """Yields the number of each AC Huffman table, and whether zeros code the end of a block."""
    while len(tables) > 17:
        if tables[0] >> 4:
            yield tables[0] & 15, tables[17] == 0
        tables = tables[17 + sum(tables[1:17]) :]


def _check_webp(data: bytes, picture: Image.Image) -> None:
    place = 12
    while place < len(data):
        after = place + 8 + int.from_bytes(data[place + 4 : place + 8], "little")
        if data[place : place + 4] in (b"VP8 ", b"VP8L"):
            # Zeros may encode a flat area: up to 4 bits per pixel without loss, fewer with loss.
            lossy = data[place : place + 4] == b"VP8 "
            size = _HOLE + picture.width * picture.height // (4096 if lossy else 2)
            _check_holes(data, size=size, start=place, end=after)
        place = after + after % 2


def _check_tiff(data: bytes, picture: Any) -> None:
    tags = picture.tag_v2
    if tags.get(_COMPRESSION, 1) == 1:
        return
    for starts, sizes in _STRIPS:
        strips = list(zip(tags.get(starts, ()), tags.get(sizes, ()), strict=False))
        for start, size in strips:
            # Deflate shrinks a flat area to a thousandth, which may be all zeros.
            flat = picture.width * picture.height * len(picture.getbands()) // 500 // len(strips)
            _check_holes(data, size=_HOLE + flat, start=start, end=start + size)


def _check_heif(data: bytes, picture: Image.Image) -> None:
    place = 0
    while data[place + 4 : place + 8] not in (b"mdat", b""):
        size = int.from_bytes(data[place : place + 4])
        if size < 8:  # size 1: a size of 64 bits follows; size 0: the box ends with the file
            break
        place += size
    # EXIF data, outside the pixels, may be padded with zeros.
    exif = picture.info.get("exif") or b""
    _check_holes(data[place:].replace(exif[6:] or b"mdat", b"EXIF"))


_CHECKS: dict[str, Callable[[bytes, Any], None]] = {
    "AVIF": _check_heif,
    "HEIF": _check_heif,
    "JPEG": _check_jpeg,
    "JPEG2000": _check_holes,
    "MPO": _check_jpeg,
    "PNG": _check_png,
    "TIFF": _check_tiff,
    "WEBP": _check_webp,
}
