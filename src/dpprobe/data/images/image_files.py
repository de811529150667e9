"""Recognizes and decodes image files.

Reads the formats of `whole_files.FORMATS`, and DICOM. Libraries for HEIC and DICOM are imported
only if a file needs them.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dpprobe.data.images.dicom import MAGIC, PREAMBLE, is_dicom, looks_bare, open_dicom
from dpprobe.data.images.whole_files import is_cut_tiff, open_whole
from dpprobe.data.people.alike_names import fold_name
from dpprobe.data.problems import ImageError
from dpprobe.extras import naming_extras
from dpprobe.files.plain_files import name_kind, require_plain_file

if TYPE_CHECKING:
    from PIL import Image

EXTENSIONS = frozenset(
    {
        ".bmp", ".dcm", ".dicom", ".gif", ".heic", ".heif", ".jpeg", ".jpg", ".pgm", ".png",
        ".ppm", ".tif", ".tiff", ".webp",
    }
)  # fmt: skip
# Names that storage systems add: Synology, QNAP, NetApp, Windows, macOS, Linux.
_HELPERS = re.compile(
    r"@(eadir|__thumb|sharebin|tmp|transcode|syno.*|recycle|recently-snapshot)|[#~.](recycle|"
    r"snapshots?)|\$recycle\.bin|recycler|system volume information|lost\+found|lost\.dir|"
    r"found\.\d{3}|__macosx|network trash folder|temporary items|thumbnails|_thumbs|"
    r"(eh)?thumbs(_vista)?\.db|desktop\.ini|icon\r|zbthumbnail\.info|syno(photo|file)_thumb.*",
    re.IGNORECASE,
)
# The number of a picture's rows hashed at a time, to avoid a copy of all pixels.
_STRIP = 256
# Types of ISO base media files that contain a still picture coded by HEVC.
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_SIXTEEN_BITS = 65535
# First bytes of image formats (of EXTENSIONS) that can be recognised by content.
_STARTS = (b"\x89PNG\r\n", b"\xff\xd8\xff", b"GIF8", b"II*\0", b"MM\0*")
# Keys that dpprobe adds to `Image.info`:
GREY_BITS = "dpprobe_grey_bits"  # the number of bits of white, if stated in the file
WHITE_IS_ZERO = "dpprobe_white_is_zero"  # True for 16-bit grey that Pillow does not invert
_DEEP_COLOURS = "dpprobe_deep_colours"  # True if colours had 16 bits
_BITS_PER_SAMPLE, _PHOTOMETRIC, _SAMPLE_FORMAT = 258, 262, 339  # tags of TIFF files
_ORIENTATION, _TURNED = 0x0112, (5, 6, 7, 8)  # EXIF: the tag, and values that swap width and height
_JPEG_SCALES = (8, 4, 2)  # libjpeg decodes at 1/8, 1/4 and 1/2 of the size


@dataclass(frozen=True)
class ScaledDecoding:
    """Decodes JPEGs at the smallest scale that is at least twice the size after resizing.

    Images are resized to `width` x `height` pixels. If the aspect ratio is kept, either the side
    that is shorter relative to its target gets the target size (`longest` 0), or the longer (1).
    """

    width: int
    height: int
    longest: float = 0.0

    def decode(self, picture: Any) -> Any:
        """Returns the pixels of an opened file; decodes formats other than JPEG in full."""
        if picture.format not in ("JPEG", "MPO"):
            return picture
        targets = self.width, self.height
        if picture.getexif().get(_ORIENTATION) in _TURNED:
            targets = self.height, self.width
        ratios = [side / target for side, target in zip(picture.size, targets, strict=True)]
        ratio = max(ratios) * self.longest + min(ratios) * (1 - self.longest)
        scale = next((each for each in _JPEG_SCALES if 2 * each <= ratio), 1)
        # Pillow chooses the scale by the requested size, which must not be 0.
        drafted = picture.draft(None, tuple(max(1, side // scale) for side in picture.size))
        picture.load()
        if drafted is None:
            return picture
        # libjpeg rounds sides up. A last pixel that is mostly padding would stretch the image.
        sides = tuple(int(side + 0.5) for side in drafted[1][2:])
        return picture if sides == picture.size else picture.crop((0, 0, *sides))


def is_image_file(path: Path | str) -> bool:
    """Returns True for a file with an image's extension, or with the first bytes of DICOM.

    Hospitals export DICOM files with numbers as names. Returns False for an unreadable file.
    """
    if Path(path).suffix.lower() in EXTENSIONS:
        return True
    try:
        require_plain_file(Path(path))
        with Path(path).open("rb") as stream:
            return is_dicom(stream.read(PREAMBLE + len(MAGIC)))
    except (OSError, ValueError):
        return False


def is_helper(name: str) -> bool:
    """Returns True for a hidden name, and for a folder or preview that a storage system added."""
    return name.startswith(".") or _HELPERS.fullmatch(name) is not None


def leads_back(folder: Path) -> bool:
    """Returns True for a link to a folder that contains the link, which would loop forever."""
    if not folder.is_symlink():
        return False
    target = folder.resolve()
    return any(each.resolve().is_relative_to(target) for each in folder.absolute().parents)


def is_image_start(data: bytes) -> bool:
    """Returns True for the first bytes of an image; the file's name does not matter."""
    is_heif = data[4:8] == b"ftyp" and data[8:12] in _HEIF_BRANDS
    return data.startswith(_STARTS) or data[8:12] == b"WEBP" or is_heif or is_dicom(data)


def encode_png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format="PNG")
    return stream.getvalue()


def open_image(data: bytes, scaled: ScaledDecoding | None = None) -> Image.Image:
    """Decodes an image, upright by its EXIF data; raises ImageError unless there is one image.

    Without `scaled`, all pixels are decoded.
    """
    with naming_extras():
        from PIL import ImageOps, UnidentifiedImageError

    if is_dicom(data):
        return open_dicom(data)
    if data[4:8] == b"ftyp" and data[8:12] in _HEIF_BRANDS:
        with naming_extras():
            import pillow_heif

        pillow_heif.register_heif_opener(thumbnails=False)
    try:
        picture = open_whole(data)
        frames = "several" if _has_more(data, picture) else getattr(picture, "n_frames", 1)
        # The first image of an MPO file is the photograph; other images are previews.
        if frames == 1 or picture.format == "MPO":
            facts = _read_grey_facts(picture)
            if scaled is not None:
                picture = scaled.decode(picture)
            picture.load()
            if picture.mode == "I;16B":  # Pillow computes no extremes of this mode
                picture = picture.convert("I")
            _check_mode(picture)
            picture.info.update(facts)
            return ImageOps.exif_transpose(picture)
    except ImageError:
        raise
    except Exception as error:  # Pillow's readers raise errors of any kind
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        if is_cut_tiff(data):
            line = "truncated TIFF; copy the file again"
        elif isinstance(error, UnidentifiedImageError):
            line = f"not a known image format: {_describe_start(data)}"
        raise ImageError(f"cannot be decoded ({line})") from error
    raise ImageError(f"{frames} images in one file")


def _has_more(data: bytes, picture: Any) -> bool:
    """Returns True if another image follows in a PGM or PPM file, which Pillow does not read."""
    if picture.format != "PPM":
        return False
    decoder, _, start, arguments = picture.tile[0]
    if decoder == "ppm_plain":
        return b"P" in re.sub(rb"#[^\r\n]*", b"", data[start:])
    wide = picture.mode == "I" or (decoder == "ppm" and arguments[1] > 255)
    bits = {"1": 1, "F": 32}.get(picture.mode, len(picture.getbands()) * (16 if wide else 8))
    end = start + (picture.width * bits + 7) // 8 * picture.height
    return re.match(rb"\s*P[1-7f]\s", data[end:]) is not None


def _read_grey_facts(picture: Any) -> dict[str, Any]:
    """Reads a file's facts about grey values of more than 8 bits, before decoding pixels."""
    deep = ";16" in str(picture.tile) and not picture.mode.startswith("I")
    facts: dict[str, Any] = {GREY_BITS: None, WHITE_IS_ZERO: False, _DEEP_COLOURS: deep}
    tags = getattr(picture, "tag_v2", {})
    if picture.mode == "L" and tags.get(_SAMPLE_FORMAT) == (2,):
        raise ImageError("signed 8-bit values have no known range; convert them to 0..255")
    if picture.format == "PPM":
        facts[GREY_BITS] = 16  # Pillow scales values by the file's largest value
    elif picture.mode.startswith("I"):
        facts[GREY_BITS] = 12 if tags.get(_BITS_PER_SAMPLE) == (12,) else None
        facts[WHITE_IS_ZERO] = tags.get(_PHOTOMETRIC) == 0
    return facts


def count_used_bits(picture: Image.Image) -> tuple[str, int] | None:
    """Returns "grey" or "colours", and the number of bits of the largest 16-bit value.

    Returns None for values of 8 bits, and for a file that states the number of bits.
    """
    if picture.info.get(_DEEP_COLOURS):  # Pillow keeps only the upper 8 bits of 16-bit colours
        largest = max(high for _, high in picture.convert("RGB").getextrema())  # type: ignore[misc]
        return "colours", 8 + int(largest).bit_length()
    if not picture.mode.startswith("I") or picture.info.get(GREY_BITS):
        return None
    return "grey", int(cast("tuple[int, int]", picture.getextrema())[1]).bit_length()


def pixel_hash(picture: Image.Image) -> bytes:
    """Returns a SHA-256 of a picture's size and pixels, which does not depend on the file's format.

    The hash covers the RGB colours that a backbone sees, without transparency. Grey of 16 bits is
    hashed unconverted, because conversion to 8 bits would merge values.
    """
    mode = "I" if picture.mode.startswith("I") else "RGB"
    negative = " negative" if picture.info.get(WHITE_IS_ZERO) else ""
    digest = hashlib.sha256(f"{mode}{negative} {picture.width} {picture.height}\n".encode())
    for top in range(0, picture.height, _STRIP):
        strip = picture.crop((0, top, picture.width, min(top + _STRIP, picture.height)))
        digest.update((strip if strip.mode == mode else strip.convert(mode)).tobytes())
    return digest.digest()


def hint_misspelling(path: str) -> str:
    """Returns a hint for a missing file if a file with a similarly spelled name exists."""
    if "\\" in path:
        return ": the path has backslashes, as on Windows; use / instead"
    parent, name = os.path.split(path)
    there = _list_names(parent or ".").get(fold_name(name))
    return f": there is {there!r}, with a different spelling" if there is not None else ""


@lru_cache(maxsize=8)
def _list_names(folder: str) -> dict[str, str]:
    try:
        return {fold_name(path.name): path.name for path in Path(folder).iterdir()}
    except OSError:
        return {}


def _describe_start(data: bytes) -> str:
    if not data:
        return "it is empty"
    if data[4:8] == b"ftyp":
        return "HEIC or a video, perhaps truncated or damaged"
    if data[:4] in (b"II*\0", b"MM\0*"):
        return "TIFF with an unusual pixel format; convert it to grey or colours of 8 or 16 bits"
    if looks_bare(data):
        return "perhaps DICOM without its preamble: rewrite the file with dcmconv or pydicom"
    # bytes are not quoted, because a stranger's path may name any file of this machine
    return f"it is {name_kind(data[:32]) or 'of an unknown format'}"


def _check_mode(picture: Image.Image) -> None:
    """Refuses pixels that extraction cannot convert to 8 bits."""
    mode, values, known = picture.mode, "", True
    if mode == "LAB":
        raise ImageError(
            "an image of mode LAB cannot be converted to RGB here; convert it to RGB with another "
            "program"
        )
    if mode == "I":
        low, high = cast("tuple[int, int]", picture.getextrema())
        values = f" from {low} to {high}"
        known = 0 <= low <= high <= _SIXTEEN_BITS
    if mode == "F" or not known:
        raise ImageError(
            f"pixels of mode {mode}{values} have no known range; convert the image to 8 or 16 bits"
        )
