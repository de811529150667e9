"""Builds paths from the columns of rows, by a template with columns' names in braces."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence

_WIDEST = 255  # characters, as many as a file's name can have
# The text before a column, the column (None after the last column), and the column's format.
Part = tuple[str, str | None, str]


def template_parts(template: str) -> list[Part]:
    """Splits a path template into its parts; raises ValueError if the template is invalid.

    Braces contain only a column's whole name: no attribute, index or nested field.
    """
    try:
        parts = [
            (text, column, form or "", conversion)
            for text, column, form, conversion in string.Formatter().parse(template)
        ]
        for _, column, form, conversion in parts:
            if column == "" or conversion is not None or "{" in form or "}" in form:
                raise ValueError(
                    "write a column in braces, with a colon and a format if needed: {column:.2}"
                )
            if any(int(width) > _WIDEST for width in re.findall(r"\d{1,9}", form)):
                raise ValueError(f"a width or precision above {_WIDEST}")
            format("", form)
    except ValueError as error:
        raise ValueError(f"{template!r} is not a path template ({error}); correct it") from None
    return [(text, column, form) for text, column, form, _ in parts]


def fill_template(parts: Sequence[Part], values: Mapping[str, str]) -> str:
    """Fills a path template with the values of a row's columns."""
    return "".join(
        text + (format(values[column], form) if column else "") for text, column, form in parts
    )
