"""The interactive t-SNE page: whole, closed to the outside, without images and ids."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dpprobe.analyses.tsne.measure import EMBEDDING_FORMAT, EMBEDDING_FORMAT_VERSION
from dpprobe.analyses.tsne.tsne_page import write_backbone_page
from dpprobe.artifacts import write_table


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


def write_page(source: Path, output: Path, *, dataset: str = "d") -> None:
    write_backbone_page(
        embedding=source,
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


def test_there_are_neither_images_nor_ids(tmp_path: Path) -> None:
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


def test_a_plane_without_points_says_why(tmp_path: Path) -> None:
    source = embedding(tmp_path / "e.parquet", [], method=None, note="no points: 2 rows")
    write_page(source, tmp_path / "p.html")
    text, _ = page(tmp_path / "p.html")
    assert "no points: 2 rows" in text
    assert "<canvas" not in text.partition("<script")[0]
