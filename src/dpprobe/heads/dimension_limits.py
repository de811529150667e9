"""Explains, before extraction, why a method cannot train on a given number of features."""

from __future__ import annotations

from dpprobe.heads.normalisation import Whitened
from dpprobe.heads.options import MethodOptions

# A square matrix of 8,192 columns takes half a gigabyte, and minutes to decompose.
MOST_FEATURES = 8192
# Heads that decompose the features' second moment, a square matrix.
SECOND_ORDER = frozenset({"feature_covariance", "least_squares", "newton"})


def dimension_fault(options: MethodOptions, dimension: int) -> str | None:
    """Explains why a method cannot train on rows with this number of features; None if it can.

    Example:
      >>> from dpprobe.heads.registry import method_options
      >>> squares = method_options({"head": "least_squares"})
      >>> [dimension_fault(squares, dimension) is None for dimension in (384, 8192, 8193)]
      [True, True, False]
      >>> dimension_fault(method_options({"head": "momentum"}), 100_000) is None
      True
    """
    options = options.trial_head
    if options.head in SECOND_ORDER and dimension > MOST_FEATURES:
        return (
            f"head {options.head}: {dimension} features are too many: it needs their second "
            f"moment, which dpprobe computes for up to {MOST_FEATURES} "
            f"({8 * dimension**2 / 1e9:.1f} GB and hours to decompose); write "
            "head: momentum or prototypes, or choose a backbone with fewer features"
        )
    normalize = options.normalize
    if isinstance(normalize, Whitened) and dimension > MOST_FEATURES:
        return (
            f"normalize: whitened: {dimension} features are too many: it needs their second "
            f"moment, which dpprobe computes for up to {MOST_FEATURES}; write normalize: "
            "centred, or choose a backbone with fewer features"
        )
    if options.has_student and dimension > MOST_FEATURES:
        return (
            f"student_share: {dimension} features are too many: a student needs their covariance, "
            f"which dpprobe computes for up to {MOST_FEATURES}; remove student_share, or choose a "
            "backbone with fewer features"
        )
    for name in ("groups", "channels"):
        count = getattr(normalize, name, 1)
        if dimension % count:
            return (
                f"normalize.{name}: {count} does not divide {dimension}, the number of features; "
                f"choose a divisor of {dimension}"
            )
    return None
