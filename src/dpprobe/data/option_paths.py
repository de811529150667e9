"""The paths in a source's options: changed all in one way, and the files that they name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dpprobe.errors import ConfigError

# (path, key, "moves" or "stays") -> path
Change = Callable[[str, str, str], str]


def with_paths(
    options: Mapping[str, Any], paths: Mapping[str, str], change: Change
) -> dict[str, Any]:
    """Returns a source's options with its paths changed.

    Args:
      options: JSON-compatible.
      paths: the options that are paths, such as "joins.*.file", each "moves" or "stays".
      change: is given a path, its key and which of the two it does.
    """
    values = dict(options)
    for key, fate in paths.items():
        first, *inner = key.split(".")
        values[first] = _change_paths(values[first], inner, key=first, fate=fate, change=change)
    return values


def _change_paths(value: Any, inner: list[str], *, key: str, fate: str, change: Change) -> Any:
    """Returns a value with the paths in it changed; `inner` leads to them."""

    def change_inner(value: Any, inner: list[str], key: str) -> Any:
        return _change_paths(value, inner, key=key, fate=fate, change=change)

    if value is None:
        return None
    if isinstance(value, str):
        return change(value, key, fate)
    if isinstance(value, list):
        return [
            change_inner(each, inner[1:], f"{key}.{number}" if inner else key)
            for number, each in enumerate(value)
        ]
    name, *rest = inner
    return {**value, name: change_inner(value[name], rest, f"{key}.{name}")}


def each_once(key: str, files: list[Path]) -> list[Path]:
    """Returns the files; raises ConfigError for one that an option names twice."""
    if len(set(files)) != len(files):
        twice = next(path for path in files if files.count(path) > 1)
        raise ConfigError(f"{key}: {twice} is named twice; remove one")
    return files
