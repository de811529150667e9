"""Lists all analyses, one line each: the package, the version and the folder of records.

This module imports only the standard library, because `make clean` reads the registry even if the
environment is missing. An analysis's package is imported only when its declaration is needed.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, NamedTuple


class Registered(NamedTuple):
    """An analysis that the workflow knows.

    Attributes:
      package: the package that declares the analysis as `ANALYSIS`.
      version: raise this if the analysis's output changes, so that finished studies rerun it.
      folder: the folder of the analysis's records, in results_dir.
    """

    package: str
    version: int
    folder: str


ANALYSES: dict[str, Registered] = {
    "audit": Registered("dpprobe.analyses.audit", 5, "audit"),
    "long_tail": Registered("dpprobe.analyses.long_tail", 2, "long_tail"),
    "representation_law": Registered("dpprobe.analyses.representation_law", 2, "layers"),
    "fairness": Registered("dpprobe.analyses.fairness", 4, "fairness"),
    "group_gradients": Registered("dpprobe.analyses.group_gradients", 1, "group_gradients"),
    "imbalance": Registered("dpprobe.analyses.imbalance", 3, "imbalance"),
    "tsne": Registered("dpprobe.analyses.tsne", 1, "embeddings"),
    "sites": Registered("dpprobe.analyses.sites", 1, "sites"),
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
