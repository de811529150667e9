"""Lists the parts of a release, one line each, in the order of their checks.

Each start of Snakemake imports the declarations, so they import neither torch nor NumPy.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple


class Registered(NamedTuple):
    """A part of a release.

    Attributes:
      package: the package that may declare the part as `PART`; its module `measure` has `Steps`.
      reader: the package's module that has `READER`.
    """

    package: str
    reader: str = "measure"


# Release parts, by the name of the part's block in the statement.
PARTS = {
    "evaluation": Registered("dpprobe.release.parts.evaluation", "show"),
    "calibration": Registered("dpprobe.release.parts.calibration"),
    "monitor": Registered("dpprobe.release.parts.monitor"),
    "cohort": Registered("dpprobe.release.parts.cohort"),
    "sites": Registered("dpprobe.release.parts.sites"),
    "choice": Registered("dpprobe.release.parts.choice"),
    "ledger": Registered("dpprobe.release.parts.spent"),
    "evidence": Registered("dpprobe.release.parts.evidence"),
    "predecessor": Registered("dpprobe.release.parts.predecessor"),
    "signature": Registered("dpprobe.release.parts.signature"),
}
# Blocks of every statement, null if a release lacks the part; then blocks that exist only if the
# release has the part. The bytes of a statement depend on the order of blocks.
ALWAYS_STATED = ("evaluation", "choice", "ledger", "evidence")
STATED_IF_ASKED = ("calibration", "predecessor", "cohort", "monitor", "sites")


@cache
def load_parts() -> Mapping[str, Any]:
    """Imports the declaration of each part that has options or faults, by part name."""
    modules = {name: importlib.import_module(part.package) for name, part in PARTS.items()}
    return {name: module.PART for name, module in modules.items() if hasattr(module, "PART")}


@cache
def load_steps() -> Mapping[str, Any]:
    """Imports each part's `Steps`, the class that is used while a release is made, by part name."""
    modules = {name: f"{part.package}.measure" for name, part in PARTS.items()}
    return {name: importlib.import_module(module).Steps for name, module in modules.items()}


def load_asked(release: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields name, `Steps` and options of each part that a release's `ReleaseOptions` request."""
    declared = load_parts()
    for name, steps in load_steps().items():
        options = declared[name].options if name in declared else None
        asked = None if options is None else release.block(options)
        if asked is not None or options is None:
            yield name, steps, asked


@cache
def load_readers() -> Mapping[str, Any]:
    """Imports each part's `READER`, which verifies, reads and shows the part's block, by name."""
    modules = {name: f"{part.package}.{part.reader}" for name, part in PARTS.items()}
    return {name: importlib.import_module(module).READER for name, module in modules.items()}
