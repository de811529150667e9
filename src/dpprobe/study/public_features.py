"""Names of public datasets in the options of methods, which stand for their features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpprobe.study.reserved_names import locate_features

# The option of head `auto`, and of the normalisations that release a mean.
_KEY = "public"


def with_public_features(values: Any) -> Any:
    """Replaces names of public datasets in a study's methods by the paths of their features."""
    if not isinstance(values, Mapping):
        return values
    methods, names = values.get("methods"), values.get("public_datasets")
    if not isinstance(methods, Mapping) or not isinstance(names, Mapping):
        return values
    results = values.get("results_dir", "results")
    places = {name: locate_features(results, name, "{backbone}", "train") for name in names}
    changed = {name: _replace_names(method, places) for name, method in methods.items()}
    return {**values, "methods": changed}


def _replace_names(value: Any, places: Mapping[str, str]) -> Any:
    """Returns a method's values with the paths of the names, also in heads inside the method."""
    if not isinstance(value, Mapping):
        return value
    return {
        key: places[each]
        if key == _KEY and isinstance(each, str) and each in places
        else _replace_names(each, places)
        for key, each in value.items()
    }
