"""The column of a table that names image files, and how its values become paths."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dpprobe.data.image_files import hint_misspelling
from dpprobe.data.image_search import join_roots, list_roots, names_image, search_images
from dpprobe.data.usual_columns import IMAGE_COLUMNS, IMAGE_NAMES, find_usual
from dpprobe.draft.column_guesses import Columns
from dpprobe.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Place:
    """The images of a column.

    Attributes:
      column: the column with paths or names of images.
      template: the `path_template` that makes a path from a name; None for a column of paths.
    """

    root: Path
    column: str
    template: str | None


def find_images(columns: Columns, *, table: Path, root: Path | None, column: str | None) -> Place:
    """Looks for the files that a column names.

    Args:
      root: the folder to search, with its subfolders. None searches the table's folder and
        subfolders, then the working directory and the parent of the table's folder.
      column: the column to use; None means a column with a usual name, or with names of images.

    Raises:
      ConfigError: if no column names existing files.
    """
    candidates = [column] if column else list(find_usual(columns, (*IMAGE_COLUMNS, *IMAGE_NAMES)))
    if not candidates:
        candidates = [name for name in columns if names_image(_first_value(columns, name))]
    if not candidates:
        raise ConfigError(
            f"{table}: no column has a usual name for images ({', '.join(IMAGE_COLUMNS[:5])} or "
            "similar) or contains names of image files; name the column with --image: "
            f"{', '.join(columns)}"
        )
    roots = [root] if root else list_roots(table)
    for name in candidates:
        first = _first_value(columns, name)
        if paths := search_images([first] if first else [], roots):
            added = paths.before or paths.after
            before = paths.before.replace("{", "{{").replace("}", "}}")
            template = f"{before}{{{name}}}{paths.after}" if added else None
            return Place(root=paths.root, column=name, template=template)
    first = _first_value(columns, candidates[0])
    hint = hint_misspelling(first) if "\\" in first else ""
    raise ConfigError(
        f"{table}: column {candidates[0]} names {first!r}, but this image is not under "
        f"{join_roots(roots)}{hint}; name the folder where "
        "paths start with --root, or the column of images with --image"
    )


def _first_value(columns: Columns, name: str) -> str:
    return next((value for value in columns[name].first if value), "")
