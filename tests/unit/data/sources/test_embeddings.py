"""Vectors from files of all formats: equal tables, equal features, and an error for each fault."""

from __future__ import annotations

import io
import re
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save
from scipy.sparse import csc_matrix, csr_matrix

from dpprobe.data import dataset_preparation
from dpprobe.data.registry import dataset_options
from dpprobe.data.sources.embedding_files import FORMATS, open_embeddings
from dpprobe.data.sources.embedding_formats.embedding_file import BLOCK_ROWS
from dpprobe.data.sources.embedding_rows import read_vector
from dpprobe.data.table import SplitTable
from dpprobe.errors import ConfigError, DataError
from dpprobe.privacy.limits import INFINITE
from dpprobe.study.study_file import load_study
from tests.support.sources import write_table
from tests.unit.features.test_extraction import extract

ROWS, WIDTHS = 1300, {"small": 3, "wide": 5}  # two blocks
NAMES = ["a", "b", "c"]
EXTERNAL = {"family": "external", "model": "hashing", "each_by_itself": True}


def make_rows(rows: int = ROWS) -> tuple[dict[str, npt.NDArray[Any]], dict[str, list[str]]]:
    """Returns vectors by name, and columns of labels, patients and groups."""
    generator = np.random.default_rng(0)
    vectors = {
        name: generator.normal(size=(rows, width)).astype(np.float32)
        for name, width in WIDTHS.items()
    }
    numbers = generator.integers(0, 3, rows)
    columns = {
        "kind": [NAMES[number] for number in numbers],
        "who": [f"p{row // 4}" for row in range(rows)],
        "age": [str(20 + row % 50) for row in range(rows)],
    }
    return vectors, columns


def write_npz(folder: Path, vectors: Any, columns: Any) -> dict[str, Any]:
    arrays: dict[str, Any] = {name: np.array(values) for name, values in columns.items()}
    np.savez_compressed(folder / "x.npz", **(arrays | vectors))
    return {"train": "x.npz", "vectors": {"small": "small", "wide": "wide"}}


def write_sparse(file: h5py.File, name: str, matrix: Any) -> None:
    """Writes a sparse matrix in AnnData's layout."""
    group = file.create_group(name)
    group.attrs["encoding-type"] = f"{matrix.format}_matrix"
    group.attrs["shape"] = matrix.shape
    for part in ("data", "indices", "indptr"):
        group[part] = getattr(matrix, part)


def options(folder: Path, written: dict[str, Any], **more: Any) -> Any:
    given = {"source": "embeddings", "root": str(folder), "label_column": "kind"}
    return dataset_options(given | {"class_names": NAMES} | written | more)


def prepare(folder: Path, written: dict[str, Any], **more: Any) -> Path:
    tables = folder / "tables"
    dataset_preparation.prepare_dataset(options(folder, written, **more), tables)
    return tables


def read_rows(tables: Path, name: str) -> dict[str, npt.NDArray[np.float32]]:
    """Returns the vectors of both tables by id, without null examples."""
    rows = {}
    for split in ("train", "test"):
        table = SplitTable(tables / f"{split}.parquet")
        for row in table.read_images(0, table.rows):
            if row.row not in table.nulls:
                rows[row.id] = read_vector(row, name, split=split)
    return rows


def test_features(tmp_path: Path) -> None:
    """Extraction writes the named vectors unchanged."""
    vectors, columns = make_rows(200)
    tables = prepare(tmp_path, write_npz(tmp_path, vectors, columns))
    given: dict[str, Any] = {"backbone": EXTERNAL, "backbone_name": "wide", "batch_size": 64}
    for split in ("train", "test"):
        store = extract(tables, tmp_path / split, split=split, **given)
        table = SplitTable(tables / f"{split}.parquet")
        places = [int(each.removeprefix("row-")) for each in table.read_ids()]
        assert store.dimension == WIDTHS["wide"]
        assert np.array_equal(store.read(), vectors["wide"][places])
        (row,) = table.read_images(3, 4)
        for changed in (row._replace(data=None), row._replace(sha256=bytes(32))):
            with pytest.raises(DataError, match=rf"^{split} row 3 \(id {row.id}\): changed since"):
                read_vector(changed, "wide", split=split)


def test_filters_keep_places(tmp_path: Path) -> None:
    """Filtered rows do not shift the vectors of other rows."""
    vectors, columns = make_rows()
    given = {"filters": {"age": ["21", "33", "47"]}, "duplicates": "warn"}
    tables = prepare(tmp_path, write_npz(tmp_path, vectors, columns), **given)
    rows = read_rows(tables, "small")
    assert len(rows) == sum(age in ("21", "33", "47") for age in columns["age"])
    for name, vector in rows.items():
        place = int(name.removeprefix("row-"))
        assert columns["age"][place] in ("21", "33", "47")
        assert np.array_equal(vector, vectors["small"][place])


def test_equal_vectors_on_both_sides_are_found(tmp_path: Path) -> None:
    vectors, columns = make_rows(60)
    vectors["small"][41] = vectors["small"][3] = 0.0
    vectors["small"][41] = -0.0
    np.save(tmp_path / "a.npy", vectors["small"][:40])
    np.save(tmp_path / "b.npy", vectors["small"][40:])
    for file, rows in (("a", slice(0, 40)), ("b", slice(40, 60))):
        write_table(tmp_path / f"{file}.CSV", pa.table(columns).to_pylist()[rows])
    written = {"train": "a.npy", "table": "a.CSV", "test": "b.npy", "test_table": "b.CSV"}
    with pytest.raises(DataError, match="the same bytes as train id train-00000003"):
        prepare(tmp_path, written)


Write = Callable[[Path], dict[str, Any]]
ROW = [1.0, 2.0]
KINDS = ["a", "b"] * 5
PAIRS = np.arange(20, dtype=np.float32).reshape(10, 2)


def in_parquet(*parts: dict[str, Any], **more: Any) -> Write:
    """Changes columns of each file by one of `parts`: None removes one, a tuple writes it twice."""

    def write(folder: Path) -> dict[str, Any]:
        for number, changed in enumerate(parts):
            vectors = [[float(row + 10 * number), 2.0] for row in range(10)]
            columns = {"embedding": vectors, "kind": KINDS, "age": KINDS} | changed
            pairs = [
                (name, part)
                for name, values in columns.items()
                for part in (values if isinstance(values, tuple) else [values])
                if part is not None
            ]
            arrays = [part if isinstance(part, pa.Array) else pa.array(part) for _, part in pairs]
            table = pa.Table.from_arrays(arrays, [name for name, _ in pairs])
            pq.write_table(table, folder / f"x-{number}.parquet")
        return {"train": "x-*.parquet", **more}

    return write


def second(values: Any, kind: Any = None) -> Write:
    """Writes a second file with other vectors, all equal."""
    return in_parquet({}, {"embedding": pa.array([values] * 10, kind)})


def row_five(vector: Any) -> Write:
    return in_parquet({"embedding": [[row, 2.0] for row in range(5)] + [vector] + [ROW] * 4})


def in_tensors(kind: torch.dtype, **more: Any) -> Write:
    def write(folder: Path) -> dict[str, Any]:
        tensors = {"kind": torch.arange(10) % 2, "X": torch.zeros(10, 2).to(kind)}
        tensors["Y"] = torch.arange(30).reshape(10, 3).to(kind)
        (folder / "x.safetensors").write_bytes(save(tensors))
        return {"train": "x.safetensors", **more}

    return write


def in_npz(*more: tuple[str, Any], options: Any = None, **vectors: Any) -> Write:
    """Writes members by name; `more` may repeat names."""

    def write(folder: Path) -> dict[str, Any]:
        arrays = [("kind.npy", np.array(KINDS)), *((f"{n}.npy", v) for n, v in vectors.items())]
        with zipfile.ZipFile(folder / "x.npz", "w") as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # zipfile warns of repeated names
            for name, values in [*arrays, *more]:
                with archive.open(name, "w") as member:
                    np.save(member, values)
        return {"train": "x.npz", **(options or {})}

    return write


def in_npy(
    vectors: Any,
    cut: int = 0,
    shape: str = "",
    name: str = "x.npy",
    version: Any = None,
    columns: bool = False,
    **more: Any,
) -> Write:
    def write(folder: Path) -> dict[str, Any]:
        stream = io.BytesIO()
        np.lib.format.write_array(stream, vectors, version)
        data = stream.getvalue().replace(b"False, ", b"True,  " if columns else b"False, ")
        if shape:
            data = data.replace(b"(10, 2), }" + b" " * (len(shape) - 7), f"{shape}, }}".encode())
        (folder / name).write_bytes(data[: len(data) - cut] + bytes(max(-cut, 0)))
        write_table(folder / "rows.csv", [{"kind": kind, "id": "one"} for kind in KINDS])
        return {"train": name, "table": "rows.csv", **more}

    return write


def in_h5ad(age: Any = None, vectors: Any = None, **changed: Any) -> Write:
    """Writes `age` as a column of groups: an array, or a mapping of its parts."""

    def write(folder: Path) -> dict[str, Any]:
        names = np.array([kind.encode() for kind in KINDS])
        parts = {"X": PAIRS, "obs/kind": names} | changed
        for name, part in age.items() if isinstance(age, dict) else [("", age)]:
            parts[f"obs/age/{name}".rstrip("/")] = part
        with h5py.File(folder / "x.h5ad", "w") as file:
            for name, part in parts.items():
                if part is not None:
                    file[name] = part
        groups = [] if age is None else ["age"]
        return {"train": "x.h5ad", "group_columns": groups, "vectors": vectors or {}}

    return write


def damaged(suffix: str) -> Write:
    def write(folder: Path) -> dict[str, Any]:
        (folder / f"x{suffix}").write_bytes(b"no vectors at all")
        write_table(folder / "rows.csv", [{"kind": kind} for kind in KINDS])
        return {"train": f"x{suffix}", "table": "rows.csv"}

    return write


COMPOUND = np.zeros(10, [("kind", "S1"), ("age", "i4")])
SAME_IDS: dict[str, Any] = {
    "id_column": "id",
    "split_column": "kind",
    "train_values": ["a"],
    "test_values": ["b"],
}
MOMENTS = np.arange(20).reshape(10, 2).astype("M8[s]")
AGES = {"group_columns": ["age"]}
ODD = PAIRS.astype(np.float64)
ODD[[2, 5, 5, 9], [1, 0, 1, 1]] = np.nan, np.inf, np.nan, -1e300
TWO = {"vectors": {"b": "Y", "a": "X"}}


# The content of a second file that has no lists of numbers.
KINDS_OF_VECTORS: list[tuple[Any, Any, str]] = [
    (1.5, None, "floats"),
    ("1 2", None, "texts"),
    ({"a": 1.0}, None, "struct<a: double>"),
    (["1", "2"], None, "lists of texts"),
    ([True, False], None, "lists of bool"),
    ([[1.0, 2.0]], None, "lists of lists of numbers"),
    ([1, 2], pa.list_(pa.timestamp("s")), "lists of timestamp[ms]"),
    ([1, 2], pa.list_(pa.date32()), "lists of date32[day]"),
    ([1, 2], pa.list_(pa.decimal128(9, 1)), "lists of decimal128(9, 1)"),
    (None, None, "null"),
]
# Columns of the first file, columns of the second file, and the error about the second.
COLUMNS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"kind": [["a"]] * 10}, "'kind' has lists of texts, but texts in"),
    ({}, {"kind": [b"a"] * 10}, "'kind' has binary, but texts in"),
    ({"age": [1] * 10}, {"age": [1.5] * 10}, "'age' has floats, but whole numbers in"),
    ({}, {"age": [True] * 10}, "'age' has bool, but texts in"),
]
# Arrays in an .npz that cannot be vectors, by the name of their type.
TYPES: dict[str, Any] = {
    "<U1": np.array([["1", "2"]] * 10),
    "bool": np.ones((10, 2), bool),
    "object": np.empty((10, 2), object),
    "datetime64[s]": MOMENTS,
    "complex128": PAIRS.astype(complex),
    "[('kind', 'S1'), ('age', '<i4')]": np.zeros((10, 2), COMPOUND.dtype),
}
STACKED = np.array([*PAIRS, None], object)[:-1]  # one array per row, as numpy.save pickles them
OBJECTS = "shape (10,) and type object"
TENSORS = {"BOOL": torch.bool, "BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn}
TWICE, OLD = "two arrays are named {!r}; save each", "is one array, as AnnData before"
NO_AGE, BLOCK = "x.h5ad: no column 'age'", "but the first row of its block has 2"
# Faults of one file among several, of one row, of numbers, names and shapes, and of AnnData.
FAULTS: list[tuple[Write, str]] = [
    *(
        (second(values, kind), f"x-1.parquet: column 'embedding' has {name}, but lists of numbers")
        for values, kind, name in KINDS_OF_VECTORS
    ),
    *(
        (in_parquet(first, other, **AGES), f"x-1.parquet: column {said}")
        for first, other, said in COLUMNS
    ),
    (in_parquet({}, {"embedding": None}), "x-1.parquet: no column 'embedding', which"),
    (in_parquet({}, {"kind": None}), "x-1.parquet: no column 'kind', which"),
    (in_parquet({}, {"kind": (KINDS, KINDS)}), "x-1.parquet: two columns are named 'kind'; rename"),
    (
        in_parquet({"embedding": ([ROW] * 10, [ROW] * 10)}),
        "x-0.parquet: two columns are named 'embedding'; rename one",
    ),
    (in_parquet({}, {}, {"kind": [b"a"] * 10}), "x-2.parquet: column 'kind' has binary, but texts"),
    (second([1.0, 2.0, 3.0]), "vectors 'vectors' have 3 numbers from row 10 on, but 2 before"),
    (second([1.0]), "have 1 numbers from row 10 on, but 2 before"),
    (second([], pa.list_(pa.float64())), "row 10: a list of 0 numbers, but each row needs numbers"),
    (second(None, pa.list_(pa.float64())), "row 10: no list, but each row needs numbers"),
    (row_five([1.0]), f"column 'embedding' row 5: a list of 1 numbers, {BLOCK}"),
    (row_five([]), f"column 'embedding' row 5: a list of 0 numbers, {BLOCK}"),
    (row_five(None), f"column 'embedding' row 5: no list, {BLOCK}"),
    (
        in_parquet({"embedding": [ROW] * 4 + [[1.0]] * 6}),
        "x-0.parquet: column 'embedding' row 4: a list of 1 numbers",
    ),
    (
        row_five([1.5, None]),
        "(id row-00000005): x-*.parquet row 5: vectors 'vectors': number 1 is nan; correct",
    ),
    (
        in_npy(PAIRS, **SAME_IDS),
        "8 ids missing or twice, 1 class or split without rows, 1 class without test rows",
    ),
    *(
        (write, f"vectors 'X' are of type {kind}; save them as float32")
        for write, kind in (
            *((in_npz(X=array), kind) for kind, array in TYPES.items()),
            *((in_tensors(each), kind) for kind, each in TENSORS.items()),
        )
    ),
    (in_npz(one=PAIRS, two=PAIRS), "no vectors, only one, two; name arrays"),
    (in_npz(("X.npy", 0 * PAIRS), X=PAIRS), TWICE.format("X")),
    (in_npz(("X", 0 * PAIRS), X=PAIRS), TWICE.format("X")),
    (in_npz(("kind.npy", PAIRS[:, 0]), X=PAIRS), TWICE.format("kind")),
    (in_npz(("X", PAIRS)), "no vectors, only kind of shape (10,); name arrays"),
    (in_npy(STACKED), f"only an array of {OBJECTS}; if the array has the vectors, write `array = "),
    (in_npz(X=STACKED), f"no vectors, only kind of shape (10,), X of {OBJECTS}; if X has the vec"),
    (in_npz(y=STACKED, tiles=STACKED), "if tiles has the vectors, write `tiles = numpy.stack(ti"),
    (in_npz(X=STACKED, b=STACKED, options={"vectors": {"a": "b"}}), "`b = numpy.stack(b).astype("),
    (lambda _: {"train": "x.pkl"}, "x.pkl: not the name of a file of vectors; name a file that"),
    (in_npy(PAIRS[:, 0]), "x.npy: no vectors, only an array of shape (10,); name"),
    (in_npz(X=PAIRS[:, None]), "only kind of shape (10,), X of shape (10, 1, 2); if X has"),
    (in_npy(PAIRS[:9]), "rows.csv: 10 rows, but 9 vectors 'vectors' in"),
    (in_npz(X=PAIRS, options=AGES, age=np.arange(7)), "columns differ in length (age 7, kind 10)"),
    (in_npz(X=PAIRS[:, :0]), "vectors 'X' are empty, of shape (10, 0); save them again"),
    *(
        (in_npy(PAIRS, cut=cut), f"{80 - cut} bytes of numbers, but its header states 80")
        for cut in (8, -8)
    ),
    *(
        (in_npy(PAIRS, shape=shape), f"its header has the shape {shape}")
        for shape in ("(-10, 2)", "(-10, -2)", "(True, 2)")
    ),
    (
        in_npy(PAIRS, shape="(10, 9999999999999)"),
        "80 bytes of numbers, but its header states 399999999999960",
    ),
    (in_npy(np.asfortranarray(PAIRS)), "vectors '' are of type float32 in columns; save them as"),
    *((in_h5ad(obs=obs, **{"obs/kind": None}), f"`obs` {OLD}") for obs in (COMPOUND, PAIRS)),
    *((in_h5ad(obsm=obsm), f"`obsm` {OLD}") for obsm in (COMPOUND, PAIRS)),
    (in_h5ad(**{"obs/kind": COMPOUND}), "x.h5ad: no column 'kind'; it has none: name another file"),
    (in_h5ad(**{"obs/kind": None}), "cannot be read ("),
    *((in_h5ad(age), f"{NO_AGE}; it has kind") for age in (PAIRS, {"x": PAIRS})),
    *(
        (in_h5ad(age), f"group_columns: {NO_AGE}")
        for age in ({"codes": [0] * 10}, {"values": np.arange(10)}, {"categories": [b"u"]})
    ),
    (in_h5ad(np.arange(7)), "x.h5ad: columns differ in length (age 7, kind 10)"),
    (in_h5ad({"values": np.arange(10), "mask": np.zeros(7, bool)}), "cannot be read ("),
    *(
        (in_h5ad({"categories": [b"u"], "codes": [code] * 10}), f"age: the code {code} has no name")
        for code in (3, -2)
    ),
    (in_npy(ODD), "3 unusable values (correct the value"),
    (
        in_npz(one=PAIRS, two=ODD, options={"vectors": {"a": "one", "b": "two"}}),
        "3 unusable values (correct the value",
    ),
    (in_npz(one=PAIRS, options={"vectors": {"a": "One"}}), "no vectors 'One', only one; name"),
    *((damaged(suffix), f"x{suffix}: ") for suffix in FORMATS),
    (lambda _: {"train": "none-*.parquet"}, "train: no file"),
    (
        in_parquet(
            {},
            {"embedding": [[1.0, row, 3.0] for row in range(10)]},
            train="x-0.parquet",
            test="x-1.parquet",
        ),
        "x-1.parquet: vectors 'vectors' have 3 numbers from row 0 on, but 2 before",
    ),
]
# Valid files, the array that is chosen by default, and the vectors that are read.
VECTOR_ROWS = [[row, 2] for row in range(20)]
GOOD: list[tuple[Write, str, dict[str, Any]]] = [
    (second([1, 2]), "embedding", {"vectors": [*VECTOR_ROWS[:10], *[[1, 2]] * 10]}),
    (in_parquet({}, {"age": [None] * 10}, **AGES), "embedding", {"vectors": VECTOR_ROWS}),
    (
        in_parquet({}, {"kind": pa.array(KINDS).dictionary_encode()}),
        "embedding",
        {"vectors": VECTOR_ROWS},
    ),
    (in_npz(("readme.txt", PAIRS), ("folder/", PAIRS), X=PAIRS), "X", {"vectors": PAIRS}),
    (in_h5ad({"values": np.arange(10), "mask": np.arange(10) > 3}), "X", {"vectors": PAIRS}),
    (in_npz(embeddings=0 * PAIRS, embedding=PAIRS, other=PAIRS), "embedding", {"vectors": PAIRS}),
    (in_npz(one=PAIRS, X=PAIRS + 1), "X", {"vectors": PAIRS + 1}),
    (
        in_h5ad(X=None, **{"obsm/one": PAIRS, "obsm/flat": PAIRS[:, 0]}),
        "obsm/one",
        {"vectors": PAIRS},
    ),
    (in_npz(only=PAIRS), "only", {"vectors": PAIRS}),
    (
        in_parquet(
            {"more": [ROW] * 10, "embedding": pa.array([ROW] * 10, pa.list_(pa.float32(), 2))}
        ),
        "embedding",
        {"vectors": [ROW] * 10},
    ),
    (
        in_parquet({"kind": ["a ", " b"] * 5}, {"age": [" x"] * 10}, **AGES),
        "embedding",
        {"vectors": VECTOR_ROWS},
    ),
    (in_tensors(torch.float64), "X", {"vectors": 0 * PAIRS}),
    (in_npy(PAIRS, name="X.NPY", version=(2, 0)), "", {"vectors": PAIRS}),
    (in_npy(PAIRS[:, :1], columns=True), "", {"vectors": PAIRS[:, :1]}),
    (in_tensors(torch.float16, **TWO), "X", {"b": np.arange(30).reshape(10, 3), "a": 0 * PAIRS}),
    (
        in_parquet({"X": [ROW] * 10, "Y": [[row, 3, 4] for row in range(10)]}, **TWO),
        "X",
        {"b": [[row, 3, 4] for row in range(10)], "a": [ROW] * 10},
    ),
    (
        in_h5ad(vectors={"b": "obsm/Y", "a": "X"}, **{"obsm/Y": PAIRS[:, :1] + 5}),
        "X",
        {"b": PAIRS[:, :1] + 5, "a": PAIRS},
    ),
    (in_npz(X=PAIRS, Y=PAIRS[:, :1] + 5, options=TWO), "X", {"b": PAIRS[:, :1] + 5, "a": PAIRS}),
]


@pytest.mark.parametrize(("write", "said"), FAULTS)
def test_a_fault_of_a_file_is_one_line(tmp_path: Path, write: Write, said: str) -> None:
    (tmp_path / "x.pkl").touch()
    with pytest.raises((ConfigError, DataError)) as caught:
        prepare(tmp_path, write(tmp_path), class_names=["a", "b"], duplicates="warn")
    message = str(caught.value)
    assert said in message
    several = said.startswith(("8 ids missing", "3 unusable values"))  # with a line for each
    assert ("\n" in message) == several


@pytest.mark.parametrize(
    "array",
    [STACKED, PAIRS.astype(object), PAIRS.astype("U9"), np.asfortranarray(PAIRS), PAIRS[:, None]],
)
def test_the_code_that_an_error_suggests_makes_vectors(tmp_path: Path, array: Any) -> None:
    options = in_npz(X=array)(tmp_path)
    with pytest.raises((ConfigError, DataError)) as caught:
        prepare(tmp_path, options, class_names=["a", "b"], duplicates="warn")
    (code,) = re.findall("`(X = [^`]+)`", str(caught.value))
    names = {"numpy": np, "X": array}
    exec(code, names)
    in_npz(X=names["X"])(tmp_path)
    (block,) = open_embeddings(tmp_path / "x.npz", option="train").read_blocks(["X"])
    np.testing.assert_array_equal(block[0], PAIRS)


@pytest.mark.parametrize(("write", "usual", "vectors"), GOOD)
def test_vectors_are_read_as_they_were_written(
    tmp_path: Path, write: Write, usual: str, vectors: dict[str, Any]
) -> None:
    """`usual` is the array that is read if the study names none."""
    written = write(tmp_path)
    given = {"class_names": ["a", "b"], "duplicates": "warn"}
    file = options(tmp_path, written, **given).open_vectors("train")
    assert file.find_vectors(None) == usual
    tables = prepare(tmp_path, written, **given)
    for name, wanted in vectors.items():
        rows = read_rows(tables, name)
        found = np.stack([rows[f"row-{row:08d}"] for row in range(len(wanted))])
        np.testing.assert_array_equal(found, np.asarray(wanted, np.float32))
        assert len(rows) == len(wanted)


@pytest.mark.parametrize(
    ("write", "groups"),
    [
        (in_parquet({"kind": ["a ", " b"] * 5}, {"age": [" x"] * 10}, **AGES), ["*", "x"]),
        (in_parquet({}, {"age": [None] * 10}, **AGES), ["*", ""]),
        (in_h5ad({"values": np.arange(10), "mask": np.arange(10) > 3}), [*"0123", *[""] * 6]),
        (
            in_h5ad({"categories": [b"u", b"v"], "codes": [0, 1, -1, 1, 0] * 2}),
            ["u", "v", "", "v", "u"] * 2,
        ),
    ],
)
def test_groups_are_texts_without_spaces_and_blank_if_missing(
    tmp_path: Path, write: Write, groups: list[str]
) -> None:
    tables = prepare(tmp_path, write(tmp_path), class_names=["a", "b"], duplicates="warn")
    found: dict[str, str] = {}
    for split in ("train", "test"):
        table = SplitTable(tables / f"{split}.parquet")
        found |= zip(table.read_ids(), table.read_groups()["group_age"], strict=True)
    listed = [found[each] for each in sorted(found)]
    if groups[0] == "*":  # of two files, the first has no groups
        assert listed[10:] == groups[1:] * 10
    else:
        assert listed == groups


LARGE = (64 * BLOCK_ROWS, 256)


def large_h5ad(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("X", LARGE, np.float32, chunks=True, compression="gzip")


LARGE_FILES: list[tuple[str, Callable[[Path], Any]]] = [
    ("npy", lambda path: np.lib.format.open_memmap(path, "w+", np.float32, LARGE).flush()),
    ("npz", lambda path: np.savez(path, X=np.zeros(LARGE, np.float32))),
    ("npz", lambda path: np.savez_compressed(path, X=np.zeros(LARGE, np.float32))),
    ("safetensors", lambda path: save_file({"X": np.zeros(LARGE, np.float32)}, path)),
    ("h5ad", large_h5ad),
]


@pytest.mark.parametrize(("suffix", "write"), LARGE_FILES)
def test_large_files_are_read_in_blocks(
    tmp_path: Path, suffix: str, write: Callable[[Path], Any]
) -> None:
    """Reading 64 MiB of vectors takes less than a tenth of that memory."""
    path = tmp_path / f"x.{suffix}"
    write(path)
    name = "" if suffix == "npy" else "X"
    tracemalloc.start()
    file = open_embeddings(path, option="train")
    assert file.list_vectors()[name] == LARGE
    assert sum(len(block) for (block,) in file.read_blocks([name])) == LARGE[0]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < LARGE[0] * LARGE[1] * 4 / 10


def test_sparse_matrices_of_anndata_are_refused(tmp_path: Path) -> None:
    """A sparse matrix next to dense vectors is ignored."""
    path = tmp_path / "x.h5ad"
    with h5py.File(path, "w") as file:
        write_sparse(file, "X", csr_matrix(np.eye(4, dtype=np.float32)))
        write_sparse(file, "obsm/by_columns", csc_matrix(np.eye(4, dtype=np.float32)))
    found = open_embeddings(path, option="train")
    for name in (None, "X", "obsm/by_columns"):
        with pytest.raises(ConfigError, match=rf"'{name or 'X'}': a sparse matrix.*toarray\(\)"):
            found.find_vectors(name)
    with h5py.File(path, "a") as file:
        file["obsm/X_small"] = np.zeros((4, 3), np.float32)
    assert found.find_vectors(None) == "obsm/X_small"


# Other blocks of a study with vectors, and the errors that refuse them.
STUDIES: list[tuple[dict[str, Any], str]] = [
    (
        {"backbones": {"pixels": {"family": "pixels"}}},
        "backbones.pixels: family pixels takes images, and datasets.notes has vectors; write",
    ),
    (
        {"backbones": {"other": EXTERNAL}},
        "backbones.other.vectors: .* no vectors named 'other', only small, wide; choose one of",
    ),
    (
        {"datasets": {"digits": {"source": "sklearn", "name": "digits"}}},
        "backbones.small: family external takes vectors, and datasets.digits has images",
    ),
    ({"few_shot": {}}, "few_shot.backbones: small has no text encoder"),
    (
        {"backbones": {"small": EXTERNAL, "again": EXTERNAL | {"vectors": "small"}}},
        "backbones.again: takes the vectors 'small' of datasets.notes, as small does; remove one",
    ),
    (
        {"backbones": {"small": EXTERNAL | {"each_by_itself": False}}},
        "backbones.small.each_by_itself: False: must be True",
    ),
    (
        {"backbones": {"small": EXTERNAL | {"preprocessing": {"crop": "inception"}}}},
        "backbones.small.preprocessing: unknown key; family external does not take it",
    ),
    (
        {"backbones": {"small": {"family": "external", "model": "x"}}},
        "backbones.small.each_by_itself: missing; add this key",
    ),
]


def test_studies_of_vectors_are_refused_or_read() -> None:
    notes = {
        "source": "embeddings",
        "train": "x.npz",
        "label_column": "kind",
        "class_names": NAMES,
        "vectors": {"small": "small", "wide": "wide"},
    }
    study: dict[str, Any] = {
        "datasets": {"notes": notes},
        "backbones": {"small": EXTERNAL},
        "methods": {"sgd": {"head": "sgd"}},
        "epsilons": [1, INFINITE],
    }
    for changes, said in STUDIES:
        with pytest.raises(ConfigError, match=said):
            load_study(study | changes)
    wide = {"backbones": {"small": EXTERNAL, "big": EXTERNAL | {"vectors": "wide"}}}
    assert load_study(study | wide)
