"""The options that `tuned` searches for each head, if a study does not specify any.

Default search spaces contain only options that do not change the privacy cost: step lengths, and
clipping norms, because noise is proportional to the norm. The number of steps, batch sizes, budget
shares, and learning rates set by a rule cannot be searched. The default search spaces were fixed on
public features (bench/results/search_spaces.md). Lists of values are short, because few trials
cannot distinguish more values, and because trials with equal options are fitted together.
"""

from __future__ import annotations

from dpprobe.heads.options import MethodOptions

_Space = dict[str, tuple[float, ...]]
_STEPS: _Space = {"step": (0.5, 1, 1.6), "max_grad_norm": (0.5, 1)}
_CLIPPED: _Space = {"max_grad_norm": (0.4, 1)}

# Per head and option: values of `intercept`; for other options, factors on the base head's value.
SPACES: dict[str, _Space] = {
    "sgd": {"learning_rate": (0.3, 1, 3, 10, 30, 100)},
    "momentum": _CLIPPED,
    "adam": _CLIPPED,
    "lamb": _CLIPPED,
    "feature_covariance": _STEPS,
    "newton": _STEPS,
    "least_squares": {"intercept": (0.0, 1.0)},
    "prototypes": {"intercept": (0.0, 1.0)},
}


def default_space(base: MethodOptions) -> dict[str, tuple[float, ...]]:
    """Returns the head's default search space, without options that `base` sets; may be empty."""
    space = {}
    for name, values in SPACES.get(base.head, {}).items():
        if name in base.model_fields_set:
            continue
        number = float(getattr(base, name))
        if name == "intercept":
            space[name] = tuple(sorted({*values, number}))
        else:
            space[name] = tuple(float(f"{factor * number:.6g}") for factor in values)
    return space
