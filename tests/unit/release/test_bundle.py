"""A bundle is read only while each of its files is as its list of hashes says."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpprobe.errors import DataError
from dpprobe.release.bundle import LISTED_FILES, damaged_files, read_bundle
from tests.support.bundles import write_example


@pytest.mark.parametrize("name", LISTED_FILES)
def test_a_file_of_which_a_byte_is_altered_is_refused(tmp_path: Path, name: str) -> None:
    folder = write_example(tmp_path / "bundle")
    assert damaged_files(folder) == []
    path = folder / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert damaged_files(folder) == [name]
    with pytest.raises(
        DataError, match=f"{name}: missing, or changed after SHA256SUMS was written; fetch"
    ):
        read_bundle(folder)


@pytest.mark.parametrize("name", LISTED_FILES)
def test_a_missing_file_is_refused(tmp_path: Path, name: str) -> None:
    folder = write_example(tmp_path / "bundle")
    (folder / name).unlink()
    with pytest.raises(DataError, match=f"bundle: missing: {name}; fetch the bundle again"):
        read_bundle(folder)
