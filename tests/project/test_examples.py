"""Examples in docstrings produce the output that they show."""

from __future__ import annotations

import doctest
import re
from importlib import import_module
from pathlib import Path

import pytest

import dpprobe
from tests.conftest import REPOSITORY

SOURCE = REPOSITORY / "src"
MODULES = [
    ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for path in sorted(SOURCE.rglob("*.py"))
    if re.search(r"^ +>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)
]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_their_output(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # examples name folders that do not exist
    result = doctest.testmod(import_module(name), optionflags=FLAGS)
    assert result.attempted > 0
    assert result.failed == 0, "the output above shows which"


@pytest.mark.parametrize("name", dpprobe.__all__)
def test_every_public_name_has_an_example(name: str) -> None:
    assert ">>> " in (getattr(dpprobe, name).__doc__ or "")
