"""Decodes DICOM files to 8-bit pictures, with the contrast that viewers show by default.

Grey values are scaled by the file's rescale slope and intercept (or modality table). The file's
first window (or value-of-interest table) maps the window's dark end to 0 and bright end to 255.
Without a window, the image's smallest and largest values become 0 and 255. Enhanced files have
these fields in functional groups, which are read for their only frame. MONOCHROME1 images, whose
small values are bright, are inverted; padding is black. Decoding costs no privacy, because each
image is decoded independently.

Only header fields that describe pixels are parsed, so names, dates and numbers of patients are
skipped. No message repeats text from a file.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dpprobe.data.images.whole_files import jpeg_precision, open_whole
from dpprobe.data.problems import ImageError
from dpprobe.extras import naming_extras

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image
    from pydicom import Dataset
    from pydicom.uid import UID

PREAMBLE = 128
MAGIC = b"DICM"
# First bytes of a DICOM file without preamble: the first element's group, 0002 or 0008.
_BARE = (b"\x02\x00", b"\x08\x00")
# DICOM fields that define how values are displayed; blank fields count as absent.
_OPTIONAL = (
    "PixelPaddingValue", "PixelPaddingRangeLimit", "FloatPixelPaddingValue",
    "DoubleFloatPixelPaddingValue", "RescaleSlope", "RescaleIntercept", "WindowCenter",
    "WindowWidth", "VOILUTFunction",
)  # fmt: skip
_PIXELS = ("PixelData", "FloatPixelData", "DoubleFloatPixelData")
# No other fields are read.
READ_FIELDS = (
    *_OPTIONAL, *_PIXELS,
    "SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration", "NumberOfFrames",
    "Rows", "Columns", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation",
    "ModalityLUTSequence", "VOILUTSequence", "ExtendedOffsetTable", "ExtendedOffsetTableLengths",
    "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence",
)  # fmt: skip
# Sequences inside functional groups, with the fields that they contain in place of the file (DICOM
# PS3.3, C.7.6.16.2.9 and C.7.6.16.2.10).
_FRAME_FIELDS = {
    "PixelValueTransformationSequence": ("RescaleSlope", "RescaleIntercept"),
    "FrameVOILUTSequence": ("WindowCenter", "WindowWidth", "VOILUTFunction", "VOILUTSequence"),
}
_GREY = ("MONOCHROME1", "MONOCHROME2")
# Beyond any pixel value: a window maps _FAR to its bright end and -_FAR to its dark end.
_FAR = 1e30
UNPACK = (
    "rewrite the file uncompressed (gdcmconv --raw), or install python-gdcm in the environment of "
    "dpprobe"
)


def is_dicom(data: bytes) -> bool:
    """Returns True for the content, or the first 132 bytes, of a DICOM file."""
    return data[PREAMBLE : PREAMBLE + len(MAGIC)] == MAGIC


def looks_bare(data: bytes) -> bool:
    """Returns True for content that begins like DICOM without its preamble."""
    return data[:2] in _BARE and data[2:4] < b"\x20\x00"


def open_dicom(data: bytes) -> Image.Image:
    """Decodes a DICOM file of one image, grey or of 8-bit colours.

    Raises ImageError, with the remedy but no text from the file, if the file cannot be decoded.
    """
    import numpy as np
    from PIL import Image

    dataset = _read_dicom(data)
    _check_dicom(dataset)
    stored_bits = _widen_native_bits(dataset)
    pixels = _decode_pixels(dataset)
    if pixels.dtype.kind == "f" and not np.isfinite(pixels).all():
        raise ImageError(
            "DICOM: a pixel is not a number, or infinite; replace such pixels, or remove the file"
        )
    if pixels.ndim == 3:
        return Image.fromarray(np.ascontiguousarray(pixels, dtype=np.uint8), "RGB")
    try:
        shades = _compute_shades(dataset, pixels, stored_bits)
    except Exception as error:  # pydicom raises errors of any kind
        raise ImageError(
            f"DICOM: its rescale or window values cannot be used ({type(error).__name__}); "
            "correct or remove them"
        ) from None
    return Image.fromarray(np.round(shades * 255).astype(np.uint8), "L")


def _read_dicom(data: bytes) -> Dataset:
    with naming_extras():
        import pydicom
        from pydicom import config

    # pydicom's messages about faulty values would repeat these values.
    config.settings.reading_validation_mode = config.IGNORE
    try:
        return pydicom.dcmread(io.BytesIO(data), specific_tags=list(READ_FIELDS))
    except Exception as error:  # pydicom's errors are of any kind, and their texts quote the file
        raise ImageError(
            "DICOM: its header cannot be read, so the file may be truncated "
            f"({type(error).__name__})"
        ) from None


def _check_dicom(dataset: Dataset) -> None:
    """Refuses a file with no picture or several, before decoding pixels."""
    if not any(name in dataset for name in _PIXELS):
        raise ImageError(
            "DICOM: it contains no pixels; it may be truncated, or be a report or an index of "
            "other files"
        )
    frames = _read_number(dataset.get("NumberOfFrames"), 1)
    if frames != 1:
        raise ImageError(
            f"DICOM: {frames} frames in one file; save each frame that you need as a separate file"
        )
    kind = str(dataset.get("PhotometricInterpretation"))
    if _read_number(dataset.get("SamplesPerPixel"), 1) == 3:
        if (bits := _read_number(dataset.get("BitsAllocated"), 0)) != 8:
            raise ImageError(f"DICOM: its colours have {bits} bits; convert them to 8 bits")
    elif kind == "PALETTE COLOR":
        raise ImageError(
            "DICOM: its colours come from a palette; convert it to RGB with dcmj2pnm or gdcmimg"
        )
    elif kind not in _GREY:
        raise ImageError(
            "DICOM: its pixels are neither grey (MONOCHROME1, MONOCHROME2) nor colour (RGB, YBR)"
        )


def _read_syntax(dataset: Dataset) -> UID:
    from pydicom.uid import UID

    return UID(str(getattr(dataset.file_meta, "TransferSyntaxUID", "")))


def _widen_native_bits(dataset: Dataset) -> tuple[int, int] | None:
    """Returns the lowest bit and the number of bits of values; None if pydicom masks the bits.

    pydicom ignores the header's highest bit and reads values from bit 0, which alters padding.
    Uncompressed values are decoded with all bits of their type, so that padding is recognized.
    """
    allocated, stored = (_read_number(dataset.get(f"Bits{n}"), 0) for n in ("Allocated", "Stored"))
    low = _read_number(dataset.get("HighBit"), stored - 1) + 1 - stored
    syntax = _read_syntax(dataset)
    native = syntax.is_transfer_syntax and not syntax.is_encapsulated and "PixelData" in dataset
    if not native or allocated % 8 or not 0 < stored < allocated or low + stored > allocated:
        return None
    dataset.BitsStored, dataset.HighBit = allocated, allocated - 1
    return max(low, 0), stored


def _decode_pixels(dataset: Dataset) -> np.ndarray:
    """Decodes the stored values: [rows, columns], or uint8 [rows, columns, 3] of RGB."""
    from pydicom.pixels.decoders.base import get_decoder
    from pydicom.pixels.utils import pixel_array

    syntax = _read_syntax(dataset)
    try:
        decodable = get_decoder(syntax).is_available
    except NotImplementedError:
        decodable = False
    if not decodable:
        name = syntax.name if syntax.is_transfer_syntax else "unknown"
        raise ImageError(f"DICOM: its transfer syntax ({name}) cannot be decoded here; {UNPACK}")
    try:
        _check_coded_frame(dataset, syntax)
        pixels = pixel_array(dataset)
    except ImageError:
        raise
    except Exception as error:  # pydicom raises errors of any kind
        deep = "12Bit" in syntax.keyword and dataset.get("BitsStored", 8) > 8
        if deep and {*get_decoder(syntax).available_plugins} <= {"pillow"}:
            raise ImageError(f"DICOM: JPEG of 12 bits cannot be decoded here; {UNPACK}") from None
        raise ImageError(
            "DICOM: its pixels cannot be decoded, so the file may be truncated or damaged "
            f"({type(error).__name__}, transfer syntax {syntax.name})"
        ) from None
    if pixels.shape[:2] != (dataset.Rows, dataset.Columns):  # pydicom found several frames
        raise ImageError("DICOM: its pixels fill several frames, but its header states one frame")
    return pixels


def _check_coded_frame(dataset: Dataset, syntax: UID) -> None:
    """Raises ImageError if a picture in JPEG or JPEG 2000 shows signs of damage."""
    from pydicom import uid
    from pydicom.encaps import generate_frames

    coded = {uid.JPEGBaseline8Bit: "JPEG", uid.JPEGExtended12Bit: "JPEG"}
    coded |= dict.fromkeys(uid.JPEG2000TransferSyntaxes, "JPEG2000")
    if syntax in coded:
        for frame in generate_frames(dataset.PixelData, number_of_frames=1):
            # Pillow opens no JPEG of 12 bits, which pydicom's other decoders read.
            if coded[syntax] != "JPEG" or jpeg_precision(frame) <= 8:
                open_whole(frame, [coded[syntax], "MPO"])


def _compute_shades(
    dataset: Dataset, stored: np.ndarray, bits: tuple[int, int] | None
) -> np.ndarray:
    """Returns each pixel's brightness, from 0 to 1; `bits` comes from `_widen_native_bits`."""
    import numpy as np
    from pydicom.pixels.processing import apply_modality_lut

    _take_frame_fields(dataset)
    _drop_blanks(dataset)
    if dataset.get("RescaleSlope") == 0:
        raise ValueError("a slope of 0, which makes all values equal")
    ends, allocated = _read_padding(dataset), 8 * stored.dtype.itemsize
    if stored.dtype.kind != "f":
        ends = [_turn_sign(end, allocated, stored.dtype) for end in ends]
    shown = ~_is_between(stored, ends)
    if bits is not None:
        low, count = bits
        dataset.BitsStored, dataset.HighBit = count, low + count - 1
        stored = (stored << (allocated - count - low)) >> (allocated - count)  # keeps the sign bit
        if stored.dtype.kind == "i":
            ends = [_turn_sign(end, count, stored.dtype) for end in ends]
        shown &= ~_is_between(stored, ends)
    values = np.asarray(apply_modality_lut(stored, dataset), dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError("values that are not numbers")
    if dataset.get("VOILUTSequence"):
        shades = _by_table(dataset, values)
    elif "WindowCenter" in dataset and "WindowWidth" in dataset:
        shades = _by_window(dataset, values)
    else:
        shades = _by_range(values, values[shown])
    if not np.isfinite(shades).all():
        raise ValueError("shades that are not numbers")
    if dataset.PhotometricInterpretation == "MONOCHROME1":
        shades = 1 - shades
    return np.where(shown, np.clip(shades, 0, 1), 0)


def _take_frame_fields(dataset: Dataset) -> None:
    """Moves rescale and window fields of an enhanced file from its only frame's groups.

    A field is in the group that all frames share, or in the group of the frame, never in both.
    """
    shared, frames = (
        dataset.get(f"{which}FunctionalGroupsSequence") or [] for which in ("Shared", "PerFrame")
    )
    if len(shared) > 1 or len(frames) > 1:
        raise ValueError("functional groups of several frames")
    for name, fields in _FRAME_FIELDS.items():
        for group in (*frames, *shared):
            for item in (group.get(name) or [])[:1]:
                for field in fields:
                    if field in item:
                        dataset[field] = item[field]


def _read_padding(dataset: Dataset) -> list[Any]:
    """Returns the first and last padding value; empty if the file declares no padding."""
    for kind in ("", "Float", "DoubleFloat"):
        if (first := dataset.get(f"{kind}PixelPaddingValue")) is not None:
            return [first, dataset.get("PixelPaddingRangeLimit", first)]
    return []


def _turn_sign(value: int, bits: int, dtype: np.dtype) -> int:
    """Reads a value's bits as a signed or unsigned number, depending on the type."""
    lowest = -(2 ** (bits - 1)) if dtype.kind == "i" else 0
    if lowest <= value < lowest + 2**bits:
        return value
    return value + 2**bits if value < 0 else value - 2**bits


def _is_between(values: np.ndarray, ends: Sequence[Any]) -> np.ndarray:
    import numpy as np

    if not ends:
        return np.zeros(values.shape, dtype=bool)
    return (values >= min(ends)) & (values <= max(ends))


def _drop_blanks(dataset: Dataset) -> None:
    """Removes blank fields, which de-identified files may have."""
    for name in _OPTIONAL:
        values = dataset.get(name)
        several = values if isinstance(values, Sequence) else [values]
        if name in dataset and all(value in (None, "") for value in several):
            del dataset[name]


def _by_window(dataset: Dataset, values: np.ndarray) -> np.ndarray:
    """Returns shades by the file's first window: LINEAR, LINEAR_EXACT or SIGMOID."""
    import numpy as np
    from pydicom.pixels.processing import apply_windowing

    with np.errstate(over="ignore"):
        windowed = apply_windowing(np.append(values.ravel(), (-_FAR, _FAR)), dataset)
    dark, bright = windowed[-2:]
    if dark == bright:
        raise ValueError("a window of width 0")
    return (windowed[:-2].reshape(values.shape) - dark) / (bright - dark)


def _by_table(dataset: Dataset, values: np.ndarray) -> np.ndarray:
    import numpy as np
    from pydicom.pixels.processing import apply_voi

    table = dataset.VOILUTSequence[0]
    entries, first, bits = table.LUTDescriptor
    # apply_voi reads the number of entries with the bits of table values, maybe too few.
    table.LUTDescriptor = [entries, first, 16]
    within = np.clip(np.round(values), first, first + (entries or 2**16) - 1).astype(np.int64)
    return apply_voi(within, dataset) / (2**bits - 1)


def _by_range(values: np.ndarray, shown: np.ndarray) -> np.ndarray:
    import numpy as np

    if shown.size == 0 or shown.min() == shown.max():
        return np.zeros(values.shape)
    return (values - shown.min()) / (shown.max() - shown.min())


def _read_number(value: Any, otherwise: int) -> int:
    try:
        return otherwise if value in (None, "") else int(value)
    except (TypeError, ValueError, OverflowError):
        raise ImageError("DICOM: its header has no number where one is expected") from None
