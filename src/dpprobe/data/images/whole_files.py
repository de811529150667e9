"""Finds damage in image files that a decoder would not notice.

PNG has a checksum for each part, so any damage is found. Formats without checksums are checked for
a valid structure, and for long runs of zeros, which unfinished downloads and faulty disks leave.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dpprobe.data.problems import ImageError

if TYPE_CHECKING:
    from PIL import Image

FORMATS = (
    "AVIF", "BMP", "GIF", "HEIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TIFF", "WEBP",
)  # fmt: skip
_HOLE = 64  # zero bytes in a row that encoders write only for flat areas
_JPEG_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # any marker except restarts
_END_OF_IMAGE, _START_OF_SCAN, _PROGRESSIVE = 0xD9, 0xDA, 0xC2
_HUFFMAN_TABLES, _QUANTISATION = 0xC4, 0xDB
# TIFF tags: offsets and sizes of strips, and of tiles; others by name.
_STRIPS = ((273, 279), (324, 325))
_BITS, _COMPRESSION, _SAMPLES, _STRIP_ROWS, _PLANES = 258, 259, 277, 278, 284
_TILE_WIDTH, _TILE_ROWS = 322, 323
_TIFF_BYTES = {3: 2, 4: 4, 5: 8, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8}  # bytes by types of values
# TIFF compressions: with a checksum, and (LZW, JPEG, PackBits) without long runs of zeros.
_DEFLATE, _NO_ZEROS, _PART = (8, 32946), (5, 7, 32773), 1 << 20
# JPEG markers (frames, tables, comments, applications) that begin a segment with a length.
_JPEG_SEGMENTS = frozenset({*range(0xC0, 0xD0), *range(0xDA, 0xE0), *range(0xE0, 0xF0), 0xFE})


def open_whole(data: bytes, formats: Sequence[str] = FORMATS) -> Image.Image:
    """Opens an image, undecoded; raises ImageError if it shows signs of damage.

    Pillow's other formats are not opened, because some start programs such as Ghostscript. For
    formats without a check here, only Pillow's decoder can detect damage.
    """
    from PIL import Image

    Image.init()
    picture = Image.open(io.BytesIO(data), formats=[f for f in formats if f in Image.OPEN])
    if check := _CHECKS.get(picture.format or ""):
        check(data, picture)
    return picture


def jpeg_precision(data: bytes) -> int:
    """Returns the number of bits of a JPEG file's values; 0 if the file states none."""
    frames = (start for marker, start, _ in _walk_jpeg(data) if 0xC0 <= marker <= 0xC3)
    return next((data[start + 2] for start in frames if start + 2 < len(data)), 0)


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
            # If zeros encode a flat area, a block takes less than half a byte.
            _check_holes(data, size=_HOLE + flat * blocks // 2, start=start, end=end)


def _walk_jpeg(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yields marker, start and end of each JPEG segment; a scan's segment includes its pixels."""
    place = 2
    while marked := _JPEG_MARKER.search(data, place):
        marker, start = data[marked.start() + 1], marked.end()
        # A file transfer in text mode leaves bytes between segments.
        if data[place : marked.start()].strip(b"\0\xff"):
            raise _damaged(f"bytes from {place} are not part of a JPEG file")
        if marker == _END_OF_IMAGE:
            return
        if marker not in _JPEG_SEGMENTS:
            raise _damaged(f"byte {marked.start()} is not part of a JPEG file")
        place = start + int.from_bytes(data[start : start + 2])
        if marker == _START_OF_SCAN:
            after = _JPEG_MARKER.search(data, place)
            place = after.start() if after else len(data)
        yield marker, start, place
    raise _damaged("truncated, as it has no end marker")


def _ends_by_zeros(tables: bytes) -> Iterator[tuple[int, bool]]:
    """Yields the index of each AC Huffman table, and whether zeros encode the end of a block."""
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
    coding = tags.get(_COMPRESSION, 1)
    for starts, sizes in _STRIPS:
        strips = list(zip(tags.get(starts, ()), tags.get(sizes, ()), strict=False))
        for place, (start, size) in enumerate(strips):
            if start >= len(data) or (coding != 1 and start + size > len(data)):
                raise _damaged(f"it ends at byte {len(data)}, before its last strip or tile")
            values = _count_bytes(picture, place)
            if coding in _DEFLATE:
                _check_deflated(data[start : start + size], values, start)
            elif coding in _NO_ZEROS:
                # A flat area shrinks to a thousandth, which may be all zeros.
                size_of_hole = _HOLE + values // 500
                _check_holes(data, size=size_of_hole, start=start, end=start + size)


def is_cut_tiff(data: bytes) -> bool:
    """Returns True for a TIFF that ends before its list of tags, or before a tag's values."""
    if data[:4] not in (b"II*\0", b"MM\0*"):
        return False
    order = "<" if data[:1] == b"I" else ">"
    try:
        (start,) = struct.unpack_from(f"{order}I", data, 4)
        if start < 8:  # no list of tags
            return False
        (count,) = struct.unpack_from(f"{order}H", data, start)
        for place in range(start + 2, start + 2 + 12 * count, 12):
            _, kind, number, value = struct.unpack_from(f"{order}HHII", data, place)
            size = number * _TIFF_BYTES.get(kind, 1)
            if size > 4 and value + size > len(data):
                return True
    except struct.error:
        return True
    return False


def _count_bytes(picture: Any, place: int) -> int:
    """Returns the least number of bytes in an unpacked strip or tile of a TIFF."""
    tags = picture.tag_v2
    samples = 1 if tags.get(_PLANES, 1) == 2 else tags.get(_SAMPLES, 1)
    if _TILE_WIDTH in tags:  # tiles at the edges are padded
        width, rows = tags[_TILE_WIDTH], tags[_TILE_ROWS]
    else:
        width, most = picture.width, min(tags.get(_STRIP_ROWS, picture.height), picture.height)
        strips = -(-picture.height // max(most, 1))
        rows = min(most, picture.height - place % strips * most)
    bits = min(tags.get(_BITS, (1,)))
    return rows * ((width * bits * samples + 7) // 8)


def _check_deflated(packed: bytes, values: int, start: int) -> None:
    """Raises ImageError unless a stream has enough values and, if it ends, a valid checksum."""
    unpacker, count = zlib.decompressobj(), 0
    try:
        while not unpacker.eof and (part := unpacker.decompress(packed, _PART)):
            count, packed = count + len(part), unpacker.unconsumed_tail
            if count > values + _PART:  # more than the image needs
                return
    except zlib.error as error:
        raise _damaged(f"its strip or tile at byte {start}: {error}") from None
    if count < values and not unpacker.eof:
        raise _damaged(f"its strip or tile at byte {start} ends too early")


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
