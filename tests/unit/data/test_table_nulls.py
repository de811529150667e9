"""With `unreadable: drop`, an unreadable image becomes a null example; other rows stay the same."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dpprobe.data.dataset_preparation import prepare_dataset
from dpprobe.data.registry import dataset_options
from dpprobe.data.table import SPLITS, SplitTable, decode_image, read_info
from dpprobe.errors import ConfigError, DataError
from dpprobe.release.ledger.ledger_units import Units
from tests.support.shards import png
from tests.support.sources import write_table

ROWS = 40
DAMAGED = {"cut": png(7)[:40], "empty": b"", "text": b"no image", "missing": None}
# The columns that depend on a row's image.
OF_IMAGE = ["image", "image_sha256", "pixels_sha256"]


def make_options(folder: Path, broken: dict[int, bytes | None], **more: Any) -> Any:
    """Writes a manifest of patients' images; `broken` maps rows to their bytes (None: no file)."""
    rows = range(ROWS)
    for row in rows:
        data = broken.get(row, png(row))
        (folder / f"{row}.png").unlink(missing_ok=True)
        if data is not None:
            (folder / f"{row}.png").write_bytes(data)
    lines = [{"path": f"{r}.png", "kind": "ab"[r % 2], "who": f"p{r // 4}"} for r in rows]
    write_table(folder / "x.csv", lines)
    names = {"path_column": "path", "label_column": "kind", "class_names": ["a", "b"]}
    given = {"source": "csv", "root": str(folder), "train": "x.csv", "unreadable": "drop"}
    return dataset_options(given | names | more)


def prepare(folder: Path, broken: dict[int, bytes | None], **more: Any) -> Path:
    tables = folder / "tables"
    prepare_dataset(make_options(folder, broken, **more), tables)
    return tables


def read(tables: Path) -> dict[str, Any]:
    return {split: pq.read_table(tables / f"{split}.parquet") for split in SPLITS}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"split_by": "id"},
        {"embed": True},
        {"unit_column": "who", "split_by": "id"},
        {"unit_column": "who", "max_images_per_patient": 2, "unit": "patient"},
        {"split_by": "id", "subsample": {"fraction": 0.5}},
        {"split_by": "id", "subsample": {"per_class": 5}},
    ],
)
def test_a_row_s_readability_moves_no_other_row(
    tmp_path: Path, more: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Splits, subsamples, limits, labels and counts are those of the readable dataset."""
    tables = prepare(tmp_path, {}, **more)
    whole, before = read(tables), read_info(tables / "dataset.json")
    train = whole["train"].column("id").to_pylist()
    broken = dict(zip((int(name[:-4]) for name in train[::3]), DAMAGED.values(), strict=False))
    with caplog.at_level(logging.WARNING, logger="dpprobe"):
        tables = prepare(tmp_path, broken, **more)
    after, info = read(tables), read_info(tables / "dataset.json")
    for split in SPLITS:
        assert after[split].drop_columns(OF_IMAGE).equals(whole[split].drop_columns(OF_IMAGE))
        assert info.splits[split].per_class == before.splits[split].per_class
        nulls = [f"{row}.png" for row in broken if f"{row}.png" in after[split]["id"].to_pylist()]
        found = SplitTable(tables / f"{split}.parquet")
        assert sorted(np.array(found.read_ids())[list(found.nulls)]) == sorted(nulls)
        for one, other in zip(whole[split].to_pylist(), after[split].to_pylist(), strict=True):
            if other["id"] in nulls:
                assert other["image"] == {"bytes": None, "path": None}
                assert other["image_sha256"] is other["pixels_sha256"] is None
            else:
                assert one == other
                stored = png(int(one["id"][:-4])) if "embed" in more else None
                assert other["image"]["bytes"] == stored
    assert info.units == before.units
    assert info.train_copies == before.train_copies
    said = [line for line in caplog.messages if "null examples" in line]
    assert said
    assert not any(str(len(broken)) in line.split("; ")[0] for line in said), (
        "the number is private"
    )


@pytest.mark.parametrize("kind", DAMAGED)
def test_the_private_list_names_each_null_example(tmp_path: Path, kind: str) -> None:
    tables = prepare(tmp_path, {3: DAMAGED[kind]})
    listed = (tables / "problems.csv").read_text().splitlines()[1:]
    assert len(listed) == 1
    assert "3.png" in listed[0]
    assert "unreadable, so a null example" in listed[0]
    assert "nulls" not in (tables / "dataset.json").read_text()


@pytest.mark.parametrize("kind", DAMAGED)
def test_by_default_a_run_stops_and_lists(tmp_path: Path, kind: str) -> None:
    fault = "missing" if kind == "missing" else "unreadable"
    with pytest.raises(DataError, match=rf"(?s): 2 {fault} images; .*3\.png.*9\.png"):
        prepare(tmp_path, dict.fromkeys((3, 9), DAMAGED[kind]), unreadable="error")


def test_other_problems_of_a_null_example_stop_a_run(tmp_path: Path) -> None:
    """An unknown label would change the class counts."""
    options = make_options(tmp_path, {3: b""}, class_names=["a", "c"])
    with pytest.raises(DataError, match="kind is 'b'"):
        prepare_dataset(options, tmp_path / "tables")


def test_a_split_of_null_examples_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train: none of its rows can be read"):
        prepare(tmp_path, dict.fromkeys(range(ROWS)))


def test_damage_is_found_by_decoding(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="remove `verify: hash`"):
        make_options(tmp_path, {}, verify="hash")


def test_null_examples_are_not_duplicates_and_have_no_hashes(tmp_path: Path) -> None:
    """Damaged files with equal bytes are not duplicates of each other."""
    tables = prepare(tmp_path, dict.fromkeys(range(8), b""), split_by="id")
    info = read_info(tables / "dataset.json")
    assert info.train_copies is not None
    assert info.train_copies["image"]["rows"] == info.duplicates_across_splits == 0
    hashes = Units(names={}, tables=tables).hash_with(b"k" * 32)
    for split in SPLITS:
        table = SplitTable(tables / f"{split}.parquet")
        readable = table.rows - len(table.nulls)
        assert len(hashes[f"{split}.images"]) == 2 * readable, "bytes and pixels"


def test_a_null_example_is_never_decoded(tmp_path: Path) -> None:
    table = SplitTable(prepare(tmp_path, {0: b"", 1: b""}) / "train.parquet")
    assert table.nulls == (0, 1)
    null = next(table.read_images(0, 1))
    with pytest.raises(DataError, match=r"\(id 0\.png\): a null example has no image"):
        decode_image(null, split="train")
    assert table.read_first().id == table.read_ids()[2]
