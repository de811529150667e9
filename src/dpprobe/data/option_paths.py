"""The paths in a source's options, found by its `paths` and changed all in one way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpprobe.data.options import DatasetOptions

# (path, key, "moves" or "stays") -> path
Change = Callable[[str, str, str], str]


def with_paths(options: DatasetOptions, change: Change) -> dict[str, Any]:
    """Returns a source's options, JSON-compatible, with its paths changed."""
    values = options.model_dump(mode="json")
    for key, fate in options.paths.items():
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
