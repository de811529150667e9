"""The options of each head that `tuned` searches if a study names none.

The searched options do not change the privacy cost: step lengths, and clipping norms, to which
noise is proportional. Steps, batches and shares of budgets cannot be searched; an option set by a
rule has no value to search around. The default search spaces were fixed on public features
(bench/results/search_spaces.md). Lists of values are short: few trials cannot tell more values
apart, and trials of equal options are fitted together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpprobe.heads.options import MethodOptions


@dataclass(frozen=True)
class Times:
    """Factors by which a search multiplies the base's value of an option."""

    factors: tuple[float, ...]

    def values_around(self, number: float) -> tuple[float, ...]:
        return tuple(float(f"{factor * number:.6g}") for factor in self.factors)


_Space = dict[str, Times | tuple[float, ...]]
_STEPS: _Space = {"step": Times((0.5, 1, 1.6)), "max_grad_norm": Times((0.5, 1))}
_CLIPPED = Times((0.4, 1))

# By head and option: factors on the base's number, or numbers that stand beside it.
SPACES: dict[str, _Space] = {
    "sgd": {"learning_rate": Times((0.3, 1, 3, 10, 30, 100))},
    "momentum": {"learning_rate": Times((0.3, 1, 3, 10)), "max_grad_norm": _CLIPPED},
    "adam": {"learning_rate": Times((0.3, 1, 3)), "max_grad_norm": _CLIPPED},
    "lamb": {"learning_rate": Times((0.3, 1, 3, 10)), "max_grad_norm": _CLIPPED},
    "feature_covariance": _STEPS,
    "newton": _STEPS,
    "least_squares": {"intercept": (0.0, 1.0)},
    "prototypes": {"intercept": (0.0, 1.0)},
}


def default_space(base: MethodOptions) -> dict[str, tuple[float, ...]]:
    """Returns the head's default search space without options that the base sets; may be empty."""
    space = {}
    for name, values in SPACES.get(base.head, {}).items():
        number: Any = getattr(base, name)
        if name in base.model_fields_set or number is None:
            continue
        if isinstance(values, Times):
            space[name] = values.values_around(number)
        else:
            space[name] = tuple(sorted({*values, float(number)}))
    return space
