"""Jobs import without passes of the garbage collector, and collect garbage afterwards."""

from __future__ import annotations

import ast
import gc
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from dpprobe.imports import defer_collection

SCRIPTS = sorted((Path(__file__).parents[2] / "scripts").glob("*.py"))
PROGRAM = """
import gc
from dpprobe.imports import defer_collection

passes = []
gc.callbacks.append(lambda phase, info: passes.append(phase))
with defer_collection():
    import unittest.mock, xml.dom.minidom, email.mime.text
    kept = [[] for _ in range(100_000)]
    print(len(passes), gc.isenabled())
frozen = gc.get_freeze_count()
later = []
later.append(later)
del later
print(frozen > 100_000, gc.isenabled(), gc.collect() > 0, gc.get_freeze_count() == frozen)
"""


def test_no_pass_happens_during_imports_and_none_visits_them_later() -> None:
    """In a process of its own: the exemption holds for all objects there."""
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    ).stdout
    assert said.splitlines() == ["0 False", "True True True True"]


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_before_after_a_failed_import(enabled: bool) -> None:
    was = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(ModuleNotFoundError), defer_collection():
            importlib.import_module("dpprobe.no_such_module")
        assert gc.isenabled() is enabled
    finally:
        gc.unfreeze()
        (gc.enable if was else gc.disable)()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_defer_collection_while_they_import(script: Path) -> None:
    tree = ast.parse(script.read_text(encoding="utf-8"))
    [job] = [
        node for node in ast.walk(tree) if isinstance(node, ast.With) and is_call(node, "job_log")
    ]
    assert not any(isinstance(node, ast.Import | ast.ImportFrom) for node in job.body)
    for node in job.body:
        if isinstance(node, ast.With) and is_call(node, "defer_collection"):
            assert all(isinstance(each, ast.Import | ast.ImportFrom) for each in node.body)


def is_call(node: ast.With, name: str) -> bool:
    call = node.items[0].context_expr
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == name
