"""The interactive t-SNE page: whole, closed to the outside, images only where they were allowed."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from dpprobe.analyses.tsne.measure import EMBEDDING_FORMAT, EMBEDDING_FORMAT_VERSION
from dpprobe.analyses.tsne.tsne_page import ACROSS, THUMBNAIL, write_backbone_page
from dpprobe.artifacts import write_table
from dpprobe.data.sklearn_datasets import Options
from dpprobe.data.table import make_batch, write_dataset
from dpprobe.errors import DataError
from dpprobe.exhibits.thumbnails import SPAN_ROWS, row_spans
from dpprobe.study.study import Study


def embedding(path: Path, ids: list[str], **facts: Any) -> Path:
    count = len(ids)
    table = pa.table(
        {
            "id": pa.array(ids, pa.string()),
            "label": pa.array(np.arange(count) % 2),
            "x": pa.array(np.linspace(-1, 1, count, dtype=np.float32)),
            "y": pa.array(np.zeros(count, np.float32)),
        }
    )
    values: dict[str, Any] = {
        "format": EMBEDDING_FORMAT, "format_version": EMBEDDING_FORMAT_VERSION, "rows": 400,
        "points": count, "note": None, "class_names": ["cat", "</script><b>"], "method": "t-SNE",
        "neighbours": 15, "tsne_agreement": 0.7, **facts,
    }  # fmt: skip
    write_table(path, table.replace_schema_metadata({b"dpprobe": json.dumps(values).encode()}))
    return path


def images(folder: Path, count: int) -> Path:
    """A split table of images of one colour each."""

    def png(level: int, split: str) -> bytes:
        stream = io.BytesIO()
        Image.new("RGB", (40, 20), (level, 0, 9 * (split == "train"))).save(stream, "PNG")
        return stream.getvalue()

    options = Options(source="sklearn", name="digits")
    for split in ("train", "test"):
        ids = [f"{split}-{i}" for i in range(count)]
        batch = make_batch(
            ids=ids, labels=[i % 2 for i in range(count)],
            images=[png(2 * i, split) for i in range(count)], paths=[None] * count,
        )  # fmt: skip
        if split == "train":
            first = batch
    write_dataset(
        folder, [("train", first), ("test", batch)], options=options, class_names=["cat", "dog"],
        rows=2 * count,
    )  # fmt: skip
    return folder / "test.parquet"


def write_page(
    source: Path, output: Path, *, dataset: str = "d", images: Path | None = None
) -> None:
    write_backbone_page(
        embedding=source,
        images=images,
        dataset=dataset,
        backbone="pixels",
        split="test",
        page=output,
    )


def page(path: Path) -> tuple[str, dict[str, Any]]:
    text = path.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert found is not None
    return text, json.loads(found[1])


def test_without_leave_there_are_neither_images_nor_ids(tmp_path: Path) -> None:
    source = embedding(tmp_path / "e.parquet", ["secret-1", "secret-2", "secret-3"])
    write_page(source, tmp_path / "p.html", dataset="a <b>")
    text, data = page(tmp_path / "p.html")
    assert "secret" not in text
    assert "data:image" not in text
    assert data["x"] == [-1, 0, 1]
    assert data["label"] == [0, 1, 0]
    assert data["names"][1] == "</script><b>"
    assert "a &lt;b&gt; test, pixels" in text
    assert text.count("</script>") == 2
    assert "Not private" in text
    assert not Study.model_fields["tsne"].default.thumbnails


def test_each_point_has_its_own_image(tmp_path: Path) -> None:
    table = images(tmp_path / "data", 100)
    rows = [99, 3, 50, *range(10, 30), *range(60, 99)]
    source = embedding(tmp_path / "e.parquet", [f"test-{row}" for row in rows])
    write_page(source, tmp_path / "p.html", images=table)
    text, data = page(tmp_path / "p.html")
    assert data["id"][0] == "test-99"
    assert "holds the images themselves" in text
    found = re.search(r'src="data:image/jpeg;base64,([^"]+)"', text)
    assert found is not None
    sheet = Image.open(io.BytesIO(base64.b64decode(found[1])))
    assert sheet.size[0] == ACROSS * THUMBNAIL
    for position, row in enumerate(rows):
        column, line = position % ACROSS, position // ACROSS
        middle = ((column + 0.5) * THUMBNAIL, (line + 0.5) * THUMBNAIL)
        pixel = sheet.getpixel((int(middle[0]), int(middle[1])))
        assert isinstance(pixel, tuple)
        assert abs(pixel[0] - 2 * row) < 12, (position, row, pixel)


def test_rows_of_another_dataset_are_refused(tmp_path: Path) -> None:
    table = images(tmp_path / "data", 10)
    source = embedding(tmp_path / "e.parquet", ["test-1", "other-1"])
    with pytest.raises(DataError, match="1 of 2 rows that are to be shown"):
        write_page(source, tmp_path / "p.html", images=table)


def test_a_plane_without_points_says_why(tmp_path: Path) -> None:
    source = embedding(tmp_path / "e.parquet", [], method=None, note="no points: 2 rows")
    write_page(source, tmp_path / "p.html")
    text, _ = page(tmp_path / "p.html")
    assert "no points: 2 rows" in text
    assert "<canvas" not in text.partition("<script")[0]


def test_rows_far_apart_are_read_apart() -> None:
    assert list(row_spans([0, 5, 5 + SPAN_ROWS, 10 * SPAN_ROWS])) == [
        (0, 6 + SPAN_ROWS), (10 * SPAN_ROWS, 10 * SPAN_ROWS + 1),
    ]  # fmt: skip
