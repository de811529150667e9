"""Fixture of a study with analyses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study
from tests.support.asking_studies import FULL, write_rows


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Study]:
    """Returns a function that loads the study with added or replaced parts."""
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path)
    return lambda **changes: load_study(FULL | changes)
