"""Datasets: from a source to two split tables and their description.

A source is one module with an `Options` class and a `prepare` function, named in
`dpprobe.data.registry.SOURCES`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dpprobe.data import disk
from dpprobe.errors import DataError

if TYPE_CHECKING:
    from dpprobe.data.options import DatasetOptions

GROUP_PREFIX = "group_"


def group_column(name: str) -> str:
    """The name of a subgroup's column: `group_` before it, once."""
    return name if name.startswith(GROUP_PREFIX) else GROUP_PREFIX + name


def check_groups(names: Iterable[str], *, remedy: str) -> None:
    """Checks the names of subgroups.

    Raises:
      ValueError: for one that cannot be a column's name, and for two that would become one.
    """
    names = tuple(names)
    columns = [group_column(name) for name in names]
    for name, column in zip(names, columns, strict=True):
        if not name or "/" in name:
            raise ValueError(f"{name!r} cannot name a group, / divides paths; {remedy}")
        if columns.count(column) > 1:
            raise ValueError(f"{name!r}: two groups would become {column!r}; remove one")


def check_address(value: str) -> str:
    """An address of a file, as a user wrote it.

    Raises:
      ValueError: for one that is no http address, or that holds a login.
    """
    parts = urlsplit(value)
    if "@" in parts.netloc:
        # What was written is not shown: it may hold a password.
        raise ValueError(
            "a user name or password in the address would be written into the results; "
            "remove it and put it into ~/.netrc"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{value!r} is no http or https address; correct it")
    return value


def public_url(url: str) -> str:
    """A URL without what may be secret in it: user, password, and what stands after `?`."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" + ("?..." if parts.query else "")


def public_addresses(value: Any) -> Any:
    """Options of a study, nested as they may be, with each URL as `public_url` shows it."""
    if isinstance(value, str):
        return public_url(value) if value.startswith(("http://", "https://")) else value
    if isinstance(value, Mapping):
        return {key: public_addresses(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [public_addresses(inner) for inner in value]
    return value


def check_several_labels(*, declared: bool, found: bool) -> None:
    """Holds what a study says of labels that only a download tells against the files.

    Raises:
      DataError: when they differ.
    """
    if found != declared:
        raise DataError(
            f"several_labels: the downloaded files have {'several labels' if found else 'one'} "
            f"a row; write several_labels: {str(found).lower()}"
        )


def download(options: DatasetOptions, directory: Path) -> None:
    """Fetches what a dataset is made of into `directory`, and last writes its `receipt.json`.

    What is there already and has the right content is kept; an interrupted transfer goes on
    where it was.

    Raises:
      ConfigError: when something must be done first, such as accepting a licence.
      DownloadError: when the other side does not give what it should.
    """
    from dpprobe.data.downloads import write_receipt
    from dpprobe.data.registry import SOURCES

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
      DataError: when what it holds cannot be a dataset.
    """
    from dpprobe.data.problems import FILE_NAME
    from dpprobe.data.registry import SOURCES

    module = importlib.import_module(SOURCES[options.source])
    with disk.explained(directory, "the split tables were written"):
        # A report of an earlier run would pass for one of this run.
        (directory / FILE_NAME).unlink(missing_ok=True)
        if options.download_params() is None:
            module.prepare(options, directory)
        else:
            assert downloaded is not None
            module.prepare(options, directory, downloaded=downloaded)
