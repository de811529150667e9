"""The page lists every function that fits a private head, with its checks, as found in the code."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.support.script_modules import load_script


@pytest.fixture(scope="module")
def entries(repository: Path) -> ModuleType:
    return load_script(repository / "tools/pages/entries.py")


def test_the_table_of_ways_is_the_code_s(entries: ModuleType) -> None:
    page = entries.PAGE.read_text(encoding="utf-8")
    assert page == entries.rewrite_page(page), "run `make schema`"


def test_every_way_to_a_head_is_listed_and_checks_its_public_files(entries: ModuleType) -> None:
    calls = entries.read_calls()
    assert entries.find_unlisted(calls) == []
    for way, start in entries.WAYS.items():
        names = {function.split(":")[1].split(".")[-1] for function in entries.reach(start, calls)}
        assert {"require_files", "check_plan"} <= names, way
        assert "check_rows" in names or "made-up rows" in way, way
    hidden = {name: targets - {"heads/fit.py:fit_heads"} for name, targets in calls.items()}
    hidden["data/new.py:fit_somewhere"] = {"heads/fit.py:fit_heads"}
    assert entries.find_unlisted(hidden) == ["data/new.py:fit_somewhere"]
