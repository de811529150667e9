"""Reads facts of a privacy statement of any author: mechanisms, and names from closed lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpprobe.errors import PrivacyError
from dpprobe.privacy.plan import Mechanism

# Values of `near_duplicate_check` if there are no counts.
NOT_RUN, NOT_PUBLISHED = "not_run", "not_published"


def of_vectors(public_data: Mapping[str, Any]) -> bool:
    """Returns True if the features are vectors that a model outside dpprobe computed."""
    return bool((public_data.get("backbone_options") or {}).get("family") == "external")


def mechanisms_of(block: Mapping[str, Any]) -> tuple[Mechanism, ...]:
    """Reads the mechanisms of a statement or of its test result.

    Raises:
      KeyError, TypeError, PrivacyError: if a value is missing or wrong.
    """
    keys = ("name", "sensitivity", "noise_multiplier", "sample_rate", "count")
    for item in block["mechanisms"]:
        require_gaussian(item)
    return tuple(Mechanism(**{key: item[key] for key in keys}) for item in block["mechanisms"])


def require_gaussian(stated: Mapping[str, Any]) -> None:
    """Raises PrivacyError if a stated mechanism has no Gaussian noise."""
    if stated["noise"] not in ("Gaussian", "none"):
        raise PrivacyError(f"mechanism {stated['name']!r}: noise {stated['noise']!r} has no price")
