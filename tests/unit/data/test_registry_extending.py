"""A source takes one file and one registry line, exactly as docs/extending.md prints them."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from dpprobe.data.dataset_preparation import prepare_dataset
from dpprobe.data.registry import SOURCES, dataset_options
from dpprobe.data.table import SplitTable, decode_image, read_info


@pytest.fixture
def source(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Registers the source that the page prints; returns its name."""
    page = (repository / "docs/extending.md").read_text()
    section = page.partition("\n## Add a source\n")[2].partition("\n## ")[0]
    code, line = re.findall(r"^```python\n(.*?)^```", section, flags=re.DOTALL | re.MULTILINE)
    ((name, module),) = ast.literal_eval(f"{{{line}}}").items()
    assert f"`src/{module.replace('.', '/')}.py`" in section
    path = tmp_path / "code" / f"{module.rpartition('.')[2]}.py"
    path.parent.mkdir()
    path.write_text(code)
    spec = importlib.util.spec_from_file_location(module, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, module, made)
    spec.loader.exec_module(made)
    monkeypatch.setitem(SOURCES, name, module)
    return str(name)


@pytest.mark.parametrize("split_by", ["class", "id"])
def test_the_page_s_source_becomes_split_tables(source: str, split_by: str, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (300, 6, 5, 3), dtype=np.uint8)
    labels = np.arange(300) % 3
    np.savez(tmp_path / "cells.npz", images=images, labels=labels)
    options = dataset_options(
        {
            "source": source,
            "file": str(tmp_path / "cells.npz"),
            "class_names": ["a", "b", "c"],
            "split_by": split_by,
        }
    )
    options.check_files()
    prepare_dataset(options, tmp_path / "data")
    tables = [SplitTable(tmp_path / f"data/{name}.parquet") for name in ("train", "test")]
    rows = options.count_rows()
    assert rows is not None
    assert rows == tuple(table.rows for table in tables)
    assert sum(rows) == 300
    assert (rows == (240, 60)) == (split_by == "class")
    assert read_info(tmp_path / "data/dataset.json").class_names == ("a", "b", "c")
    seen = set()
    for table in tables:
        for row, (name, image) in enumerate(
            zip(table.read_ids(), table.read_images(0, table.rows), strict=True)
        ):
            number = int(name.removeprefix("row-"))
            seen.add(number)
            assert table.read_labels()[row] == labels[number]
            assert (np.asarray(decode_image(image, split="train")) == images[number]).all()
    assert seen == set(range(300))
