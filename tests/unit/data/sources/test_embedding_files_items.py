"""Folders with one file per item, as pathology tools write them, and HDF5 and .pt files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from dpprobe.data import dataset_preparation
from dpprobe.data.file_states import hash_file_states
from dpprobe.data.registry import dataset_options
from dpprobe.data.sources.embedding_files import open_embeddings
from dpprobe.data.sources.item_files import pool_patches
from dpprobe.data.table import SPLITS, SplitTable
from dpprobe.errors import ConfigError, DataError
from dpprobe.features.feature_store import FeatureStore
from tests.support.sources import write_table
from tests.unit.data.sources.test_embeddings import EXTERNAL, read_rows
from tests.unit.features.test_extraction import extract

Array = npt.NDArray[Any]
ITEMS = [f"s{number}" for number in range(12)]
HASHED = ["image", "image_sha256"]
PATIENTS = [f"p{number // 2}" for number in range(12)]
Write = Callable[[Path, str, Array], None]


def by_trident(folder: Path, name: str, features: Array) -> None:
    """Writes as save_h5 of trident/IO.py does, mahmoodlab/TRIDENT 98de6dbb: chunks of one row."""
    coords = np.zeros((len(features), 2), np.int64)
    with h5py.File(folder / f"{name}.h5", "w") as file:
        for key, values in {"features": features, "coords": coords}.items():
            more = values.shape[1:]
            part = file.create_dataset(
                key, values.shape, values.dtype, maxshape=(None, *more), chunks=(1, *more)
            )
            part[:] = values
            part.attrs["name"] = name


def by_clam(folder: Path, name: str, features: Array) -> None:
    """Appends batches as save_hdf5 of utils/file_utils.py does, mahmoodlab/CLAM e033abbd."""
    with h5py.File(folder / f"{name}.h5", "w") as file:
        for batch in np.array_split(features, 2):
            for key, values in {"features": batch, "coords": batch[:, :2].astype("i4")}.items():
                more = values.shape[1:]
                if key not in file:
                    file.create_dataset(
                        key, values.shape, values.dtype, maxshape=(None, *more), chunks=(32, *more)
                    )[:] = values
                else:
                    file[key].resize(len(file[key]) + len(values), axis=0)
                    file[key][len(file[key]) - len(values) :] = values


def by_slide2vec(folder: Path, name: str, features: Array) -> None:
    """Writes as write_tile_embeddings of slide2vec/artifacts.py, clemsgrs/slide2vec 1a8f9ea1."""
    torch.save(torch.as_tensor(features), folder / f"{name}.pt")


def in_npz(folder: Path, name: str, features: Array) -> None:
    """Writes slide2vec's other format."""
    np.savez_compressed(folder / f"{name}.npz", features=features, tile_index=np.arange(3))


WRITERS: list[Write] = [by_trident, by_clam, by_slide2vec, in_npz]


def make_items(seed: int = 0) -> dict[str, Array]:
    """Returns 1 to 1,500 patches of 5 numbers for each item; 1,500 exceed one block."""
    generator = np.random.default_rng(seed)
    sizes = [*range(2, 13), 1500]
    return {
        name: generator.normal(size=(size, 5)).astype(np.float32)
        for name, size in zip(ITEMS, sizes, strict=True)
    }


def options(folder: Path, write: Write, items: dict[str, Array], **more: Any) -> Any:
    (folder / "in").mkdir(exist_ok=True)
    for name, features in items.items():
        write(folder / "in", name, features)
    rows = zip(ITEMS, PATIENTS, strict=True)
    lines = [{"id": name, "who": who, "kind": "ab"[int(who[1:]) % 2]} for name, who in rows]
    write_table(folder / "x.csv", lines)
    given = {"root": str(folder), "train": "in", "table": "x.csv", "id_column": "id"}
    labels = {"label_column": "kind", "class_names": ["a", "b"], "unit_column": "who"}
    return dataset_options({"source": "embeddings", "pool": "mean"} | given | labels | more)


def prepare(*given: Any, **more: Any) -> Path:
    tables: Path = given[0] / "tables"
    dataset_preparation.prepare_dataset(options(*given, **more), tables)
    return tables


@pytest.mark.parametrize("pool", ["mean", "max"])
@pytest.mark.parametrize("write", WRITERS)
def test_items_of_tools_are_pooled_up_to_features(tmp_path: Path, write: Write, pool: Any) -> None:
    items = make_items()
    tables = prepare(tmp_path, write, items, pool=pool)
    names: list[str] = []
    for split in ("train", "test"):
        store: FeatureStore = extract(
            tables, tmp_path / split, split=split, backbone=EXTERNAL, backbone_name="vectors",
            batch_size=4,
        )  # fmt: skip
        wanted = [getattr(items[name].astype(np.float64), pool)(axis=0) for name in store.ids]
        np.testing.assert_allclose(store.read(), wanted, rtol=1e-6, atol=1e-7)
        names += store.ids
    assert sorted(names) == sorted(ITEMS)


def test_each_row_depends_on_its_own_file(tmp_path: Path) -> None:
    before = read_rows(prepare(tmp_path, by_trident, make_items()), "vectors")
    items = make_items()
    items["s3"] = items["s3"][:1] * 100
    after = read_rows(prepare(tmp_path, by_trident, items), "vectors")
    changed = [name for name in ITEMS if not np.array_equal(before[name], after[name])]
    assert changed == ["s3"]


@given(
    patches=arrays(
        np.float32, array_shapes(min_dims=2, max_dims=2), elements=st.floats(-1e6, 1e6, width=32)
    ),
    step=st.integers(1, 4),
)
def test_pooling_equals_that_of_numpy(patches: Array, step: int) -> None:
    blocks = [patches[start : start + step] for start in range(0, len(patches), step)]
    mean = patches.astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(pool_patches(blocks, "mean"), mean, rtol=1e-9, atol=1e-6)
    assert np.array_equal(pool_patches(blocks, "max"), patches.max(axis=0))


@pytest.mark.parametrize("shape", [(5,), (1, 5), (1, 1, 5)])
def test_one_vector_per_item_needs_no_pool(tmp_path: Path, shape: tuple[int, ...]) -> None:
    items = {name: patches[0].reshape(shape) for name, patches in make_items().items()}
    rows = read_rows(prepare(tmp_path, by_slide2vec, items, pool=None), "vectors")
    assert all(np.array_equal(rows[name], items[name].ravel()) for name in ITEMS)


@pytest.mark.parametrize("pool", ["mean", "max"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_pooled_items_with_nonfinite_numbers_are_refused(
    tmp_path: Path, value: float, pool: str
) -> None:
    items = make_items()
    items["s3"][2, 4] = value
    with pytest.raises(DataError, match=r"\(id s3\): x\.csv line 5: .*number 4 is nan"):
        prepare(tmp_path, by_trident, items, pool=pool)


def of_link(folder: Path, name: str, _: Array) -> None:
    with h5py.File(folder / f"{name}.h5", "w") as file:
        file["features"] = h5py.ExternalLink("other.h5", "features")


def of_promise(folder: Path, name: str, _: Array) -> None:
    with h5py.File(folder / f"{name}.h5", "w") as file:
        file.create_dataset("features", (10**9, 100), "f4", chunks=(1024, 100))


def of_texts(folder: Path, name: str, _: Array) -> None:
    with h5py.File(folder / f"{name}.h5", "w") as file:
        file["features"] = np.full((3, 5), b"1")


def of_objects(folder: Path, name: str, _: Array) -> None:
    torch.save({"features": Path("x")}, folder / f"{name}.pt")


def of_arrays(folder: Path, name: str, _: Array) -> None:
    with h5py.File(folder / f"{name}.h5", "w") as file:
        vectors = file.create_dataset("features", (3,), h5py.vlen_dtype("f4"))
        vectors[:] = [np.ones(5, "f4")] * 3


def of_view(folder: Path, name: str, _: Array) -> None:
    torch.save(torch.zeros(1).expand(10**9, 5), folder / f"{name}.pt")


def of_nothing(folder: Path, name: str, _: Array) -> None:
    (folder / f"{name}.h5").write_bytes(b"no file")


HOSTILE: list[tuple[Write, str]] = [
    (of_link, "h5: cannot be read ('features' is a link to another place; copy the array"),
    (of_promise, "h5: cannot be read ('features' needs 400000.0 MB, but the file has"),
    (of_texts, "h5: array 'features' has the shape (3, 5), type |S1; save it as float32"),
    (
        of_arrays,
        "h5: array 'features' has the shape (3,), type object; save it as float32 numbers, "
        "such as by `features = numpy.stack(features)",
    ),
    (
        of_objects,
        "pt: cannot be read (it contains objects other than tensors; save it with torch.save(",
    ),
    (of_view, "pt: cannot be read ('' needs 20000.0 MB, but the file has"),
    (of_nothing, "h5: cannot be read (Unable to "),
]


@pytest.mark.parametrize(("write", "said"), HOSTILE)
def test_hostile_items_are_refused_in_a_line(tmp_path: Path, write: Write, said: str) -> None:
    def write_item(folder: Path, name: str, features: Array) -> None:
        (write if name == "s3" else by_trident)(folder, name, features)

    with pytest.raises((ConfigError, DataError)) as raised:
        prepare(tmp_path, write_item, make_items())
    (line,) = str(raised.value).splitlines()
    row = "train row 1 (id s3): x.csv line 5: "
    assert line.startswith(f"{row}{tmp_path / 'in' / 's3'}.{said}")


def drop_s3(folder: Path, write: Write, items: dict[str, Array], **more: Any) -> Path:
    """Prepares items; checks that only s3 may be unreadable; returns the tables' folder."""
    tables = prepare(folder, write, items, unreadable="drop", **more)
    nulls = [
        name
        for split in SPLITS
        if (found := SplitTable(tables / f"{split}.parquet"))
        for name in np.array(found.read_ids())[list(found.nulls)]
    ]
    assert nulls == ["s3"]
    return tables


def of_nan(folder: Path, name: str, features: Array) -> None:
    by_trident(folder, name, np.where(features == features[0, 0], np.nan, features))


def of_no_file(folder: Path, name: str, features: Array) -> None:
    """Writes no file."""


@pytest.mark.parametrize("first", [False, True], ids=["s3", "first"])
@pytest.mark.parametrize("write", [of_link, of_objects, of_nothing, of_nan, of_no_file])
def test_an_unreadable_item_is_a_null_example(tmp_path: Path, write: Write, first: bool) -> None:
    """Everything else equals the tables of readable items, even if the first file is damaged."""
    items = make_items()
    if first:  # the first file belongs to no row
        by_slide2vec(tmp_path, "a", items["s0"])
        (tmp_path / "in").mkdir()
        (tmp_path / "in/a.pt").write_bytes(b"no file")
    whole = prepare(tmp_path, by_trident, items)
    before = {split: pq.read_table(whole / f"{split}.parquet") for split in SPLITS}
    for path in (tmp_path / "in").glob("s3.*"):
        path.unlink()
    del items["s3"]
    write(tmp_path / "in", "s3", make_items()["s3"])
    tables = drop_s3(tmp_path, by_trident, items)
    for split in SPLITS:
        after = pq.read_table(tables / f"{split}.parquet")
        assert after.drop_columns(HASHED).equals(before[split].drop_columns(HASHED))
        for row, (one, other) in enumerate(
            zip(before[split].to_pylist(), after.to_pylist(), strict=True)
        ):
            assert (one == other) == (one["id"] != "s3"), row
    listed = (tables / "problems.csv").read_text()
    assert listed.count("unreadable, so a null example") == listed.count(",s3,") == 1


@pytest.mark.parametrize("damaged", [False, True])
def test_no_item_chooses_the_array_of_others(tmp_path: Path, damaged: bool) -> None:
    """Only s0 has `features` as its single array; without s0, the array X would be chosen."""
    write: Write = of_nothing if damaged else by_trident
    (tmp_path / "in").mkdir()
    write(tmp_path / "in", "s0", make_items()["s0"])
    items = {name: patches for name, patches in make_items().items() if name != "s0"}

    def with_x(folder: Path, name: str, features: Array) -> None:
        np.savez(folder / f"{name}.npz", features=features, X=features + 1)

    if damaged:
        assert len(read_rows(prepare(tmp_path, with_x, items, unreadable="drop"), "vectors")) == 11
    else:
        with pytest.raises(DataError, match=r"'features' in .*s0\.h5, but 'features', 'X' here"):
            prepare(tmp_path, with_x, items, unreadable="drop")
    named = prepare(tmp_path, with_x, items, unreadable="drop", vectors={"vectors": "features"})
    rows = read_rows(named, "vectors")
    assert np.array_equal(rows["s1"], make_items()["s1"].astype(np.float64).mean(0).astype("f4"))


def test_items_in_two_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    by_slide2vec(tmp_path / "in", "s3", np.ones((2, 5)))
    with pytest.raises(DataError, match=r"in: item 's3' has s3\.h5 and s3\.pt; keep one file"):
        prepare(tmp_path, by_trident, make_items())


@pytest.mark.parametrize("unreadable", ["error", "drop"])
def test_all_faulty_items_are_reported_together(tmp_path: Path, unreadable: str) -> None:
    items = make_items() | {"s3": np.zeros((2, 4)), "s4": np.zeros((2, 5), bool)}
    (tmp_path / "in").mkdir()
    by_slide2vec(tmp_path / "in", "s5", np.ones((2, 5)))
    with pytest.raises(DataError) as told:
        prepare(tmp_path, by_trident, items, unreadable=unreadable)
    for said in (
        r"3 files with other vectors",
        r"s3\.h5: .*4\), but 5",
        "s4.*bool",
        "s5.*keep one",
    ):
        assert re.search(said, str(told.value)), (said, told.value)


def test_rows_that_are_left_out_need_no_file(tmp_path: Path) -> None:
    items = make_items()
    del items["s3"]
    kept = {"filters": {"who": [who for who in sorted({*PATIENTS}) if who != "p1"]}}
    rows = read_rows(prepare(tmp_path, by_trident, items, **kept), "vectors")
    assert sorted(rows) == sorted({*ITEMS} - {"s2", "s3"})


def test_pool_and_files_decide_the_tables(tmp_path: Path) -> None:
    mean, largest = (options(tmp_path, by_trident, make_items(), pool=p) for p in ("mean", "max"))
    assert mean.preparation_params() != largest.preparation_params()
    assert mean.image_params() == largest.image_params(), "the same people"
    assert "pool" not in options(tmp_path, by_trident, {}, pool=None).preparation_params()
    before = hash_file_states(mean.list_source_files())
    by_trident(tmp_path / "in", "s3", np.ones((700, 5)))
    assert hash_file_states(mean.list_source_files()) != before


def test_hdf5_lists_data_sets_in_groups(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file["uni/features"] = np.ones((3, 2), np.float16)
        file["kind"], file["version"], file["none"] = [b"a", b"b", b"a"], 3, h5py.Empty("f4")
    found = open_embeddings(tmp_path / "x.hdf5", option="train")
    assert found.list_vectors() == {"uni/features": (3, 2)}
    assert found.columns == ("kind",)
    assert found.read_columns(["kind"]) == {"kind": ["a", "b", "a"]}


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.int64])
def test_pt_files_of_all_rows(tmp_path: Path, kind: torch.dtype) -> None:
    vectors = torch.arange(6).reshape(3, 2).to(kind)
    torch.save({"X": vectors, "kind": torch.tensor([1, 0, 1])}, tmp_path / "x.pt")
    found = open_embeddings(tmp_path / "x.pt", option="train")
    assert found.read_columns(["kind"]) == {"kind": ["1", "0", "1"]}
    ((block,),) = found.read_blocks([found.find_vectors(None)])
    assert block.tolist() == vectors.tolist()


def with_arrays(**arrays: Array) -> Write:
    def write(folder: Path, name: str, features: Array) -> None:  # noqa: ARG001
        with h5py.File(folder / f"{name}.H5", "w") as file:
            for key, values in arrays.items():
                file[key] = values

    return write


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"coords": np.ones((3, 2), "i4")}, r"'coords' .*int32, which do not seem to be vectors"),
        ({"coords": np.ones((3, 2))}, r"'coords' .*float64, which do not seem to be vectors"),
        ({"tile_index": np.ones((3, 2), "f4")}, "'tile_index'"),
        ({"tokens": np.ones((3, 2), "i8")}, r"int64, .*write `vectors: {NAME: tokens}`"),
    ],
)
def test_an_array_that_seems_to_be_no_vectors_must_be_named(
    tmp_path: Path, arrays: dict[str, Array], said: str
) -> None:
    """CLAM, for example, writes a folder of patches next to its folder of features."""
    write = with_arrays(**arrays)
    with pytest.raises(ConfigError, match=said):
        prepare(tmp_path, write, make_items())
    (name,) = arrays
    assert (
        len(
            read_rows(
                prepare(tmp_path, write, make_items(), vectors={"v": name}, duplicates="warn"), "v"
            )
        )
        == 12
    )
