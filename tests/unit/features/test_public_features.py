"""Public features from .npy files: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpprobe.errors import DataError, StoreError
from dpprobe.features.public_features import ArrayFile, open_rows
from tests.support.refusals import refuses


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int8"])
def test_rows_of_a_file_are_read_in_blocks_and_one_by_one(tmp_path: Path, kind: str) -> None:
    drawn = np.random.default_rng(0).standard_normal((11, 5)) * 9
    rows = drawn.astype(np.float32).astype(kind)
    np.save(tmp_path / "public.npy", rows)
    store = open_rows(tmp_path / "public.npy")
    assert isinstance(store, ArrayFile)
    assert (store.rows, store.dimension) == (11, 5)
    blocks = [*store.read_blocks(4)]
    assert [start for start, _ in blocks] == [0, 4, 8]
    np.testing.assert_array_equal(np.concatenate([block for _, block in blocks]), rows)
    assert blocks[0][1].dtype == np.float32
    np.testing.assert_array_equal(store.read_rows(np.array([7, 2])), rows[[7, 2]])


@pytest.mark.parametrize(
    "values",
    [np.ones(4), np.ones((2, 3, 4)), np.ones((0, 4)), np.array([["a"]]), np.array([[1j]])],
    ids=["one axis", "three axes", "no row", "text", "complex"],
)
def test_public_arrays_that_are_not_rows_of_numbers_are_refused(
    tmp_path: Path, values: Any
) -> None:
    np.save(tmp_path / "public.npy", values)
    with refuses(DataError, "public.npy", "np.save"):
        open_rows(tmp_path / "public.npy")


def test_unreadable_or_missing_array_files_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "empty.npy").write_bytes(b"")
    np.savez(tmp_path / "several.npz", np.ones((2, 2)))
    (tmp_path / "several.npz").rename(tmp_path / "several.npy")
    for name in ("objects.npy", "empty.npy", "several.npy", "missing.npy"):
        with refuses(DataError, name, "np.save"):
            open_rows(tmp_path / name)
    with pytest.raises(StoreError):
        open_rows(tmp_path / "missing.json")
