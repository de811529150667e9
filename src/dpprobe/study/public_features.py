"""Names of public files in methods' options: the names of public datasets, and `text`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpprobe.study.reserved_names import locate_features

# The option of head `auto`, and of the normalisations that release a mean.
_KEY = "public"
# The option that names a public head, and the word for the text embeddings of the class names.
_HEAD, _TEXT = "public_head", "text"


def with_public_features(values: Any) -> Any:
    """Replaces these names in a study's methods by paths of public features and text embeddings."""
    if not isinstance(values, Mapping):
        return values
    methods, names = values.get("methods"), values.get("public_datasets")
    if not isinstance(methods, Mapping):
        return values
    results = values.get("results_dir", "results")
    listed = names if isinstance(names, Mapping) else ()
    places = {
        (_KEY, name): locate_features(results, name, "{backbone}", "train") for name in listed
    }
    places[_HEAD, _TEXT] = f"{results}/features/{{dataset}}/{{backbone}}/text.safetensors"
    changed = {name: _replace_names(method, places) for name, method in methods.items()}
    return {**values, "methods": changed}


def _replace_names(value: Any, places: Mapping[tuple[str, str], str]) -> Any:
    """Returns a method's values with paths instead of names, also in heads inside the method."""
    if not isinstance(value, Mapping):
        return value
    return {
        key: places[key, each]
        if isinstance(each, str) and (key, each) in places
        else _replace_names(each, places)
        for key, each in value.items()
    }
