"""Columns of codes: the names of codes are read, or the column is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import save_file

from dpprobe.data.registry import dataset_options
from dpprobe.data.sources.embedding_files import open_embeddings
from dpprobe.errors import ConfigError

CODES, BOOK = [1, 0, 0, 1, 2], ["b", "a", "c"]  # in an order that sorting does not give
NAMES = ["a", "b", "b", "a", "c"]
VECTORS = np.arange(10, dtype=np.float32).reshape(5, 2)


def h5ad(write: Callable[[h5py.File, h5py.Group], None]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        with h5py.File(folder / "x.h5ad", "w") as file:
            file["X"] = VECTORS
            write(file, file.create_group("obs"))
        return folder / "x.h5ad"

    return make


def by_reference(_file: h5py.File, obs: h5py.Group) -> None:
    """Writes the layout of AnnData 0.7."""
    obs["__categories/kind"] = BOOK
    obs["kind"] = np.array(CODES, dtype=np.int8)
    obs["kind"].attrs["categories"] = obs["__categories/kind"].ref


def by_renamed_reference(_file: h5py.File, obs: h5py.Group) -> None:
    obs["__categories/old_name"], obs["__categories/kind"] = BOOK, ["x", "y", "z"]
    obs["kind"] = np.array(CODES, dtype=np.int8)
    obs["kind"].attrs["categories"] = obs["__categories/old_name"].ref


def by_name(_file: h5py.File, obs: h5py.Group) -> None:
    obs["__categories/kind"], obs["kind"] = BOOK, np.array(CODES, dtype=np.int8)
    obs["_index"] = [*"pqrst"]


def by_old_colours(file: h5py.File, obs: h5py.Group) -> None:
    """Writes the layout of AnnData 0.6."""
    file["uns/kind_categories"], obs["kind"] = BOOK, np.array(CODES)


def by_enumeration(_file: h5py.File, obs: h5py.Group) -> None:
    """Writes codes as an enumeration, numbered from 1 as factors of R are."""
    kind = h5py.enum_dtype({name: code + 1 for code, name in enumerate(BOOK)}, basetype="i1")
    obs.create_dataset("kind", data=np.array(CODES) + 1, dtype=kind)


def by_masked_book(_file: h5py.File, obs: h5py.Group) -> None:
    obs["kind/codes"] = np.array(CODES, dtype=np.int8)
    obs["kind/categories/values"], obs["kind/categories/mask"] = BOOK, [False] * 3


def npz(**arrays: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        np.savez(folder / "x.npz", X=VECTORS, **arrays)
        return folder / "x.npz"

    return make


def parquet(kind: pa.Array, metadata: dict[str, str] | None = None) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        table = pa.table({"X": pa.array(VECTORS.tolist()), "kind": kind})
        pq.write_table(table.replace_schema_metadata(metadata), folder / "x.parquet")
        return folder / "x.parquet"

    return make


FEATURE = {"info": {"features": {"kind": {"names": BOOK, "_type": "ClassLabel"}}}}
LABELLED = {"r": "A\n3\n262153\nclass\n16\n1\n262153\n14\nhaven_labelled\n"}
READ = {
    "reference": h5ad(by_reference),
    "renamed reference": h5ad(by_renamed_reference),
    "name": h5ad(by_name),
    "uns": h5ad(by_old_colours),
    "enumeration": h5ad(by_enumeration),
    "masked book": h5ad(by_masked_book),
    "npz": npz(kind=CODES, kind_categories=BOOK),
    "npz of bytes": npz(kind=np.array(CODES, "u1"), kind_names=np.array(BOOK, dtype="S1")),
    "padded bytes": npz(kind=np.array([f"{name} " for name in NAMES], dtype="S3")),
    "dictionary": parquet(pa.DictionaryArray.from_arrays(pa.array(CODES), pa.array(BOOK))),
    "class labels": parquet(pa.array(CODES), {"huggingface": json.dumps(FEATURE)}),
    "bytes": parquet(pa.array([name.encode() for name in NAMES])),
}


@pytest.mark.parametrize("make", READ.values(), ids=READ)
def test_codes_are_named_by_their_book(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    file = open_embeddings(make(tmp_path), option="train")
    assert "kind" in file.columns
    assert "__categories" not in file.columns
    assert ("_index" in file.columns) == (make is READ["name"])
    assert file.read_columns(["kind"]) == {"kind": NAMES}


def by_float_book(_file: h5py.File, obs: h5py.Group) -> None:
    obs["kind/codes"], obs["kind/categories"] = np.array(CODES, dtype=np.int8), VECTORS[:3, 0]


def by_masked_floats(_file: h5py.File, obs: h5py.Group) -> None:
    obs["kind/values"], obs["kind/mask"] = VECTORS[:, 0], [False] * 5


def by_halves(_file: h5py.File, obs: h5py.Group) -> None:
    obs["kind"] = VECTORS[:, 0].astype(">f2")


def torch_file(folder: Path) -> Path:
    torch.save({"X": torch.tensor(VECTORS), "kind": torch.tensor(CODES).float()}, folder / "x.pt")
    return folder / "x.pt"


def safetensors(folder: Path) -> Path:
    save_file({"X": VECTORS, "kind": VECTORS[:, 0].copy()}, folder / "x.safetensors")
    return folder / "x.safetensors"


def hdf5(folder: Path) -> Path:
    with h5py.File(folder / "x.h5", "w") as file:
        file["X"], file["kind"] = VECTORS, VECTORS[:, 0]
    return folder / "x.h5"


FLOATS = pa.array(VECTORS[:, 0])
TYPES = {
    "npz": (npz(kind=VECTORS[:, 0]), "float32"),
    "big-endian": (npz(kind=VECTORS[:, 0].astype(">f4")), "float32"),
    "halves": (npz(kind=VECTORS[:, 0].astype("f2")), "float16"),
    "doubles": (npz(kind=VECTORS[:, 0].astype("f8")), "float64"),
    "parquet": (parquet(FLOATS), "float32"),
    "parquet of halves": (parquet(FLOATS.cast(pa.float16())), "float16"),
    "dictionary": (parquet(FLOATS.dictionary_encode()), "float32"),
    "h5ad": (h5ad(by_halves), "float16"),
    "categories": (h5ad(by_float_book), "float32"),
    "mask": (h5ad(by_masked_floats), "float32"),
    "torch": (torch_file, "float32"),
    "safetensors": (safetensors, "float32"),
    "hdf5": (hdf5, "float32"),
}


@pytest.mark.parametrize(("make", "kind"), TYPES.values(), ids=TYPES)
def test_the_type_of_a_column_is_known(
    tmp_path: Path, make: Callable[[Path], Path], kind: str
) -> None:
    file = open_embeddings(make(tmp_path), option="train")
    assert file.column_types("kind") == {kind}


def without_target(file: h5py.File, obs: h5py.Group) -> None:
    by_reference(file, obs)
    obs["kind"].attrs["categories"] = h5py.Reference()


def by_texts(name: str) -> Callable[[h5py.File, h5py.Group], None]:
    def write(_file: h5py.File, obs: h5py.Group) -> None:
        obs["kind"] = np.array(CODES)
        obs["kind"].attrs[name] = BOOK

    return write


def with_unnamed_code(file: h5py.File, obs: h5py.Group) -> None:
    by_reference(file, obs)
    obs["kind"][3] = 7


REFUSED = {
    "no target": (h5ad(without_target), "names in its attribute 'categories'"),
    "levels": (h5ad(by_texts("levels")), "names in its attribute 'levels'"),
    "flag meanings": (h5ad(by_texts("flag_meanings")), "names in its attribute 'flag_meanings'"),
    "unnamed code": (h5ad(with_unnamed_code), "the code 7 has no name"),
    "unnamed code of npz": (npz(kind=[0, 1, 9, 1, 0], kind_classes=BOOK), "the code 9 has no name"),
    "value labels": (parquet(pa.array(CODES), LABELLED), "value labels of R's haven"),
    "unnamed class": (
        parquet(pa.array([*CODES[:4], 8]), {"huggingface": json.dumps(FEATURE)}),
        "the class number 8 has no name",
    ),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_codes_without_names_are_refused(
    tmp_path: Path, make: Callable[[Path], Path], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        open_embeddings(make(tmp_path), option="train").read_columns(["kind"])


def test_blanks_and_plain_numbers_stay(tmp_path: Path) -> None:
    def write(file: h5py.File, obs: h5py.Group) -> None:
        by_reference(file, obs)
        obs["kind"][0] = -1
        obs["age"] = np.array([30, 40, 50, 60, 70])
        obs["left"] = np.array([True, False] * 2 + [True])
        obs["dose/values"], obs["dose/mask"] = CODES, [True, False, False, False, True]

    file = open_embeddings(h5ad(write)(tmp_path), option="train")
    read = file.read_columns(["kind", "age", "left", "dose"])
    assert read["kind"] == ["", *NAMES[1:]]
    assert read["age"] == ["30", "40", "50", "60", "70"]
    assert read["left"] == ["True", "False", "True", "False", "True"]
    assert read["dose"] == ["", "0", "0", "1", ""]


def test_a_class_label_of_minus_one_is_blank(tmp_path: Path) -> None:
    make = parquet(pa.array([*CODES[:4], -1]), {"huggingface": json.dumps(FEATURE)})
    file = open_embeddings(make(tmp_path), option="train")
    assert file.read_columns(["kind"]) == {"kind": [*NAMES[:4], ""]}


def test_value_labels_of_images_are_refused(tmp_path: Path) -> None:
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"image": pa.array([None], image), "label": pa.array([1])})
    pq.write_table(table.replace_schema_metadata(LABELLED), tmp_path / "x.parquet")
    options = dataset_options(
        {"source": "parquet", "train": str(tmp_path / "x.parquet"), "class_names": ["a", "b"]}
    )
    with pytest.raises(ConfigError, match="value labels of R's haven"):
        options.check_files()


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (np.eye(2)[[0, 1] * 10], "array kind [20, 2] of float64 .*kind.argmax(axis=1)` for labels"),
        (np.array([["a"], ["b"]] * 10), "array kind [20, 1] of <U1 .*`kind = kind.ravel()`"),
        (np.array(["a", "b"] * 10, object), "'kind' has Python objects.*kind.astype(str)`"),
    ],
)
def test_labels_of_another_shape_or_kind_name_the_line_that_helps(
    tmp_path: Path, labels: Any, said: str
) -> None:
    np.savez(tmp_path / "x.npz", X=np.ones((20, 4), "f4"), kind=labels)
    given = {"source": "embeddings", "root": str(tmp_path), "train": "x.npz"}
    options: Any = dataset_options(given | {"label_column": "kind", "class_names": ["a", "b"]})
    pattern = ".*".join(map(re.escape, said.split(".*")))
    with pytest.raises(ConfigError, match=pattern):
        options.check_files() or options.count_class_units()


def test_a_data_frame_in_obsm_names_the_line_that_helps(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5ad", "w") as file:
        file.create_group("obs")
        file.create_group("obsm/uni").attrs["encoding-type"] = "dataframe"
    file = open_embeddings(tmp_path / "x.h5ad", option="train")
    with pytest.raises(ConfigError, match=r"data frame.*adata\.obsm\['uni'\]\.to_numpy\(\)"):
        file.find_vectors("obsm/uni")
