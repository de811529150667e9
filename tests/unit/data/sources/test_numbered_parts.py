"""Numbered parts: their order, and errors for missing, repeated and unpaired parts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from dpprobe.data.sources.numbered_parts import check_pairs, list_parts, number_parts
from dpprobe.errors import ConfigError


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).touch()


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (["a_10.npy", "a_2.npy", "a_1.npy"], ["a_1.npy", "a_2.npy", "a_10.npy"]),
        (["a_10.npy", "a_9.npy"], ["a_9.npy", "a_10.npy"]),
        (["a_09.npy", "a_10.npy"], ["a_09.npy", "a_10.npy"]),
        # names that also differ elsewhere are sorted as names
        (["b_10.npy", "b_9.npy", "a_11.npy"], ["a_11.npy", "b_10.npy", "b_9.npy"]),
    ],
)
def test_numbers_decide_the_order(tmp_path: Path, names: Sequence[str], order: list[str]) -> None:
    put(tmp_path, *names)
    assert [path.name for path in list_parts(tmp_path / "*.npy")] == order


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        ([f"img_emb_{n}.npy" for n in range(12)], list(range(12))),
        (["x-00003-of-00005.npy", "x-00004-of-00005.npy"], [3, 4]),
        (["x-00003-of-00005.npy"], [5]),  # a single file does not show which number counts parts
        (["v2_7.npy", "v2_8.npy"], [7, 8]),
        (["vectors.npy"], [0]),
    ],
)
def test_the_number_that_differs_names_a_part(
    tmp_path: Path, names: list[str], numbers: list[int]
) -> None:
    put(tmp_path, *names)
    parts = number_parts(tmp_path / "*.npy")
    assert list(parts) == numbers
    assert [path.name for path in parts.values()] == names


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a_0.npy", "a_1.npy", "a_3.npy"], "no a_2.npy between a_1.npy and a_3.npy; put the part"),
        (["a_08.npy", "a_10.npy"], "no a_09.npy between a_08.npy and a_10.npy"),
        (["a_9.npy", "a_12.npy"], "no a_10.npy between a_9.npy and a_12.npy"),
        (["a_2.npy", "a_02.npy"], "a_02.npy and a_2.npy are both part 2; keep one"),
        (["a_1.npy", "a_2.npy", "a_002.npy"], "a_002.npy and a_2.npy are both part 2; keep one"),
        (["a_1.npy", "b_2.npy"], "the order of a_1.npy and b_2.npy is not known"),
        (["a_1_1.npy", "a_2_2.npy"], "the order of a_1_1.npy and a_2_2.npy is not known"),
        (["a.npy", "a_1.npy"], "the order of a.npy and a_1.npy is not known"),
    ],
)
def test_missing_and_doubled_parts_are_named(tmp_path: Path, names: list[str], said: str) -> None:
    put(tmp_path, *names)
    with pytest.raises(ConfigError, match=re.escape(f"*.npy: {said}")):
        number_parts(tmp_path / "*.npy")


@pytest.mark.parametrize(
    ("tables", "rows", "said"),
    [
        ("0 1 2", [5, 6, 7], None),
        ("00 01 02", [5, 6, 7], None),
        ("0 1", [5, 6], r"m_\*\.parquet: no part 2, but \S*v_2\.npy exists; add the part"),
        ("0 1 2 3", [5, 6, 7, 8], r"v_\*\.npy: no part 3, but \S*m_3\.parquet exists"),
        ("1 2 3", [5, 6, 7], r"m_\*\.parquet: no part 0, but \S*v_0\.npy exists"),
        ("0 1 2", [5, 7, 6], r"m_1\.parquet: 7 rows, but 6 vectors in \S*v_1\.npy; store one row"),
    ],
)
def test_parts_are_paired_by_number_and_counted(
    tmp_path: Path, tables: str, rows: list[int], said: str | None
) -> None:
    vectors = {tmp_path / f"v_{n}.npy": 5 + n for n in range(3)}
    lines = {
        tmp_path / f"m_{n}.parquet": count for n, count in zip(tables.split(), rows, strict=True)
    }
    put(tmp_path, *(path.name for path in (*vectors, *lines)))
    given = (tmp_path / "v_*.npy", vectors, tmp_path / "m_*.parquet", lines)
    if said is None:
        check_pairs(*given)
        return
    with pytest.raises(ConfigError, match=said):
        check_pairs(*given)
