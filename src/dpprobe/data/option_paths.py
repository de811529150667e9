"""The paths in a source's options, found by its `paths` and changed all in one way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

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
        values[first] = _changed(values[first], inner, key=first, fate=fate, change=change)
    return values


def _changed(value: Any, inner: list[str], *, key: str, fate: str, change: Change) -> Any:
    """Returns a value with the paths in it changed; `inner` leads to them."""

    def go(value: Any, inner: list[str], key: str) -> Any:
        return _changed(value, inner, key=key, fate=fate, change=change)

    if value is None:
        return None
    if isinstance(value, str):
        return change(value, key, fate)
    if isinstance(value, list):
        return [
            go(each, inner[1:], f"{key}.{number}" if inner else key)
            for number, each in enumerate(value)
        ]
    name, *rest = inner
    return {**value, name: go(value[name], rest, f"{key}.{name}")}
