"""Finds the image files that a table's column names, also if folder or suffix are missing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpprobe.data.images.image_files import EXTENSIONS, is_helper


@dataclass(frozen=True, kw_only=True)
class ImagePaths:
    """A folder, a prefix and a suffix, which complete a name to a path."""

    root: Path
    before: str = ""
    after: str = ""

    def path_of(self, name: str) -> Path:
        return self.root / f"{self.before}{name}{self.after}"


def search_images(names: Sequence[str], roots: Sequence[Path]) -> ImagePaths | None:
    """Finds the folder, prefix and suffix that turn a name into a file's path; None without a file.

    Tries names unchanged and with usual suffixes, in `roots` and in the first root's folders.
    """
    for root in roots:
        for name in names:
            for before, after in _list_additions(root, name, deeper=root == roots[0]):
                paths = ImagePaths(root=root, before=before, after=after)
                if paths.path_of(name).is_file():
                    return paths
    return None


def list_roots(table: Path) -> list[Path]:
    """Returns the folders where a table's paths may start, without duplicates."""
    roots: dict[Path, Path] = {}
    for root in (table.parent, Path(), table.parent / ".."):
        roots.setdefault(root.resolve(), root)
    return list(roots.values())


def join_roots(roots: Sequence[Path]) -> str:
    """Formats a list of folders for a message."""
    return " or ".join(os.path.normpath(root) for root in roots)


def names_image(value: str) -> bool:
    """Returns True for a name with the extension of an image."""
    return os.path.splitext(value)[1].lower() in EXTENSIONS  # noqa: PTH122


def _list_additions(folder: Path, name: str, *, deeper: bool) -> Iterator[tuple[str, str]]:
    """Yields prefixes and suffixes that may complete a name to a path."""
    suffixes = [""]
    if not names_image(name):
        # The most frequent suffixes come first.
        known = sorted(EXTENSIONS, key=lambda suffix: (suffix not in (".jpg", ".png"), suffix))
        suffixes = [*known, *map(str.upper, known)]
    yield "", ""
    yield from (("", suffix) for suffix in suffixes if suffix)
    if not deeper or not folder.is_dir():
        return
    for inner in sorted(entry.name for entry in folder.iterdir() if entry.is_dir()):
        if not is_helper(inner):
            yield from ((f"{inner}/", suffix) for suffix in suffixes)
