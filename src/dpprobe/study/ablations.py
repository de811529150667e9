"""Finds methods of a study that differ in few options; imports neither NumPy nor torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from dpprobe.json_values import canonical_json

T = TypeVar("T")

LEARNING_RATE = "learning_rate"
# Options on the horizontal axis of figures, each with the keys that make up the option's value.
# Methods with equal values may differ in learning rate; figures show the best of them.
VARIED: dict[str, tuple[str, ...]] = {
    "batch_size": ("batch_size",),
    "init_scale": ("init", "init_scale"),
    "optimiser": ("head",),
}
# Heads that minimise the loss by noisy gradient steps, with the optimisers' names in papers.
OPTIMISERS = {"sgd": "SGD", "momentum": "momentum", "adam": "Adam", "lamb": "LAMB"}
_IMAGE_SIZE = ("size", "crop_pct")
# Values of `init` that have a scale: 0, init_scale and 1 / sqrt(dimension).
SCALED_INITS = ("zero", "scaled", "lecun_normal")


def find_families(
    options: Mapping[str, Mapping[str, Any]], varying: Sequence[str]
) -> list[tuple[str, ...]]:
    """Groups names whose options are equal except `varying`; the largest group comes first."""
    groups: dict[str, list[str]] = {}
    for name, values in options.items():
        rest = {key: value for key, value in values.items() if key not in varying}
        groups.setdefault(canonical_json(rest), []).append(name)
    return sorted((tuple(group) for group in groups.values()), key=lambda group: -len(group))


def same_but_size(backbones: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Groups backbones that differ only in the size of their images, two or more per group.

    The option `crop_pct`, the share of an image that remains after the crop, may differ too.
    """
    flat = {}
    for name, options in backbones.items():
        preprocessing = options.get("preprocessing")
        if isinstance(preprocessing, Mapping):
            kept = {key: value for key, value in preprocessing.items() if key not in _IMAGE_SIZE}
            size = preprocessing.get("size")
            flat[name] = {**options, "preprocessing": kept, "size": size}
    groups = find_families(flat, ("size",))
    return [g for g in groups if len({flat[name]["size"] for name in g}) > 1]


def find_changes(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns the options that differ: name -> (base's value, other's value); absent is None.

    If `head` differs, the learning rate and options that only one head has are omitted, because
    optimisers differ in these.
    """
    differences = {
        key: (base.get(key), other.get(key))
        for key in dict.fromkeys([*base, *other])
        if base.get(key) != other.get(key)
    }
    if "head" not in differences:
        return differences
    return {
        key: pair
        for key, pair in differences.items()
        if key == "head" or (key in base and key in other and key != "learning_rate")
    }


def best_base(options: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Returns the name with the most other names that differ from it in one option, if any."""
    counts = {
        name: sum(len(find_changes(values, other)) == 1 for other in options.values())
        for name, values in options.items()
    }
    if not counts or max(counts.values()) == 0:
        return None
    return max(counts, key=lambda name: counts[name])


def keep_unique(items: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(items))


def find_varied(options: Mapping[str, Mapping[str, Any]], option: str) -> list[tuple[str, ...]]:
    """Groups methods whose recorded options differ only in `option`, a key of `VARIED`.

    Methods in a group may also differ in learning rate, and different optimisers in options that
    some of them lack. Each group has two or more values of `option`.
    """
    having = {name: values for name, values in options.items() if _has_option(values, option)}
    if option == "optimiser" and having:
        shared = set.intersection(*(set(values) for values in having.values()))
        having = {
            name: {key: value for key, value in values.items() if key in shared}
            for name, values in having.items()
        }
    parts = VARIED[option]
    return [
        group
        for group in find_families(having, (*parts, LEARNING_RATE))
        if len({canonical_json([having[name].get(part) for part in parts]) for name in group}) > 1
    ]


def _has_option(values: Mapping[str, Any], option: str) -> bool:
    if option == "optimiser":
        return values.get("head") in OPTIMISERS
    return option in values and (option != "init_scale" or values["init"] in SCALED_INITS)
