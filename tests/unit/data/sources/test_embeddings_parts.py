"""Vectors in numbered parts, with tables in parts, are read in order, in blocks and row by row."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpprobe.data.sources.embedding_files import open_embeddings
from dpprobe.data.sources.embedding_formats.embedding_file import BLOCK_ROWS
from dpprobe.errors import ConfigError
from tests.unit.data.sources.test_embeddings import options, prepare, read_rows

NAMES = ["a", "b", "c"]
COUNTS = [3, 5, 4, 2, 6, 3, 4, 5, 2, 3, 7, 4]  # rows of each part; more than ten parts


def put_parts(folder: Path, dtype: str = "float16", **more: Any) -> npt.NDArray[Any]:
    """Writes twelve parts as clip-retrieval does; returns the vectors of all rows."""
    random, first = np.random.default_rng(0), 0
    values = random.normal(size=(sum(COUNTS), 3)).astype(dtype)
    for part, count in enumerate(COUNTS):
        rows = range(first, first + count)
        np.save(folder / f"img_emb_{part}.npy", values[rows])
        columns = {"kind": [NAMES[row % 3] for row in rows], "key": [f"k{row}" for row in rows]}
        pq.write_table(pa.table(columns | more), folder / f"metadata_{part}.parquet")
        first += count
    return values


PARTS: dict[str, Any] = {
    "train": "img_emb_*.npy",
    "table": "metadata_*.parquet",
    "class_names": NAMES,
    "id_column": "key",
}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_each_row_has_its_own_vector(tmp_path: Path, dtype: str) -> None:
    values = put_parts(tmp_path, dtype)
    rows = read_rows(prepare(tmp_path, PARTS), "vectors")
    assert len(rows) == len(values)
    for row, vector in enumerate(values):
        np.testing.assert_array_equal(rows[f"k{row}"], vector.astype(np.float32))


def test_parts_of_training_and_test_have_their_own_tables(tmp_path: Path) -> None:
    values = put_parts(tmp_path)
    np.save(tmp_path / "test.npy", values[:4] + 100)
    table = {"kind": [*NAMES, "a"], "key": ["t0", "t1", "t2", "t3"]}
    pq.write_table(pa.table(table), tmp_path / "test.parquet")
    more = {"test": "test.npy", "test_table": "test.parquet"}
    rows = read_rows(prepare(tmp_path, PARTS | more), "vectors")
    assert len(rows) == len(values) + 4
    np.testing.assert_array_equal(rows["t3"], (values[3] + 100).astype(np.float32))


def test_parquet_parts_take_tables_by_number_too(tmp_path: Path) -> None:
    values = put_parts(tmp_path)
    for part in range(len(COUNTS)):
        lists = np.load(tmp_path / f"img_emb_{part}.npy").tolist()
        pq.write_table(pa.table({"embedding": lists}), tmp_path / f"x_{part}.parquet")
    given = PARTS | {"train": "x_*.parquet"}
    rows = read_rows(prepare(tmp_path, given), "vectors")
    np.testing.assert_array_equal(rows["k47"], values[-1].astype(np.float32))
    swapped = [tmp_path / f"x_{part}.parquet" for part in (0, 1)]
    first = swapped[0].read_bytes()
    swapped[0].write_bytes(swapped[1].read_bytes())
    swapped[1].write_bytes(first)  # the total is unchanged
    with pytest.raises(ConfigError, match=r"metadata_0\.parquet: 3 rows, but 5 vectors in \S*x_0"):
        prepare(tmp_path, given)


def damage(name: str, values: Any) -> Any:
    return lambda folder: np.save(folder / name, values)


@pytest.mark.parametrize(
    ("change", "given", "said"),
    [
        (lambda folder: (folder / "img_emb_4.npy").unlink(), {}, r"no img_emb_4\.npy between"),
        (lambda folder: (folder / "metadata_4.parquet").unlink(), {}, r"no metadata_4\.parquet be"),
        (
            lambda folder: (folder / "img_emb_11.npy").unlink(),
            {},
            r"img_emb_\*\.npy: no part 11, but \S*metadata_11\.parquet exists",
        ),
        (damage("img_emb_03.npy", np.zeros((2, 3))), {}, r"img_emb_03\.npy and img_emb_3\.npy are"),
        (
            damage("img_emb_3.npy", np.zeros((3, 3))),
            {},
            r"metadata_3\.parquet: 2 rows, but 3 vectors in \S*img_emb_3\.npy",
        ),
        (
            damage("img_emb_10.npy", np.zeros((7, 4))),
            {},
            r"img_emb_10\.npy: vectors of 4 numbers, but 3 in \S*img_emb_0\.npy; use vectors of",
        ),
        (damage("img_emb_10.npy", np.zeros(7)), {}, r"img_emb_10\.npy: no vectors; save parts as"),
        (damage("img_emb_10.npy", np.zeros((7, 3), bool)), {}, r"img_emb_10\.npy: .* of type bool"),
        (damage("img_emb_10.npy", np.zeros((0, 3))), {}, r"img_emb_10\.npy: .* are empty"),
        (
            lambda folder: (folder / "img_emb_10.npy").write_bytes(b"x"),
            {},
            r"img_emb_10\.npy: cannot be read",
        ),
        (
            lambda _: None,
            {"table": "metadata_0.parquet"},
            r"^metadata_0\.parquet: 3 rows, but 48 vectors 'vectors' in \S*img_emb_\*\.npy",
        ),
        (lambda _: None, {"table": "none_*.parquet"}, r"table: no file \S*none_\*\.parquet"),
        (lambda _: None, {"table": "img_emb_0.npy"}, r"img_emb_0\.npy: not the name of a CSV file"),
        (lambda _: None, {"train": "none_*.npy"}, r"train: no file \S*none_\*\.npy"),
        (lambda _: None, {"train": "."}, r"is a folder.*name a pattern, such as img_emb/img_emb_"),
    ],
)
def test_faults_of_parts_are_named(tmp_path: Path, change: Any, given: Any, said: str) -> None:
    put_parts(tmp_path)
    change(tmp_path)
    removed = {"id_column": None} if given.get("train") == "." else {}
    with pytest.raises(ConfigError, match=said):
        prepare(tmp_path, PARTS | given | removed)


def test_check_says_how_many_rows_and_parts(tmp_path: Path) -> None:
    put_parts(tmp_path)
    (line,) = options(tmp_path, PARTS).describe_vectors()
    assert line == (
        "img_emb_*.npy: array [48, 3] of float16 in 12 parts, each with as many rows as its part "
        "of metadata_*.parquet"
    )
    np.save(tmp_path / "img_emb_2.npy", np.zeros((4, 3), np.float32))
    (line,) = options(tmp_path, PARTS).describe_vectors()
    assert "array [48, 3] of float16 and float32 in 12 parts" in line


def test_parts_are_read_in_blocks(tmp_path: Path) -> None:
    """Reading 32 MiB of vectors takes less than a tenth of that memory."""
    rows, width, parts = 8 * BLOCK_ROWS, 512, 4
    for part in range(parts):
        path = tmp_path / f"x_{part}.npy"
        np.lib.format.open_memmap(path, "w+", np.float16, (rows, width)).flush()
    tracemalloc.start()
    file = open_embeddings(tmp_path / "x_*.npy", option="train")
    assert file.list_vectors() == {"": (parts * rows, width)}
    assert sum(len(block) for (block,) in file.read_blocks([""])) == parts * rows
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < parts * rows * width * 2 / 10
