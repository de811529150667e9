"""Arrays in safetensors files, with a header."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from dpprobe import json_values
from dpprobe.errors import DataError
from dpprobe.files import array_files
from dpprobe.files.array_files import pack_tensors, read_arrays, require_short_header

WHOLE = np.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize("array", [WHOLE.T, WHOLE[:, ::2], WHOLE[::-1], WHOLE[:0], WHOLE[0]])
def test_views_of_arrays_are_packed_by_their_numbers(tmp_path: Path, array: np.ndarray) -> None:
    (tmp_path / "a").write_bytes(array_files.pack_arrays({"a": array}, {"format": "f"}))
    _, arrays = array_files.read_arrays(tmp_path / "a", kind="f", version=1)
    assert np.array_equal(arrays["a"], array)


def test_a_long_header_of_safetensors_is_not_read(tmp_path: Path) -> None:
    """The library would take minutes. A header longer than its file is left to the library."""
    path = tmp_path / "x.safetensors"
    path.write_bytes((2**22 + 1).to_bytes(8, "little") + b" " * (2**22 + 1))
    for read in (require_short_header, partial(read_arrays, kind="x", version=1)):
        with pytest.raises(OSError, match="a header of 4,194,305 bytes"):
            read(path)
    path.write_bytes(pack_tensors({"x": np.zeros(3)}, {}))
    require_short_header(path)


HEADER = {"format": "f", "format_version": 2}


def write_arrays(path: Path, metadata: dict[str, str] | None) -> int:
    path.write_bytes(save({"a": np.arange(3)}, metadata=metadata))
    return path.stat().st_size


def test_arrays_have_a_header_of_a_version_that_is_known(tmp_path: Path) -> None:
    path = tmp_path / "a"
    size = write_arrays(path, {"dpprobe": json_values.canonical_json(HEADER)})
    header, arrays = array_files.read_arrays(path, kind="f", version=2, largest=size)
    assert header == HEADER
    np.testing.assert_array_equal(arrays["a"], np.arange(3))
    with pytest.raises(DataError, match="f of version 2, newer than this dpprobe's 1; use the"):
        array_files.read_arrays(path, kind="f", version=1, largest=size)
    with pytest.raises(OSError, match=f"{size} bytes, more than {size - 1}"):
        array_files.read_arrays(path, kind="f", version=2, largest=size - 1)


@pytest.mark.parametrize("metadata", [None, {"x": "y"}, {"dpprobe": "[]"}, {"dpprobe": "3"}])
def test_arrays_without_a_header_are_refused_as_a_record(
    tmp_path: Path, metadata: dict[str, str] | None
) -> None:
    said = "has no attribute" if "dpprobe" in (metadata or {}) else "^'dpprobe'$"
    size = write_arrays(tmp_path / "a", metadata)
    with pytest.raises(ValueError, match=said):
        array_files.read_arrays(tmp_path / "a", kind="f", version=2, largest=size)
