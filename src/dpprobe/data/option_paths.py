"""Changes the paths in a source's options, and lists the files that paths and patterns name."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from dpprobe.errors import ConfigError

Paths = str | tuple[str, ...]  # a path or a glob pattern, or several of them
Change = Callable[[str, str], str]  # called with a path and its option's key; returns a path


def with_paths(options: Mapping[str, Any], paths: Iterable[str], change: Change) -> dict[str, Any]:
    """Returns a source's JSON-compatible options after changing `paths` such as "joins.*.file"."""
    values = dict(options)
    for path in paths:
        key, *inner = path.split(".")
        values[key] = _change_paths(values[key], inner, key, change)
    return values


def _change_paths(value: Any, inner: list[str], key: str, change: Change) -> Any:
    """Returns a value with changed paths; `inner` are the keys that lead to them."""
    if value is None:
        return None
    if isinstance(value, str):
        return change(value, key)
    if isinstance(value, list):
        return [
            _change_paths(each, inner[1:], f"{key}.{number}" if inner else key, change)
            for number, each in enumerate(value)
        ]
    name, *rest = inner
    return {**value, name: _change_paths(value[name], rest, f"{key}.{name}", change)}


def list_patterns(paths: Paths) -> tuple[str, ...]:
    return (paths,) if isinstance(paths, str) else paths


def match_files(path: Path) -> list[Path]:
    """Lists the files of a path or glob pattern by name; names of existing folders are literal."""
    if path.is_file():
        return [path]
    folder = next((each for each in path.parents if each.is_dir()), Path())
    names = glob.glob(str(path.relative_to(folder)), root_dir=folder)  # noqa: PTH207
    return [folder / name for name in sorted(names)]


def is_wildcard(path: str) -> bool:
    """Returns True for a path with a part that Snakemake would replace, such as `{x}` or `<x>`."""
    return "{" in path or "<" in path


def each_once(key: str, files: list[Path]) -> list[Path]:
    """Returns the files; raises ConfigError if an option names a file twice."""
    if len(set(files)) != len(files):
        twice = next(path for path in files if files.count(path) > 1)
        raise ConfigError(f"{key}: {twice} is named twice; remove one")
    return files
