"""Tensors in parquet from Arrow, Ray Data and Daft are read without these libraries."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpprobe.data.sources.embedding_files import open_embeddings
from dpprobe.data.sources.tensor_columns import read_shape
from dpprobe.errors import ConfigError, DataError

ROWS, WIDTH = 1500, 6  # two blocks
VALUES = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
RAY, RAY_2, DAFT = "ray.data.arrow_tensor", "ray.data.arrow_tensor_v2", "daft.super_extension"


class Tensors(pa.ExtensionType):  # type: ignore[misc]
    """A library's extension type that pyarrow does not know."""

    def __init__(self, storage: pa.DataType, name: str, stated: bytes) -> None:
        self._stated = stated
        super().__init__(storage, name)

    def __arrow_ext_serialize__(self) -> bytes:
        return self._stated

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, stated: bytes) -> Tensors:
        return cls(storage, RAY, stated)


def of_type(name: str, storage: pa.DataType, stated: bytes, values: Any = VALUES) -> pa.Array:
    lists = pa.array(list(values), storage) if isinstance(values, np.ndarray) else values
    return pa.ExtensionArray.from_storage(Tensors(storage, name, stated), lists)


def daft(kind: str, *parts: Any) -> bytes:
    """Returns the metadata that Daft 0.7 writes for a type."""
    datatype = {kind: list(parts) if len(parts) > 1 else parts[0]}
    stated = {"datatype": datatype, "daft_version": "0.7.26", "daft_build_type": "release"}
    return json.dumps(stated).encode()


FLOATS, LARGE = pa.list_(pa.float32()), pa.large_list(pa.float32())
FIXED = pa.list_(pa.float32(), WIDTH)
HALF = VALUES.astype(np.float16)


def any_shape(kind: pa.DataType = FLOATS, *shapes: Any) -> pa.Array:
    """Returns tensors of any shape in the layout of Ray Data and Daft."""
    parts = [pa.array(list(VALUES), kind), pa.array(list(shapes) or [[WIDTH]] * ROWS)]
    return pa.StructArray.from_arrays(parts, ["data", "shape"])


def canonical(*shape: int, dtype: str = "float32") -> pa.Array:
    values = VALUES.astype(dtype).reshape(ROWS, *shape)
    return pa.FixedShapeTensorArray.from_numpy_ndarray(values)


# Columns, and the length of vectors that can be known before reading them.
READ: dict[str, tuple[pa.Array, int | None]] = {
    "arrow": (canonical(WIDTH), WIDTH),
    "arrow, one row": (canonical(1, WIDTH), WIDTH),
    "arrow, one column": (canonical(WIDTH, 1), WIDTH),
    "arrow, doubles": (canonical(WIDTH, dtype="float64"), WIDTH),
    "lists": (pa.array(list(VALUES)), None),
    "large lists": (pa.array(list(VALUES), LARGE), None),
    "fixed lists": (pa.array(list(VALUES), FIXED), WIDTH),
    "half precision": (pa.array(list(HALF), pa.list_(pa.float16(), WIDTH)), WIDTH),
    "ray": (of_type(RAY, FLOATS, b"[6]"), WIDTH),
    "ray, two": (of_type(RAY_2, LARGE, b"[6]"), WIDTH),
    "ray, one row": (of_type(RAY_2, LARGE, b"[1, 6]"), WIDTH),
    "ray, pickled": (of_type(RAY_2, LARGE, pickle.dumps((6,), 5)), WIDTH),
    "ray, pickled row": (of_type(RAY_2, LARGE, pickle.dumps((1, 6), 5)), WIDTH),
    "ray, any shape": (
        of_type("ray.data.arrow_variable_shaped_tensor", any_shape().type, b"1", any_shape()),
        None,
    ),
    "daft embedding": (of_type(DAFT, FIXED, daft("Embedding", "Float32", 6)), WIDTH),
    "daft tensor": (of_type(DAFT, FIXED, daft("FixedShapeTensor", "Float32", [6])), WIDTH),
    "daft, any shape": (
        of_type(DAFT, any_shape(LARGE).type, daft("Tensor", "Float32"), any_shape(LARGE)),
        None,
    ),
}


def write(path: Path, column: pa.Array, **more: pa.Array) -> Path:
    pq.write_table(pa.table({"embedding": column, **more}), path)
    return path


def check_read(path: Path, length: int | None, values: Any = VALUES) -> None:
    file = open_embeddings(path, option="train")
    assert file.find_vectors(None) == "embedding"
    assert file.list_vectors() == {"embedding": (ROWS, length)}
    blocks = [block for (block,) in file.read_blocks(["embedding"])]
    assert len(blocks) == 2
    np.testing.assert_array_equal(np.concatenate(blocks), values)


@pytest.mark.parametrize("name", READ)
def test_a_column_of_tensors_is_read_as_vectors(tmp_path: Path, name: str) -> None:
    column, length = READ[name]
    path = write(tmp_path / "x.parquet", column, kind=pa.array(["a"] * ROWS))
    check_read(path, length, HALF if name == "half precision" else VALUES)
    file = open_embeddings(path, option="train")
    assert file.columns == ("kind",)
    kind = {"half precision": "float16", "arrow, doubles": "float64"}.get(name, "float32")
    assert file.read_headers()["embedding"].kind == kind


def test_parts_of_several_types_are_one_dataset(tmp_path: Path) -> None:
    for number, name in enumerate(("lists", "arrow", "ray, two", "daft embedding")):
        write(tmp_path / f"x_{number}.parquet", READ[name][0])
    file = open_embeddings(tmp_path / "x_*.parquet", option="train")
    assert file.find_vectors(None) == "embedding"
    assert sum(len(block) for (block,) in file.read_blocks(["embedding"])) == 4 * ROWS


@pytest.mark.parametrize(
    ("column", "shape"),
    [
        (canonical(2, 3), (2, 3)),
        (of_type(RAY, FLOATS, b"[2, 3]"), (2, 3)),
        (of_type(RAY_2, LARGE, pickle.dumps((2, 3), 5)), (2, 3)),
        (of_type(DAFT, FIXED, daft("FixedShapeTensor", "Float32", [3, 2])), (3, 2)),
        (of_type(DAFT, FIXED, daft("FixedShapeImage", "RGB", 1, 2)), None),
    ],
)
def test_multi_dimensional_tensors_are_not_accepted_as_vectors(
    tmp_path: Path, column: pa.Array, shape: tuple[int, ...] | None
) -> None:
    path = write(tmp_path / "x.parquet", column)
    assert read_shape(pq.read_schema(path).field("embedding")) == shape
    there = "nothing" if shape is None else f"embedding of shape {(ROWS, *shape)}"
    with pytest.raises(ConfigError, match=re.escape(f"no vectors, only {there}; ")):
        open_embeddings(path, option="train").find_vectors(None)
    write(tmp_path / "x_0.parquet", READ["arrow"][0])
    write(tmp_path / "x_1.parquet", column)
    with pytest.raises(ConfigError, match=r"x_1\.parquet: column 'embedding' has tensors of shape"):
        open_embeddings(tmp_path / "x_*.parquet", option="train").find_vectors(None)


class RunsCode:
    """Unpickles by creating a file, to show whether a pickle is loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self._path,))


@pytest.mark.parametrize("stated", ["code", b"[6", b"{}", b"[-6]", b"[true]", b"[1e3]"])
def test_a_shape_is_read_without_running_code(tmp_path: Path, stated: str | bytes) -> None:
    made = tmp_path / "made"
    given = pickle.dumps((RunsCode(made), 6), 5) if isinstance(stated, str) else stated
    path = write(tmp_path / "x.parquet", of_type(RAY, FLOATS, given))
    with pytest.raises(ConfigError, match=r"x\.parquet: cannot be read \(") as caught:
        open_embeddings(path, option="train").list_vectors()
    assert "\n" not in str(caught.value)
    assert not made.exists()


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (of_type(RAY, FLOATS, b"[7]"), r"'embedding' has 6 numbers, but states \(7,\)"),
        (of_type(DAFT, FIXED, daft("Embedding", "Float32", 7)), "has 6 numbers, but states"),
        (any_shape(FLOATS, *[[WIDTH]] * (ROWS - 1), [2, 3]), "a row has a tensor of 2 dimensions"),
        (
            of_type(RAY, FLOATS, b"[6]", pa.array([*VALUES[:9], None], FLOATS)),
            "row 9: no list, but",
        ),
        (
            of_type(DAFT, FIXED, daft("Embedding", "Float32", 6), pa.array([None, *VALUES], FIXED)),
            r"x\.parquet: cannot be read \(Expected all lists to be of size=6",  # pyarrow's text
        ),
    ],
)
def test_faulty_rows_are_named(tmp_path: Path, column: pa.Array, said: str) -> None:
    file = open_embeddings(write(tmp_path / "x.parquet", column), option="train")
    with pytest.raises((ConfigError, DataError), match=said):
        list(file.read_blocks(["embedding"]))


def test_parts_of_other_lengths_are_refused_before_they_are_read(tmp_path: Path) -> None:
    write(tmp_path / "x_0.parquet", READ["lists"][0])
    write(tmp_path / "x_1.parquet", READ["arrow"][0])
    write(tmp_path / "x_2.parquet", of_type(RAY, FLOATS, b"[3]", VALUES[:, :3]))
    with pytest.raises(
        ConfigError, match=r"x_2\.parquet: .*vectors of 3 numbers, but of 6 in \S*x_1\.parquet"
    ):
        open_embeddings(tmp_path / "x_*.parquet", option="train").find_vectors(None)
