"""Lists the parts of a release, one line each, in the order of their checks.

A start of Snakemake reads the declarations, so they import neither torch nor NumPy.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

# The package of each part, by the name of its block in the statement.
PARTS = {
    name: f"dpprobe.release.parts.{folder}"
    for name, folder in {
        "evaluation": "evaluation",
        "calibration": "calibration",
        "monitor": "monitor",
        "cohort": "cohort",
        "sites": "sites",
        "choice": "choice",
        "ledger": "spent",
        "evidence": "evidence",
        "predecessor": "predecessor",
        "signature": "signature",
    }.items()
}
# Blocks of every statement, null if a release has no such part, then those that are left out. The
# bytes of a statement depend on this order.
ALWAYS_STATED = ("evaluation", "choice", "ledger", "evidence")
STATED_IF_ASKED = ("calibration", "predecessor", "cohort", "monitor", "sites")


@cache
def load_parts() -> tuple[Any, ...]:
    """Imports the declaration of each part."""
    return tuple(importlib.import_module(package).PART for package in PARTS.values())


@cache
def load_steps() -> tuple[Any, ...]:
    """Imports what each part does while a release is made: classes, by the name of their part."""
    return tuple((name, importlib.import_module(f"{PARTS[name]}.measure").Steps) for name in PARTS)


@cache
def load_readers() -> tuple[Any, ...]:
    """Imports what verifies and shows each part."""
    return tuple(importlib.import_module(f"{package}.show").READER for package in PARTS.values())
