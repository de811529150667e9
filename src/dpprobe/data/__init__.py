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


def download(options: DatasetOptions, directory: Path) -> None:
    """Fetches what a dataset is made of into `directory`, and last writes its `receipt.json`.

    What is there already and has the right content is kept; an interrupted transfer goes on
    where it was.

    Raises:
      ConfigError: when something must be done first, such as accepting a licence.
      DownloadError: when the other side does not give what it should.
    """
    from dpprobe.config import SOURCES
    from dpprobe.data.downloads import write_receipt

    module = importlib.import_module(SOURCES[options.source])
    directory.mkdir(parents=True, exist_ok=True)
    fetched = module.download(options, directory)
    write_receipt(directory, fetched, params=options.download_params())


def prepare(options: DatasetOptions, directory: Path, *, downloaded: Path | None = None) -> None:
    """Writes `train.parquet`, `test.parquet` and, last, `dataset.json` into `directory`.

    Args:
      options: the dataset's.
      directory: where the tables go.
      downloaded: the folder that `download` filled, for a source that needs one.

    Raises:
      ConfigError: when the source is not there.
      DataError: when what it holds cannot be a dataset.
    """
    from dpprobe.config import SOURCES

    module = importlib.import_module(SOURCES[options.source])
    if options.download_params() is None:
        module.prepare(options, directory)
    else:
        assert downloaded is not None
        module.prepare(options, directory, downloaded=downloaded)
