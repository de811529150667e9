"""Small image sources: tables and folders of images, and split tables made from them."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dpprobe.data.dataset_preparation import prepare_dataset
from dpprobe.data.registry import dataset_options
from dpprobe.data.table import SplitTable, read_info
from tests.support.shards import CLASSES, png


def write_table(path: Path, rows: Sequence[Mapping[Any, Any]], delimiter: str = ",") -> None:
    """Writes rows, with a header of their keys; compresses the file if its name ends in .gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    with opened(path, "wt", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def write_images(root: Path, names: Iterable[str]) -> None:
    """Writes small pictures, all with different pixels."""
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(png(number))


def read_folder(folder: Path) -> dict[str, bytes]:
    """Reads every file under a folder; returns contents by relative path."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def write_manifest(root: Path, rows: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
    """Writes a.csv and the image at the path of each row; returns the options that read both."""
    write_images(root, [row["path"] for row in rows])
    write_table(root / "a.csv", rows)
    labels = {"label_column": "kind", "class_names": CLASSES}
    return {"source": "csv", "root": str(root), "train": "a.csv"} | labels | options


def write_parquet(
    path: Any,
    labels: Sequence[Any],
    names: Any = CLASSES,
    *,
    first: int = 0,
    codes: Mapping[str, Sequence[str]] | None = None,
    **columns: Any,
) -> str:
    """Writes rows with pictures numbered from `first`, and class names in the Hub's format.

    `codes` has the names of further columns' numbers.
    """
    numbers = range(first, first + len(labels))
    images = [{"bytes": png(number), "path": f"{number}.png"} for number in numbers]
    feature: dict[str, Any] = {"names": names, "_type": "ClassLabel"} if names else {}
    if names and isinstance(labels[0], list):
        feature = {"feature": feature, "_type": "Sequence"}
    features = {"label": feature}
    for column, listed in (codes or {}).items():
        features[column] = {"names": listed, "_type": "ClassLabel"}
    told = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.table({"image": images, "label": labels} | columns).replace_schema_metadata(told)
    pq.write_table(table, path, row_group_size=5)
    return str(path)


def prepare(directory: Path, **values: Any) -> tuple[SplitTable, SplitTable]:
    """Prepares a dataset; checks its counts against the counts announced by its options."""
    options = dataset_options(values)
    options.check_files()
    prepare_dataset(options, directory)
    info = read_info(directory / "dataset.json")
    assert options.count_rows() in (None, (info.train_rows, info.test_rows))
    assert options.count_classes() in (None, info.num_classes)
    assert options.multi_label() == info.multi_label
    return SplitTable(directory / "train.parquet"), SplitTable(directory / "test.parquet")
