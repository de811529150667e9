"""A small valid study, and a function that changes one value in it."""

from __future__ import annotations

from typing import Any

from tests.support.refusals import change_values

STUDY: dict[str, Any] = {
    "datasets": {"digits": {"source": "sklearn", "name": "digits"}},
    "backbones": {"pixels": {"family": "pixels"}},
    "methods": {"sgd": {"head": "sgd"}, "ceiling": {"head": "nonprivate"}},
    "epsilons": [0.5, 1, "inf"],
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """Returns STUDY with the value at a dotted path changed; the value `...` removes the key."""
    return change_values(STUDY, {path: value})
