"""A small study that is valid, and changes of one value in it."""

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
    """STUDY with one value set, by dotted path; the value `...` removes the key."""
    return change_values(STUDY, {path: value})
