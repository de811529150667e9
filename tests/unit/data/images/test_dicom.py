"""DICOM files become greyscale images or are refused; errors never contain a person's name."""

from __future__ import annotations

import csv
import io
import logging
import math
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydicom import Dataset, uid
from pydicom.dataset import FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.pixels.processing import apply_modality_lut, apply_windowing

from dpprobe.data import dataset_preparation
from dpprobe.data.images.dicom import READ_FIELDS
from dpprobe.data.images.image_files import is_image_file, open_image
from dpprobe.data.problems import ImageError
from dpprobe.data.registry import dataset_options
from dpprobe.errors import DataError

VALUES = np.array([[0, 100, 200], [300, 1000, 4095]], dtype=np.uint16)
PERSON = "DOE^JOHN"


def header(values: np.ndarray, **changed: Any) -> Dataset:
    """Returns a file with one grey image, which names its patient."""
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = uid.ExplicitVRLittleEndian
    dataset.file_meta.MediaStorageSOPClassUID = uid.SecondaryCaptureImageStorage
    dataset.file_meta.MediaStorageSOPInstanceUID = uid.generate_uid()
    dataset.SOPClassUID = uid.SecondaryCaptureImageStorage
    dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID
    dataset.PatientName, dataset.PatientID, dataset.PatientBirthDate = PERSON, "4711", "19700101"
    dataset.Rows, dataset.Columns = values.shape[-2:] if values.ndim < 3 else values.shape[:2]
    dataset.SamplesPerPixel = 3 if values.ndim == 3 else 1
    dataset.PhotometricInterpretation = "RGB" if values.ndim == 3 else "MONOCHROME2"
    if values.ndim == 3:
        dataset.PlanarConfiguration = 0
    dataset.BitsAllocated = dataset.BitsStored = 8 * values.itemsize
    dataset.HighBit = dataset.BitsStored - 1
    dataset.PixelRepresentation = int(values.dtype.kind == "i")
    dataset.PixelData = values.tobytes()
    for name, value in changed.items():
        setattr(dataset, name, value)
    return dataset


def encoded(dataset: Dataset) -> bytes:
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about headers that are wrong on purpose
        dataset.save_as(stream, enforce_file_format=True)
    return stream.getvalue()


def shades(values: np.ndarray = VALUES, **changed: Any) -> np.ndarray:
    return np.asarray(open_image(encoded(header(values, **changed))))


def linear(values: np.ndarray, low: float, high: float) -> np.ndarray:
    part = np.clip((values.astype(np.float64) - low) / (high - low), 0, 1)
    return np.round(part * 255).astype(np.uint8)


def test_without_a_window_the_images_own_range_is_shown() -> None:
    np.testing.assert_array_equal(shades(), linear(VALUES, 0, 4095))
    np.testing.assert_array_equal(shades(VALUES + 500), linear(VALUES, 0, 4095))
    assert not shades(np.full((4, 4), 700, np.uint16)).any()
    assert not shades(np.full((4, 4), 700, np.uint16), PixelPaddingValue=700).any()
    for high in (None, 3, 17):  # no highest bit, or an impossible one
        np.testing.assert_array_equal(shades(BitsStored=12, HighBit=high), linear(VALUES, 0, 4095))
    inverted = shades(PhotometricInterpretation="MONOCHROME1")
    np.testing.assert_array_equal(inverted, 255 - linear(VALUES, 0, 4095))
    signed = VALUES.astype(np.int16) - 2000
    np.testing.assert_array_equal(shades(signed), linear(VALUES, 0, 4095))
    scaled = shades(signed, RescaleSlope=0.5, RescaleIntercept=-1024)
    np.testing.assert_array_equal(scaled, linear(VALUES, 0, 4095))


def test_the_window_is_of_rescaled_values() -> None:
    # Values 0 to 4095 are rescaled to -1024 to 3071; the window shows -950 to 1050.
    shown = shades(
        RescaleSlope=1,
        RescaleIntercept=-1024,
        WindowCenter=50,
        WindowWidth=2000,
        VOILUTFunction="LINEAR_EXACT",
    )
    np.testing.assert_array_equal(shown, linear(VALUES.astype(np.int32) - 1024, -950, 1050))


@pytest.mark.parametrize("group", ["Shared", "PerFrame"])
def test_an_enhanced_file_keeps_rescale_and_window_in_functional_groups(group: str) -> None:
    def item(**fields: Any) -> list[Dataset]:
        dataset = Dataset()
        for name, value in fields.items():
            setattr(dataset, name, value)
        return [dataset]

    def enhanced(**fields: list[Dataset]) -> np.ndarray:
        groups: dict[str, Any] = {f"{group}FunctionalGroupsSequence": item(**fields)}
        return shades(NumberOfFrames=1, **groups)

    rescale = {"PixelValueTransformationSequence": item(RescaleSlope=2, RescaleIntercept=-1024)}
    center = {"WindowCenter": [50, 7], "WindowWidth": [2000, 9], "VOILUTFunction": "LINEAR_EXACT"}
    window = {"FrameVOILUTSequence": item(**center)}
    wide = VALUES.astype(np.int32)
    np.testing.assert_array_equal(enhanced(**window), linear(wide, -950, 1050))
    np.testing.assert_array_equal(
        enhanced(**window, **rescale), linear(wide * 2 - 1024, -950, 1050)
    )
    blank = {"FrameVOILUTSequence": item(WindowCenter=None, WindowWidth=None)}
    np.testing.assert_array_equal(enhanced(**blank), linear(wide, 0, 4095))
    two: dict[str, Any] = {f"{group}FunctionalGroupsSequence": item(**window) * 2}
    with pytest.raises(ImageError, match="rescale or window values cannot be used"):
        shades(NumberOfFrames=1, **two)


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
@pytest.mark.parametrize("signed", [False, True])
def test_windows_equal_those_of_pydicom(function: str, signed: bool) -> None:
    values = VALUES.astype(np.int16) - 2000 if signed else VALUES
    # pydicom and dpprobe both use the first of two windows
    window = {"WindowCenter": [400 - 2000 * signed, 0], "WindowWidth": [600, 1]}
    dataset = header(values, **window, VOILUTFunction=function, RescaleSlope=1, RescaleIntercept=0)
    windowed = apply_windowing(apply_modality_lut(values, dataset), dataset)
    low, high = (-(2**15), 2**15 - 1) if signed else (0, 2**16 - 1)
    np.testing.assert_array_equal(
        np.asarray(open_image(encoded(dataset))), linear(windowed, low, high)
    )


@pytest.mark.parametrize("blank", ["", ["", ""]])
def test_a_blank_window_is_none(blank: Any) -> None:
    """De-identified files have blank windows."""
    for given in (
        {"WindowCenter": blank, "WindowWidth": blank},
        {"WindowCenter": blank, "WindowWidth": 80},
        {"RescaleSlope": "", "RescaleIntercept": "", "WindowCenter": "", "WindowWidth": ""},
    ):
        np.testing.assert_array_equal(shades(**given), linear(VALUES, 0, 4095))
    plain = shades(WindowCenter=50, WindowWidth=80)
    for given in (
        {"VOILUTFunction": "", "RescaleSlope": "", "RescaleIntercept": ""},
        {"WindowCenter": ["50", ""], "WindowWidth": ["80", ""]},
    ):
        shown = shades(**{"WindowCenter": 50, "WindowWidth": 80} | given)
        np.testing.assert_array_equal(shown, plain)


@pytest.mark.parametrize(
    ("bits", "first", "count"), [(8, 100, 1000), (12, 100, 1000), (16, 0, 2**16)]
)
def test_a_table_of_values_of_interest_is_used(bits: int, first: int, count: int) -> None:
    table, values = Dataset(), VALUES * (16 if bits == 16 else 1)
    entries = np.round(np.linspace(0, 1, count) ** 2 * (2**bits - 1)).astype(np.uint16)
    table.LUTDescriptor = [count % 2**16, first, bits]
    table.LUTData = entries.tobytes()
    shown = shades(values, VOILUTSequence=[table], WindowCenter=1, WindowWidth=2)
    places = np.clip(values.astype(np.int64) - first, 0, count - 1)
    np.testing.assert_array_equal(shown, linear(entries[places], 0, 2**bits - 1))


MIDDLE = np.arange(1, 13, dtype=np.int16).reshape(3, 4) * 100
PADDED = np.concatenate([np.full((1, 4), -2000, np.int16), MIDDLE])
LOW = (PADDED & 0xFFF).astype(np.int16)  # the sign is in bit 11
SHORT = {"BitsStored": 12, "HighBit": 11}


@pytest.mark.parametrize("form", ["MONOCHROME1", "MONOCHROME2"])
@pytest.mark.parametrize(
    ("values", "sign", "padding", "changed"),
    [
        *(
            (values, sign, value, {})
            for values in (PADDED, PADDED.view(np.uint16))
            for sign, value in (("SS", -2000), ("US", 63536))
        ),
        *(
            (PADDED.view(np.uint16), sign, value, SHORT)
            for sign, value in (("SS", -2000), ("US", 63536))
        ),
        (PADDED, "US", 63536, SHORT),
        (LOW, "US", 2096, SHORT),
        (LOW, "US", 63536, SHORT),
        (LOW, "SS", -2000, SHORT),
        (PADDED, "US", 63536, {"RescaleSlope": 2, "RescaleIntercept": -1024}),
        (np.where(PADDED < 0, -1, PADDED).astype(np.int32), "US", 2**32 - 1, {}),
        (np.where(PADDED < 0, 255, PADDED // 10).astype(np.uint8), "SS", -1, {}),
        *(
            (
                np.concatenate([[[61000, 60000, 60500, 60001]], MIDDLE]).astype(np.uint16),
                "US",
                first,
                {"PixelPaddingRangeLimit": last},
            )
            for first, last in ((60000, 61000), (61000, 60000))
        ),
        *(
            (np.where(PADDED < 0, -(2**15), PADDED), kind, value, {})
            for kind, value in (("SS", -(2**15)), ("US", 2**15))
        ),
    ],
)
def test_padding_is_black_and_not_of_the_range(
    values: np.ndarray, sign: str, padding: int, changed: dict[str, Any], form: str
) -> None:
    """Padding and pixels may be signed or unsigned."""
    dataset = header(values, PhotometricInterpretation=form, **changed)
    kind = "SL" if sign == "SS" and values.itemsize == 4 else "UL" if padding >= 2**16 else sign
    dataset.add_new(0x00280120, kind, padding)
    shown = np.asarray(open_image(encoded(dataset)))
    assert not shown[0].any()
    wanted = linear(MIDDLE, 100, 1200)
    np.testing.assert_allclose(
        shown[1:], 255 - wanted if form == "MONOCHROME1" else wanted, atol=1, rtol=0
    )


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("low", [0, 2, 4])
@pytest.mark.parametrize("bits", [10, 12])
def test_values_lie_where_the_header_says(signed: bool, low: int, bits: int) -> None:
    """Other bits, for example overlay bits, are ignored."""
    values = np.round(np.linspace(0, 2**bits - 1, 48)).astype(np.int32).reshape(6, 8)
    stored = ((values - signed * 2 ** (bits - 1)) & (2**bits - 1)) << low
    stored |= 1 << 15 if low + bits < 16 else 0
    stored = stored.astype(np.uint16).view(np.int16 if signed else np.uint16)
    shown = shades(stored, BitsStored=bits, HighBit=low + bits - 1)
    np.testing.assert_array_equal(shown, linear(values, 0, 2**bits - 1))


@pytest.mark.parametrize("kind", ["JPEG", "JPEG2000"])
def test_damaged_or_truncated_jpeg_pixels_in_dicom_files_are_refused(kind: str) -> None:
    stream = io.BytesIO()
    Image.effect_noise((200, 160), 50).save(stream, kind)
    data = stream.getvalue()
    middle = len(data) // 2
    syntax = uid.JPEGBaseline8Bit if kind == "JPEG" else uid.JPEG2000Lossless
    for frame in (data, data[:middle] + bytes(512) + data[middle + 512 :], data[:middle]):
        dataset = header(np.zeros((160, 200), np.uint8), PixelData=encapsulate([frame]))
        dataset["PixelData"].is_undefined_length = True
        dataset.file_meta.TransferSyntaxUID = syntax
        if frame is data:
            assert open_image(encoded(dataset)).size == (200, 160)
            continue
        with pytest.raises(ImageError, match="cannot be decoded"):
            open_image(encoded(dataset))


def test_colours_of_8_bits_and_run_lengths_are_read() -> None:
    values = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    picture = open_image(encoded(header(values)))
    assert picture.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(picture), values)
    dataset = header(VALUES)
    dataset.compress(uid.RLELossless)
    np.testing.assert_array_equal(np.asarray(open_image(encoded(dataset))), linear(VALUES, 0, 4095))


def bare() -> bytes:
    return encoded(header(VALUES))[132:]


def compressed(*, known: bool = True) -> bytes:
    dataset = header(VALUES)
    dataset.compress(uid.RLELossless)
    dataset.file_meta.TransferSyntaxUID = uid.JPEGLosslessSV1
    return encoded(dataset).replace(b"1.2.4.70", b"1.2.4.70" if known else b"1.2.9.99")


def without_pixels() -> bytes:
    dataset = header(VALUES)
    del dataset.PixelData
    return encoded(dataset)


WINDOW = {"WindowCenter": 50, "WindowWidth": 100}
UGLY: dict[str, tuple[dict[str, Any] | Callable[[], bytes], str]] = {
    "cut": (lambda: encoded(header(VALUES))[:-5], "truncated or damaged"),
    "noise": (lambda: bytes(128) + b"DICM" + bytes(range(256)), "DICOM: "),
    "no pixels": (without_pixels, "it contains no pixels"),
    "frames": ({"NumberOfFrames": 2}, "2 frames in one file; save each"),
    "frames that only the pixels have": ({"PixelData": 3 * VALUES.tobytes()}, "several frames"),
    "transfer syntax": (
        compressed,
        r"transfer syntax \(JPEG Lossless.*cannot be decoded here; rewrite the file",
    ),
    "another syntax": (lambda: compressed(known=False), r"transfer syntax \(unknown\)"),
    "palette": ({"PhotometricInterpretation": "PALETTE COLOR"}, "from a palette"),
    "unknown colours": ({"PhotometricInterpretation": "DOE^JOHN"}, "neither grey"),
    "deep colours": ({"values": np.zeros((4, 4, 3), np.uint16)}, "colours have 16 bits; convert"),
    "window of no width": ({"WindowCenter": 5, "WindowWidth": 0}, "window values"),
    "slope of 0": ({"RescaleSlope": 0, **WINDOW}, "window values"),
    "slope of 0 without a window": ({"RescaleSlope": 0, "RescaleIntercept": 7}, "window values"),
    # so far away that float64 cannot tell dark from bright
    "far intercept": (
        {"RescaleSlope": 1, "RescaleIntercept": 1e25, **WINDOW},
        "rescale or window values",
    ),
    "slope beyond all numbers": (
        {"RescaleSlope": 1e308, "RescaleIntercept": 0, **WINDOW},
        "rescale or window values",
    ),
    "without preamble": (bare, "DICOM without its preamble: rewrite the file"),
}


@pytest.mark.parametrize("kind", UGLY)
def test_what_cannot_be_read_is_one_line_with_the_remedy(
    kind: str, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    make, message = UGLY[kind]
    data = make() if callable(make) else encoded(header(**{"values": VALUES} | make))
    recwarn.clear()
    with caplog.at_level(logging.DEBUG), pytest.raises(ImageError, match=message) as caught:
        open_image(data)
    said = [str(caught.value), caplog.text, *(str(each.message) for each in recwarn)]
    assert "\n" not in said[0]
    assert not any(word in text for text in said for word in ("DOE", "JOHN", "4711", "1970"))


STRANGE: list[tuple[str, Any]] = [
    ("LO", PERSON),
    ("LO", ""),
    ("DS", ["-7.5", "2"]),
    ("US", 0),
    ("SS", -1),
    ("FD", math.nan),
    ("FD", math.inf),
    ("FD", 1e300),
    ("OB", PERSON.encode()),
    ("SQ", []),
    ("SQ", [Dataset()]),
]


@pytest.mark.parametrize("field", READ_FIELDS)
@pytest.mark.parametrize(
    "others",
    [{}, WINDOW, {"RescaleSlope": 1, "RescaleIntercept": 0}, {"values": np.zeros((4, 4, 3), "u1")}],
)
def test_no_value_of_a_strange_field_is_reported(field: str, others: dict[str, Any]) -> None:
    """No error contains the field's value, whichever library fails on it."""
    said = []
    for kind, value in STRANGE:
        dataset = header(**{"values": VALUES} | others)
        dataset.add_new("PixelData", "OW", dataset.PixelData)  # whatever BitsAllocated says
        dataset.pop(field, None)
        dataset.add_new(field, kind, value)
        try:
            open_image(encoded(dataset))
        except ImageError as error:
            said.append(str(error))
    assert all(words.startswith("DICOM: ") and "DOE" not in words for words in said)


def test_a_file_is_dicom_by_its_first_bytes(tmp_path: Path) -> None:
    (tmp_path / "1.2.840.113619").write_bytes(encoded(header(VALUES)))
    (tmp_path / "README").write_text("no image")
    (tmp_path / "empty").write_bytes(b"")
    kinds = {path.name: is_image_file(path) for path in (*tmp_path.iterdir(), Path("a\0b"))}
    assert kinds == {"1.2.840.113619": True, "README": False, "empty": False, "a\0b": False}


def test_a_folder_of_dicom_becomes_tables_without_anybodys_name(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    for number in range(12):
        name = f"{'ab'[number % 2]}/1.2.{number}"
        path = tmp_path / "scans" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        values = generator.integers(0, 4096, (8, 8), dtype=np.uint16)
        path.write_bytes(encoded(header(values)))
    options = dataset_options({"source": "imagefolder", "path": str(tmp_path / "scans")})
    options.check_files()
    dataset_preparation.prepare_dataset(options, tmp_path / "out")
    (tmp_path / "scans/a/1.2.0").write_bytes(encoded(header(VALUES))[:-5])
    with pytest.raises(DataError, match=r"1\.2\.0: DICOM: its pixels cannot be decoded"):
        dataset_preparation.prepare_dataset(options, tmp_path / "bad")
    with (tmp_path / "bad/problems.csv").open(newline="") as stream:
        (row,) = csv.DictReader(stream)
    assert row["problem"] == "unreadable image"
    for path in (*tmp_path.glob("out/*"), *tmp_path.glob("bad/*")):
        written = re.sub(rb"[0-9a-f]{64}", b"", path.read_bytes())  # a hash may contain 4711
        assert b"DOE" not in written
        assert b"4711" not in written or path.suffix == ".parquet"
