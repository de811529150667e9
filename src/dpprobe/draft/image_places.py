"""The image files of a table's column: their folder, and missing parts of their paths."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpprobe.data.image_files import EXTENSIONS
from dpprobe.data.usual_columns import IMAGE_COLUMNS, IMAGE_NAMES, find_usual
from dpprobe.draft.column_guesses import Columns
from dpprobe.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Place:
    """The images of a column.

    Attributes:
      column: of paths, or of names.
      template: makes a path from a name; None for a column of paths.
    """

    root: Path
    column: str
    template: str | None


def find_images(columns: Columns, *, table: Path, root: Path | None, column: str | None) -> Place:
    """Looks for the files that a column names.

    Args:
      root: the folder to search, with its folders; if absent, the table's folder in the same way,
        then the working directory and the parent of the table's folder.
      column: if absent, one with a usual name, or one with names of image files.

    Raises:
      ConfigError: if no column names existing files.
    """
    candidates = [column] if column else list(find_usual(columns, (*IMAGE_COLUMNS, *IMAGE_NAMES)))
    if not candidates:
        candidates = [name for name in columns if is_image(_first_value(columns, name))]
    if not candidates:
        raise ConfigError(
            f"{table}: no column has a usual name for images ({', '.join(IMAGE_COLUMNS[:5])} or "
            "similar) or contains names of image files; name the column with --image: "
            f"{', '.join(columns)}"
        )
    roots = [root] if root else _list_roots(table)
    for name in candidates:
        values = [value for value in columns[name].first if value]
        for folder in roots:
            for before, after in _list_additions(folder, values, deeper=folder == roots[0]):
                if (folder / f"{before}{values[0]}{after}").is_file():
                    template = f"{before}{{{name}}}{after}" if before or after else None
                    return Place(root=folder, column=name, template=template)
    first = _first_value(columns, candidates[0])
    raise ConfigError(
        f"{table}: column {candidates[0]} names {first!r}, but this image is not under "
        f"{' or '.join(os.path.normpath(folder) for folder in roots)}; name the folder where "
        "paths start with --root, or the column of images with --image"
    )


def _list_roots(table: Path) -> list[Path]:
    roots: dict[Path, Path] = {}
    for root in (table.parent, Path(), table.parent / ".."):
        roots.setdefault(root.resolve(), root)
    return list(roots.values())


def _first_value(columns: Columns, name: str) -> str:
    return next((value for value in columns[name].first if value), "")


def is_image(value: str) -> bool:
    return os.path.splitext(value)[1].lower() in EXTENSIONS  # noqa: PTH122


def _list_additions(
    folder: Path, values: Sequence[str], *, deeper: bool
) -> Iterator[tuple[str, str]]:
    """Yields prefixes and suffixes that may complete a name to a path."""
    if not values:
        return
    suffixes = [""]
    if not is_image(values[0]):
        # The usual suffixes first.
        known = sorted(EXTENSIONS, key=lambda suffix: (suffix not in (".jpg", ".png"), suffix))
        suffixes = [*known, *map(str.upper, known)]
    yield "", ""
    yield from (("", suffix) for suffix in suffixes if suffix)
    if not deeper or not folder.is_dir():
        return
    for name in sorted(entry.name for entry in folder.iterdir() if entry.is_dir()):
        if not name.startswith(".") and not set("{}") & set(name):
            yield from ((f"{name}/", suffix) for suffix in suffixes)
