"""Finds image files by the names in a table's column, even without folder or suffix."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path

from dpprobe.data.images.image_files import EXTENSIONS, is_helper
from dpprobe.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ImagePaths:
    """A folder, prefix and suffix that turn a name into a path.

    Attributes:
      more: further prefixes, for folders with the other images.
    """

    root: Path
    before: str = ""
    after: str = ""
    more: tuple[str, ...] = ()

    def path_of(self, name: str) -> Path:
        """Returns the path of a file; in the first folder if none of the folders has it."""
        paths = [self.root / f"{before}{name}{self.after}" for before in (self.before, *self.more)]
        return next((path for path in paths if self.more and path.is_file()), paths[0])

    @property
    def pattern(self) -> str:
        """The prefix, with `*` in place of the part in which several folders' names differ."""
        if not self.more:
            return self.before
        names = [self.before, *self.more]
        start = _common_start(names)
        end = _common_start([name[len(start) :][::-1] for name in names])[::-1]
        return f"{start}*{end}"

    def spread(self, names: Iterable[str]) -> ImagePaths:
        """Adds sibling folders of the prefix's folder that have files which it lacks.

        Raises ConfigError if several of these folders have the same file.
        """
        if not self.before:
            return self
        folders = {
            f"{each.name}/": {file.name for file in os.scandir(each)}
            for each in sorted(self.root.iterdir())
            if each.is_dir() and not is_helper(each.name)
        }
        files = {f"{name}{self.after}" for name in names}
        lacking = files - folders[self.before]
        found = replace(
            self,
            more=tuple(
                each
                for each in folders
                if each != self.before and not lacking.isdisjoint(folders[each])
            ),
        )
        if not found.more:
            return self
        seen: dict[str, str] = {}
        for folder, held in folders.items():
            if fnmatchcase(folder, glob.escape(found.pattern).replace("[*]", "*")):
                for file in sorted(files & held):
                    if file in seen:
                        raise ConfigError(
                            f"{self.root}: {file} is in {seen[file]} and in {folder}; keep one "
                            "file per image, or name one folder with --root"
                        )
                    seen[file] = folder
        return found


def _common_start(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)
    equal = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return "".join(each for each, _ in equal)


def search_images(names: Sequence[str], roots: Sequence[Path]) -> ImagePaths | None:
    """Finds the folder, prefix and suffix that turn a name into a file's path; None if none do.

    Tries names unchanged and with usual suffixes, in `roots` and in folders of the first root.
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
    """Yields prefixes and suffixes that may turn a name into a path."""
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
