"""The analyses of the project: one line each, with its package, version and folder of records.

Nothing but the standard library is imported: `make clean` reads the registry where the environment
is gone. A package is imported where its declaration is needed.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, NamedTuple


class Registered(NamedTuple):
    """An analysis that the workflow knows.

    Attributes:
      package: its package, whose `ANALYSIS` declares it.
      version: of what it writes; raise it when that changes, and finished studies measure again.
      folder: of its records, in the results.
    """

    package: str
    version: int
    folder: str


ANALYSES: dict[str, Registered] = {
    "audit": Registered("dpprobe.analyses.audit", 3, "audit"),
    "long_tail": Registered("dpprobe.analyses.long_tail", 1, "long_tail"),
    "representation_law": Registered("dpprobe.analyses.representation_law", 1, "layers"),
    "fairness": Registered("dpprobe.analyses.fairness", 2, "fairness"),
    "imbalance": Registered("dpprobe.analyses.imbalance", 2, "imbalance"),
    "tsne": Registered("dpprobe.analyses.tsne", 1, "embeddings"),
    "zero_shot": Registered("dpprobe.analyses.zero_shot", 4, "zero_shot"),
    "few_shot": Registered("dpprobe.analyses.few_shot", 4, "few_shot"),
}
VERSIONS = {name: registered.version for name, registered in ANALYSES.items()}
FOLDERS = frozenset(registered.folder for registered in ANALYSES.values())


@cache
def load_analyses() -> tuple[Any, ...]:
    """Imports the declaration of each analysis, in the order of the registry."""
    packages = (registered.package for registered in ANALYSES.values())
    return tuple(importlib.import_module(package).ANALYSIS for package in packages)
