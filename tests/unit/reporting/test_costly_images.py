"""The record of costly images, and its section of the report."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dpprobe.artifacts import read_json
from dpprobe.data.sklearn_datasets import Options
from dpprobe.data.table import make_batch, write_dataset
from dpprobe.errors import DataError
from dpprobe.reporting.costly_images import NO_REFERENCE, SIDE, write_costly_images
from tests.support.cell_files import TEST_ROWS, write_study
from tests.support.report_page import Made


def png(level: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (40, 20), (level, 0, 0)).save(stream, "PNG")
    return stream.getvalue()


def write_images(folder: Path, rows: int = TEST_ROWS) -> Path:
    """The test rows of made-up cells, as a split table."""
    batches = [
        make_batch(
            ids=[f"{split}-{i}" for i in range(rows)],
            labels=[i % 4 for i in range(rows)],
            images=[png(100 * (split == "train") + i) for i in range(rows)],
            paths=[None] * rows,
        )
        for split in ("train", "test")
    ]
    write_dataset(
        folder,
        [("train", batches[0]), ("test", batches[1])],
        options=Options(source="sklearn", name="digits", duplicates="warn"),
        class_names=["zero", "one", "<two>", "three"],
        rows=2 * rows,
    )
    return folder / "test.parquet"


def record(root: Path, **options: Any) -> Path:
    cells = write_study(root, class_names=("zero", "one", "<two>", "three"), **options)
    output = root / "digits.json"
    write_costly_images(metrics=cells, images=write_images(root / "data"), record=output, shown=5)
    return output


def test_the_record_has_the_images_of_the_rows_it_names(tmp_path: Path) -> None:
    values = read_json(record(tmp_path))
    assert [part["epsilon"] for part in values["parts"]] == ["0.5", "1", "2"]
    shown = {image["id"] for part in values["parts"] for image in part["images"]}
    assert set(values["thumbnails"]) == shown
    assert all(len(part["images"]) == 5 for part in values["parts"])
    for row_id, address in values["thumbnails"].items():
        kind, _, text = address.partition(",")
        assert kind == "data:image/jpeg;base64"
        image = Image.open(io.BytesIO(base64.b64decode(text)))
        assert image.size == (SIDE, SIDE // 2)
        level = int(row_id.removeprefix("test-"))
        assert image.getpixel((SIDE // 2, SIDE // 4))[0] == pytest.approx(level, abs=3)  # type: ignore[index]


def test_an_epsilon_without_a_reference_says_so(tmp_path: Path) -> None:
    values = read_json(record(tmp_path, methods=("sgd",), epsilons=("1",)))
    assert values["parts"] == []
    assert values["left_out"] == [{"epsilon": "1", "reason": NO_REFERENCE}]
    assert values["thumbnails"] == {}


def test_images_of_other_rows_are_refused(tmp_path: Path) -> None:
    cells = write_study(tmp_path)
    images = write_images(tmp_path / "data", rows=50)
    with pytest.raises(DataError, match="rows that are to be shown are not in it"):
        write_costly_images(metrics=cells, images=images, record=tmp_path / "digits.json", shown=5)


def test_a_report_shows_images_only_where_it_is_given_them(made: Made) -> None:
    page = made.page()
    assert "costly-images" not in page.text
    assert "test-1" not in page.text
    path = record(made.root / "costly")
    page = made.page(costly_images=[path])
    assert "costly-images" in {part.get("id") for part in page.all("section")}
    images = [image for image in page.all("img") if (image["src"] or "").startswith("data:image/j")]
    assert len(images) == 15
    assert "5 of 200 test images" in page.words
    assert "Private images." in page.words
    assert "<two>" not in page.text
