"""Downloads a dataset and writes its split tables, by the module of its source.

A source is one module with an `Options` class and a `prepare` function, named in
`dpprobe.data.registry.SOURCES`.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from dpprobe import disk
from dpprobe.data import problems
from dpprobe.data.options import DatasetOptions
from dpprobe.data.registry import SOURCES


def download(options: DatasetOptions, directory: Path) -> None:
    """Fetches the files of a dataset into `directory`, and last writes its `receipt.json`.

    A file that is there already and has the right content is kept; an interrupted transfer goes
    on where it was.

    Raises:
      ConfigError: when something must be done first, such as accepting a licence.
      DownloadError: when the server does not give the right content.
    """
    # Heavy: requests, which planning does without.
    from dpprobe.data.downloads import write_receipt

    module = importlib.import_module(SOURCES[options.source])
    with disk.explained(directory, "files were fetched"):
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
      DataError: when its content cannot be a dataset.
    """
    module = importlib.import_module(SOURCES[options.source])
    with disk.explained(directory, "the split tables were written"):
        # A report of an earlier run would pass for one of this run.
        (directory / problems.FILE_NAME).unlink(missing_ok=True)
        if options.download_params() is None:
            module.prepare(options, directory)
        else:
            assert downloaded is not None
            module.prepare(options, directory, downloaded=downloaded)
