"""Datasets: from a source to two split tables and their description.

A source is one module with an `Options` class and a `prepare` function, named in
`dpprobe.config.SOURCES`.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpprobe.config import DatasetOptions

GROUP_PREFIX = "group_"


def group_column(name: str) -> str:
    """The name of a subgroup's column: `group_` before it, once."""
    return name if name.startswith(GROUP_PREFIX) else GROUP_PREFIX + name


def prepare(options: DatasetOptions, directory: Path) -> None:
    """Writes `train.parquet`, `test.parquet` and, last, `dataset.json` into `directory`.

    Raises:
      ConfigError: when the source is not there.
      DataError: when what it holds cannot be a dataset.
    """
    from dpprobe.config import SOURCES

    importlib.import_module(SOURCES[options.source]).prepare(options, directory)
