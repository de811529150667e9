"""HDF5 files from strangers cannot exhaust memory or time by their chunks, levels or texts."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from dpprobe.files import plain_files
from dpprobe.files.hdf5_files import open_hdf5, read_column


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.h5"


def share_one_text(path: Path, text: bytes, rows: int) -> None:
    """Writes a column whose rows all refer to one text that is stored once."""
    with h5py.File(path, "w") as file:
        column = file.create_dataset("id", (rows,), h5py.string_dtype())
        column[0] = text
        place = column.id.get_offset()
    content = bytearray(path.read_bytes())
    reference = content[place : place + 16]
    content[place : place + 16 * rows] = bytes(reference) * rows
    path.write_bytes(content)


def test_texts_are_read_in_blocks_and_equal_those_of_h5py(path: Path) -> None:
    texts = [f"p{number}" * (number % 7) for number in range(3000)]
    with h5py.File(path, "w") as file:
        file["id"] = texts
        file["n"] = np.arange(5)
    with open_hdf5(path) as file:
        assert [text.decode() for text in read_column(file["id"])] == texts
        np.testing.assert_array_equal(read_column(file["n"]), np.arange(5))


def test_one_text_of_many_rows_is_refused_before_it_fills_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share_one_text(path, b"x" * 2**21, 600)
    with open_hdf5(path) as file, pytest.raises(OSError, match="a string of more than 1,048,576"):
        read_column(file["id"])
    share_one_text(path, b"x" * 50_000, 600)
    with open_hdf5(path) as file:
        assert {len(text) for text in read_column(file["id"])} == {50_000}
    monkeypatch.setattr(plain_files, "ALWAYS_READ", 10**6)
    with open_hdf5(path) as file, pytest.raises(OSError, match="'/id' needs .* less than 1/100"):
        read_column(file["id"])


def test_chunks_and_levels_out_of_proportion_are_refused(path: Path) -> None:
    with h5py.File(path, "w") as file:
        shape = (60, 4)
        file.create_dataset("x", shape, "f4", chunks=(10**8, 4), maxshape=(None, 4), compression=1)
    with pytest.raises(OSError, match="'x' needs 1600.0 MB"), open_hdf5(path):
        pass
    for levels, refused in ((31, False), (32, True)):
        with h5py.File(path, "w") as file:
            file.create_group("/".join("a" * levels))
        if refused:
            with pytest.raises(OSError, match="more than 32 levels"), open_hdf5(path):
                pass
        else:
            with open_hdf5(path) as file:
                assert list(file) == ["a"]
