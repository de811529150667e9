"""Downloads a dataset and writes its split tables, with the module of the dataset's source.

A source is a module with an `Options` class and a `prepare` function, in `data.registry.SOURCES`.
"""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path

from dpprobe.data import problems
from dpprobe.data.downloads.download_receipt import write_receipt
from dpprobe.data.options import DatasetOptions
from dpprobe.data.registry import SOURCES
from dpprobe.data.subsample import without_subsample
from dpprobe.files import disk_errors


def download_dataset(options: DatasetOptions, directory: Path) -> None:
    """Downloads the files of a dataset into `directory`; finally writes `receipt.json`.

    A downloaded file is reused if its content is right; an interrupted transfer continues.

    Raises ConfigError if the user must do something first, such as accept a licence. Raises
    DownloadError if the server does not deliver the right content.
    """
    module = importlib.import_module(SOURCES[options.source])
    with disk_errors.explain_full_disk(directory, "files were fetched"):
        directory.mkdir(parents=True, exist_ok=True)
        fetched = module.download(options, directory)
        write_receipt(directory, fetched, params=options.download_params())


def prepare_dataset(
    options: DatasetOptions,
    directory: Path,
    *,
    downloaded: Path | None = None,
    whole: Path | None = None,
) -> None:
    """Writes `train.parquet`, `test.parquet` and, last, `dataset.json` into `directory`.

    Raises ConfigError if the source's files are missing. Raises DataError if the source's content
    is faulty.

    Args:
      downloaded: the folder that `download_dataset` filled, for a source that needs one.
      whole: with `subsample`, the folder with the tables of all rows; None to create these tables.
    """
    with disk_errors.explain_full_disk(directory, "the split tables were written"):
        # Otherwise an earlier run's problem report could be mistaken for the current run's.
        (directory / problems.FILE_NAME).unlink(missing_ok=True)
        if options.subsample is None:
            _prepare_whole(options, directory, downloaded)
            return
        from dpprobe.data.subsampled_tables import write_subsampled  # slow import: numpy, pyarrow

        made = directory / "whole"
        if whole is None:
            shutil.rmtree(made, ignore_errors=True)
            _prepare_whole(without_subsample(options), made, downloaded)
        write_subsampled(whole or made, directory, options)
        shutil.rmtree(made, ignore_errors=True)


def _prepare_whole(options: DatasetOptions, directory: Path, downloaded: Path | None) -> None:
    module = importlib.import_module(SOURCES[options.source])
    if options.download_params() is None:
        module.prepare(options, directory)
    else:
        assert downloaded is not None
        module.prepare(options, directory, downloaded=downloaded)
