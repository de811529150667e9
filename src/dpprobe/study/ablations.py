"""Which options of a study's methods differ from each other, and in what. Light: no arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from dpprobe.artifacts import canonical_json

T = TypeVar("T")

# Options that figures draw results against, each with those that are read together with it.
VARIED: dict[str, tuple[str, ...]] = {
    "batch_size": ("batch_size",),
    "init_scale": ("init", "init_scale"),
}
# Of `init`, what has a scale: 0, that of init_scale, 1 / sqrt(dimension).
SCALED_INITS = ("zero", "scaled", "lecun_normal")


def families(
    options: Mapping[str, Mapping[str, Any]], varying: Sequence[str]
) -> list[tuple[str, ...]]:
    """Names whose options are equal save for the varying ones, the largest family first.

    Args:
      options: by name.
      varying: options that may differ.

    Returns:
      Families of any size, one of a single name too, each in the order given.
    """
    groups: dict[str, list[str]] = {}
    for name, own in options.items():
        rest = {key: value for key, value in own.items() if key not in varying}
        groups.setdefault(canonical_json(rest), []).append(name)
    return sorted((tuple(group) for group in groups.values()), key=lambda group: -len(group))


def changes(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Options that differ: name -> (base's, the other's), None where one does not have it.

    Between two heads the options that only one of them knows belong to the head, and so does the
    learning rate: an optimiser's is another's only by chance.
    """
    found = {
        key: (base.get(key), other.get(key))
        for key in dict.fromkeys([*base, *other])
        if base.get(key) != other.get(key)
    }
    if "head" not in found:
        return found
    return {
        key: pair
        for key, pair in found.items()
        if key == "head" or (key in base and key in other and key != "learning_rate")
    }


def best_base(options: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The name from which most others differ in one option; of equals the first; None without."""
    counts = {
        name: sum(len(changes(own, other)) == 1 for other in options.values())
        for name, own in options.items()
    }
    if not counts or max(counts.values()) == 0:
        return None
    return max(counts, key=lambda name: counts[name])


def unique(items: Iterable[T]) -> list[T]:
    """The items, each once, in the order of their first appearance."""
    return list(dict.fromkeys(items))


def varied(options: Mapping[str, Mapping[str, Any]], option: str) -> list[tuple[str, ...]]:
    """Methods that differ in one option of `VARIED` alone, two or more together.

    Args:
      options: of each method, all of them, as a cell records them.
    """
    own = {
        name: values
        for name, values in options.items()
        if option in values and (option != "init_scale" or values["init"] in SCALED_INITS)
    }
    return [group for group in families(own, VARIED[option]) if len(group) > 1]
