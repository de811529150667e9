"""The CSV files of a manifest: their headers and their records.

Python's own reader counts the lines, so that a fault names the line of the file: pandas counts
rows, which differ where a quoted value spans lines.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dpprobe.data.csv_options import ManifestOptions, SplitName
from dpprobe.errors import ConfigError

if TYPE_CHECKING:
    from _csv import Reader

SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")


def check_columns(options: ManifestOptions, split: SplitName) -> None:
    """Checks that all columns are there, before any row is read.

    Raises:
      ConfigError: naming the option and the column that is missing.
    """
    file = options.file(split)
    known = list(read_header(options, file, split))
    if options.split_column is not None and options.split_column not in known:
        raise _no_column("split_column", file, options.split_column, known)
    for name, extract in options.extract.items():
        if extract.column not in known:
            raise _no_column(f"extract.{name}", file, extract.column, known)
        if name in known:
            raise ConfigError(f"extract.{name}: {file} has a column of that name; write another")
    known += options.extract
    for number, join in enumerate(options.joins):
        where = f"joins.{number}"
        there = read_header(options, join.file, f"{where}.file")
        for here, key in join.keys.items():
            if here not in known:
                raise _no_column(f"{where}.by", file, here, known)
            if key not in there:
                raise _no_column(f"{where}.by", join.file, key, there)
        for column in join.columns:
            if column not in there:
                raise _no_column(f"{where}.columns", join.file, column, there)
            if column in known:
                raise ConfigError(
                    f"{where}.columns: {column!r} is a column already; leave it out of the join"
                )
            known.append(column)
    for column, option in options.columns().items():
        if column not in known:
            raise _no_column(option, file, column, known)


def _no_column(option: str, file: str, column: str, known: Iterable[str]) -> ConfigError:
    return ConfigError(
        f"{option}: {file}: no column {column!r}; it has {', '.join(known)}: name one of them"
    )


def read_header(options: ManifestOptions, file: str, option: str) -> tuple[str, ...]:
    """Reads the names of a file's columns.

    Raises:
      ConfigError: when it is missing, cannot be read, or two columns have one name.
    """
    if not file.endswith(SUFFIXES):
        raise ConfigError(f"{option}: {file}: write a file that ends in {', '.join(SUFFIXES)}")
    if not options.locate(file).is_file():
        raise ConfigError(
            f"{option}: no file {file} under root ({options.root}); correct it or put it there"
        )
    with open_rows(options, file) as rows:
        header = tuple(name.strip() for name in next(rows, ()))
    if not header:
        raise ConfigError(f"{option}: {file} is empty; its first line must name the columns")
    for name in header:
        if header.count(name) > 1:
            raise ConfigError(f"{option}: {file}: two columns are named {name!r}; rename one")
    return header


@contextmanager
def open_rows(options: ManifestOptions, file: str) -> Iterator[Reader]:
    """Opens the records of a file, its header first.

    Raises:
      ConfigError: naming the line, when it cannot be read.
    """
    path = options.locate(file)
    tabs = file.removesuffix(".gz").endswith(".tsv")
    opened = gzip.open if file.endswith(".gz") else open
    reader = None
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(
                stream, delimiter=options.delimiter or ("\t" if tabs else ","), strict=True
            )
            yield reader
    except (OSError, EOFError, zlib.error, csv.Error, UnicodeDecodeError) as error:
        line = reader.line_num + 1 if reader else 1
        fault = "not UTF-8; save it as such" if isinstance(error, UnicodeDecodeError) else error
        raise ConfigError(f"{file} line {line}: cannot be read ({fault}); replace it") from error
