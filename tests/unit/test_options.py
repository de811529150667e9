"""The types of names and folders that options share."""

from __future__ import annotations

import pytest

from dpprobe.options import FOLDER_PATTERN
from dpprobe.study.study_file import load_study
from tests.support.small_study import STUDY


@pytest.mark.parametrize(
    ("written", "folder"),
    [
        ("results", "results"),
        ("results/", "results"),
        ("./a/b", "a/b"),
        ("/scratch/jürgen/x-1",) * 2,
    ],
)
def test_folders_are_written_one_way(written: str, folder: str) -> None:
    import re

    assert load_study(STUDY | {"results_dir": written}).results_dir == folder
    assert re.search(f"^{FOLDER_PATTERN}$", written)
