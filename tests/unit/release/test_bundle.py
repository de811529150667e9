"""A bundle is read only while each of its files is as its list of hashes says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from dpprobe.errors import DataError
from dpprobe.release.bundle import (
    FACTS_FILE,
    HEAD_FILE,
    LISTED_FILES,
    STATEMENT_FILE,
    damaged_files,
    read_bundle,
    write_sums,
)
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


WEIGHTS = np.zeros((3, 65), np.float32)
FOREIGN: dict[str, list[bytes]] = {
    HEAD_FILE: [
        b"", b"x" * 99, save({}), save({"weight": WEIGHTS}), save({"weights": WEIGHTS[:, 1:]}),
        save({"weights": WEIGHTS.astype(np.float64)}), save({"weights": WEIGHTS + np.inf}),
        save({"weights": WEIGHTS, "class_priors": np.zeros(3, np.int32)}),
    ],
    FACTS_FILE: [b"", b"{", b"[]", b"{}", b'"x"', b"[" * 9999],
    STATEMENT_FILE: [
        b"", b"{", b"[]", b'"x"', b"7", b'{"calibration": 3}', b'{"calibration": {}}',
        b'{"calibration": {"scale": 1, "offset": 0, "sets": [3]}}',
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_a_stranger_s_file_with_its_right_hash_is_refused_in_one_line(
    tmp_path: Path, name: str
) -> None:
    folder = write_example(tmp_path / "bundle")
    for content in FOREIGN[name]:
        (folder / name).write_bytes(content)
        write_sums(folder)
        with pytest.raises(DataError, match=str(folder)) as caught:
            read_bundle(folder)
        assert "\n" not in str(caught.value)
