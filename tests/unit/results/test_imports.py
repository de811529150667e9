"""The weight of the results room: what only reads results need not wait for torch."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import importlib, pkgutil, sys
from dpprobe import results
for module in pkgutil.iter_modules(results.__path__):
    importlib.import_module(f"dpprobe.results.{module.name}")
print("torch" in sys.modules)
"""


def test_no_module_imports_torch() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert finished.stdout == "False\n"
