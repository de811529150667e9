"""Writes names from outside so that neither terminals nor spreadsheets execute them.

Names of files, classes and columns may contain escape sequences, which can retitle a terminal or
hide lines, and line ends, which make one message look like several. Names may also begin like
formulas, which a spreadsheet would compute. Messages are escaped when they are shown (errors, log
lines). Only `Lines` may have several lines.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import PurePath
from typing import IO, Any

# Control characters except tabs and line ends, marks that reverse text, and lone surrogates.
_NOT_SHOWN = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_LINE_ENDS = re.compile("[\t\n]")
# A formula's first character, at the start of a cell or after a possible separator of cells.
_FORMULA = re.compile(r"(?:^|(?<=[;\t\r\n]))(?=[=@+\-\t\r＝＠＋－])")
_NUMBER = re.compile(r"[+-]?[\d.,]+(?:[eE][+-]?\d+)?%?|[+-]?(?:inf|nan)|[+-]", re.ASCII)


def printable(text: str) -> str:
    """Returns a text with an escape such as `\\x1b` for each unprintable character."""
    return _NOT_SHOWN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """Returns a printable text on one line, for a name that must not look like several lines."""
    return _LINE_ENDS.sub(lambda match: repr(match[0])[1:-1], printable(text))


class Lines(str):
    """A message of several lines, each of which is printable; made by `join_lines`."""

    __slots__ = ()

    def __add__(self, text: str) -> Lines:
        return Lines(f"{self}{one_line(text)}")


def join_lines(lines: Iterable[str]) -> Lines:
    """Joins messages into one message; escapes line ends, except in messages that are `Lines`."""
    return Lines("\n".join(map(show_message, lines)))


def show_message(text: str) -> str:
    """Returns a message as it is shown: on one line, unless it is `Lines`."""
    return text if isinstance(text, Lines) else one_line(text)


def spreadsheet_text(text: str) -> str:
    """Returns a CSV cell's printable text, with ' before a formula to prevent its computation."""
    text = printable(text)
    return text if _NUMBER.fullmatch(text) else _FORMULA.sub("'", text)


class Terminal:
    """A text stream that writes only printable text; its OSErrors mention it as `name`."""

    def __init__(self, stream: IO[str], name: str) -> None:
        self._stream, self._name = stream, name

    def write(self, text: str) -> int:
        return int(self._call(self._stream.write, printable(text)))

    def flush(self) -> None:
        self._call(self._stream.flush)

    def _call(self, method: Any, *arguments: str) -> Any:
        try:
            return method(*arguments)
        except OSError as error:
            error.filename = error.filename or self._name
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _show_record(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(
            show_message(each if isinstance(each, str) else str(each))
            if isinstance(each, str | PurePath | BaseException)
            else each
            for each in record.args
        )
    with suppress(TypeError, ValueError):  # handlers report arguments that do not fit the message
        if (text := printable(message := record.getMessage())) != message:
            record.msg, record.args = text, ()
    return True


# All modules use this logger. Its handlers write to terminals, and to logs that a run prints.
logging.getLogger("dpprobe").addFilter(_show_record)
