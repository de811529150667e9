"""Builds rows' paths from columns, by a template with column names in braces."""

from __future__ import annotations

import glob
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpprobe.errors import ConfigError, DataError

_WIDEST = 255  # characters, as many as a file's name can have
# The text before a column, the column (None after the last column), and the column's format.
Part = tuple[str, str | None, str]


def template_parts(template: str) -> list[Part]:
    """Splits a path template into its parts; raises ValueError if the template is invalid.

    Braces contain only a column's name, without attributes, indices or nested fields. `*`, allowed
    before the first column, matches a part of a folder's name.
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
    if "*" in template and ("**" in template or "*" in template[len(_folder_pattern(template)) :]):
        raise ValueError(
            f"{template!r}: `*` stands for a part of the name of a folder before the first column, "
            "as in part_*/{image}.jpg; correct it"
        )
    return [(text, column, form) for text, column, form, _ in parts]


def _folder_pattern(template: str) -> str:
    """Returns the folders before a template's first column, with their last slash."""
    before = template.replace("{{", "\0\0").partition("{")[0].rpartition("/")
    return "".join(before[:2]).replace("\0\0", "{{")


@dataclass(frozen=True, kw_only=True)
class SpreadFolders:
    """Several folders, each with some of a table's images.

    Attributes:
      pattern: the folders' name, in which `*` matches any text, with a slash at the end.
      folders: their paths.
    """

    pattern: str
    folders: tuple[Path, ...]

    @classmethod
    def find(cls, root: Path, template: str | None) -> SpreadFolders | None:
        """Finds the folders of a template with `*`; None for other templates.

        Raises ConfigError if there is no folder.
        """
        written = _folder_pattern(template or "")
        if "*" not in written:
            return None
        pattern = written.replace("{{", "{").replace("}}", "}")
        escaped = "*".join(map(glob.escape, pattern.split("*")))
        folders = glob.glob(escaped, root_dir=root)  # noqa: PTH207
        if not folders:
            raise ConfigError(
                f"path_template: {template}: no folder {pattern} under root ({root}); correct it"
            )
        return cls(pattern=pattern, folders=tuple(root / folder for folder in sorted(folders)))

    def find_file(self, path: str, row: str) -> Path:
        """Returns the path of an image's file; in the first folder if no folder has the file.

        Args:
          path: the path, beginning with the pattern.
          row: the name of the row, for an error.

        Raises DataError if several folders have the file.
        """
        inside = path.removeprefix(self.pattern)
        places = [folder / inside for folder in self.folders]
        there = [place for place in places if place.is_file()]
        if len(there) > 1:
            raise DataError(
                f"{row}: {inside} is in {there[0].parent} and in {there[1].parent}; keep one file "
                "per image, or name one folder in path_template"
            )
        return next(iter(there), places[0])


def fill_template(parts: Sequence[Part], values: Mapping[str, str]) -> str:
    """Fills a path template with the values of a row's columns."""
    return "".join(
        text + (format(values[column], form) if column else "") for text, column, form in parts
    )
