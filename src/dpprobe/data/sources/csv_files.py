"""Reads the headers and the records of a manifest's CSV files.

Files are read by Python's csv module, because messages need line numbers. pandas counts rows, which
differ from lines if a quoted value spans several lines.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING

from dpprobe.data.people.alike_names import fold_name
from dpprobe.data.sources.parquet_columns import MOST_COLUMNS
from dpprobe.errors import ConfigError
from dpprobe.files.plain_files import require_plain_file

if TYPE_CHECKING:
    from _csv import Reader

    from dpprobe.data.sources.csv_options import TableOptions
    from dpprobe.data.train_test_split import SplitName

SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
DELIMITERS = (";", ",", "\t", "|")
# The first bytes of a file that Excel saved as Unicode text, and of a workbook.
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
WORKBOOK = b"PK\x03\x04"
# A first line such as `sep=;` that declares the delimiter; spreadsheets append more delimiters.
_DECLARED = re.compile(r'"?sep=([^\w\s"]|\t)"?\1*\s*', re.IGNORECASE)
SHOWN_COLUMNS = 100  # number of columns that an error lists
MOST_CHARACTERS = 1 << 27  # the longest cell, as a cell without closing quotation mark never ends
_EXCEL = "save it as `CSV UTF-8`, as Excel calls it"
_AS_UTF_8 = "save it as UTF-8 (`CSV UTF-8` in Excel, or `iconv -f {} -t UTF-8 old.csv > new.csv`)"


def check_columns(options: TableOptions, split: SplitName) -> None:
    """Checks that the files have all columns named in the options, before any row is read.

    Raises ConfigError, naming the option, if a column is missing or an added column exists.
    """
    file = options.split_file(split)
    known = list(read_header(options, file, split))
    if options.split_column is not None:
        _require_column("split_column", file, options.split_column, known)
    for name, extract in options.extract.items():
        _require_column(f"extract.{name}", file, extract.column, known)
        if name in known:
            raise ConfigError(
                f"extract.{name}: {file} already has a column with this name; choose another name"
            )
    known += options.extract
    for number, join in enumerate(options.joins):
        where = f"joins.{number}"
        there = read_header(options, join.file, f"{where}.file")
        for here, key in join.key_columns.items():
            _require_column(f"{where}.by", file, here, known)
            _require_column(f"{where}.by", join.file, key, there)
        for column in join.columns:
            _require_column(f"{where}.columns", join.file, column, there)
            if column in known:
                raise ConfigError(
                    f"{where}.columns: {column!r} is already a column; remove it from this list"
                )
            known.append(column)
    other = options.open_columns(file)
    for column, option in options.list_columns().items():
        if other and column not in known and (fault := other.explain_array(column)):
            raise ConfigError(f"{option}: {file}: {fault}")
        _require_column(option, file, column, known)


def _require_column(option: str, file: str, column: str, known: Sequence[str]) -> None:
    """Raises ConfigError if a file lacks a column that an option names."""
    if column in known:
        return
    near = [name for name in known if fold_name(name) == fold_name(column)]
    if near:
        hint = f"write {near[0]!r}, as the file spells it"
    elif character := other_delimiter(known):
        written = "\\t" if character == "\t" else character
        hint = f'columns seem to be separated by {written}: write `delimiter: "{written}"`'
    else:
        hint = "name one of them" if known else "name another file"
    more = f" and {len(known) - SHOWN_COLUMNS:,} more" if len(known) > SHOWN_COLUMNS else ""
    there = ", ".join(known[:SHOWN_COLUMNS]) + more or "none"
    raise ConfigError(f"{option}: {file}: no column {column!r}; it has {there}: {hint}")


def other_delimiter(names: Sequence[str]) -> str | None:
    """Guesses the delimiter of a header that was read as one column."""
    if len(names) != 1:
        return None
    counts = {character: names[0].count(character) for character in DELIMITERS}
    most = max(counts, key=lambda character: counts[character])
    return most if counts[most] else None


def read_header(options: TableOptions, file: str, option: str) -> tuple[str, ...]:
    """Reads column names; raises ConfigError for an unreadable file, or a repeated name."""
    if (columns := options.open_columns(file)) is not None:
        return columns.columns
    if not file.lower().endswith(SUFFIXES):
        raise ConfigError(
            f"{option}: {file}: not the name of a CSV file; name a file that ends in "
            f"{', '.join(SUFFIXES)} (for a workbook, {_EXCEL})"
        )
    if not options.locate_path(file).is_file():
        raise ConfigError(
            f"{option}: no file {file} under root ({options.root}); correct the path or put the "
            "file there"
        )
    with open_rows(options, file) as rows:
        header = tuple(name.strip() for name in next(rows, ()))
    if not header:
        raise ConfigError(f"{option}: {file} is empty; its first line must name the columns")
    if len(header) > MOST_COLUMNS:
        raise ConfigError(
            f"{option}: {file}: {len(header):,} columns, but at most {MOST_COLUMNS:,} can be read; "
            "keep the columns that the study names"
        )
    if twice := [name for name, count in Counter(header).items() if count > 1]:
        raise ConfigError(
            f"{option}: {file}: two columns are named {twice[0]!r}; rename one of them"
        )
    return header


def open_rows(options: TableOptions, file: str) -> AbstractContextManager[Reader]:
    return open_csv(options.locate_path(file), file, delimiter=options.delimiter)


@contextmanager
def open_csv(path: Path, file: str, *, delimiter: str | None = None) -> Iterator[Reader]:
    """Opens the records of a CSV file, including the header; `file` is the name in messages.

    The default delimiter is declared by a first line such as `sep=;`; else it is a tab for .tsv and
    a comma for other files. Raises ConfigError, naming the line, if a line cannot be read.
    """
    tabs = file.lower().removesuffix(".gz").endswith(".tsv")
    reader = None
    try:
        with _open_file(path) as raw:
            _check_kind(file, raw.read(4))
        with (
            _long_cells(),
            _open_file(path) as raw,
            io.TextIOWrapper(raw, "utf-8-sig", newline="") as stream,
        ):
            lines = _check_lines(file, stream)
            first = next(lines, "")
            declared = _DECLARED.fullmatch(first)
            usual = declared[1] if declared else "\t" if tabs else ","
            reader = csv.reader(
                chain([first], lines),
                delimiter=delimiter or usual,
                skipinitialspace=True,  # quotation marks after a space also quote
                strict=True,
            )
            if declared:
                next(reader)
            yield reader
    except UnicodeDecodeError as error:
        raise _not_utf_8(file, path) from error
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        line = reader.line_num + 1 if reader else 1
        remedy = "close a quotation mark" if "field limit" in str(error) else "replace it"
        raise ConfigError(f"{file} line {line}: cannot be read ({error}); {remedy}") from error


def _check_lines(file: str, lines: Iterable[str]) -> Iterator[str]:
    """Yields lines; refuses NUL bytes (damaged files) and later byte order marks (joined files)."""
    for number, line in enumerate(lines, start=1):
        joined = line.startswith("\ufeff")  # a byte order mark
        if joined or "\0" in line:
            mark, origin = ("byte order mark", "joined") if joined else ("NUL byte", "damaged")
            raise ConfigError(
                f"{file} line {number}: a {mark}, as in UTF-16 or {origin} files; save the file "
                "again, as UTF-8 with one header"
            )
        yield line


@contextmanager
def _long_cells() -> Iterator[None]:
    """Lets csv read cells longer than its default limit of 131,072 characters."""
    before = csv.field_size_limit(MOST_CHARACTERS)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _open_file(path: Path) -> IO[bytes]:
    require_plain_file(path)  # files are opened twice, and a pipe may never end
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")  # type: ignore[return-value]


def _check_kind(file: str, begin: bytes) -> None:
    """Raises ConfigError if a file begins like UTF-16 text or a workbook."""
    if begin.startswith(UTF_16):
        raise ConfigError(
            f"{file} line 1: encoded as UTF-16, like Excel's Unicode text; "
            f"{_AS_UTF_8.format('UTF-16')}"
        )
    if begin.startswith(WORKBOOK):
        raise ConfigError(f"{file}: a workbook or an archive, not text; {_EXCEL}")


def _not_utf_8(file: str, path: Path) -> ConfigError:
    """Returns the error for a file that is not UTF-8, with its first invalid line.

    The csv reader decodes many lines ahead, so it does not know the number of the invalid line.
    """
    remedy = _AS_UTF_8.format("WINDOWS-1252")
    with _open_file(path) as stream:
        for number, line in enumerate(stream, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                fault = f"byte {line[error.start]:#04x} at position {error.start + 1}"
                return ConfigError(f"{file} line {number}: not UTF-8 ({fault}); {remedy}")
    return ConfigError(f"{file}: not UTF-8; {remedy}")
