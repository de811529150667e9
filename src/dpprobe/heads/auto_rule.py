"""The rule of `head: auto`: chooses a head's options from public facts, by a fixed table.

The rule reads no data. Raise the version `RULE` if the choice or the chosen head's defaults change.
Cells of another version are then trained again. A bundle can be verified only by a dpprobe that
knows the bundle's version of the rule.

The rule was chosen on the pairs of dataset and backbone that bench/results/accuracy.md reserves for
this, and on those in bench/results/few_patients.md. `momentum` was the best head. All limits below
are on n mu / sqrt(d), for the mu of the Gaussian mechanism at (epsilon, delta): the norm of a sum
of n equal unit rows, divided by the norm of the noise.

- Rows are whitened from 50 on, in rules 1 and 2 from 100 on. Below 50, noise of spectral norm about
  sqrt(2 d) / (sqrt(0.1) mu) hides most of the released second moment, so its tenth of the budget is
  better spent on gradients. With a file of public rows, rows are whitened by the public rows'
  second moment from 5 on, if `whitening.MOST_DIRECTIONS` allows.
- The centre gets a fifth of the budget below 15, because a centre that is mostly noise costs more
  than the budget. With a public mean, the larger share is not needed.
- Classes are balanced if the user set macro accuracy as the metric (bench/results/balanced.md). For
  unequal classes, balancing gains points from epsilon 0.5 on, and loses at most 0.3 below. For
  equal classes, balancing costs 0.3 on average, but equality is not a public fact. Below 10, and
  always for two classes, the mean scores of the classes are also released (`class_offsets`).
  Offsets gain 3 points on average for two classes if one is rare, and cost 0.1 if they are equal.
  For ten classes offsets cost up to 2 points above 10.
- A student on public images is tried below 20, if the user asked for one. Above, students are worse
  than the head, so the budget for comparing them would be wasted.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from dpprobe.heads.dimension_limits import MOST_FEATURES
from dpprobe.heads.facts import BALANCED_METRIC, DataFacts
from dpprobe.privacy.gaussian_mu import gaussian_mu


class Limits(NamedTuple):
    """Limits on n mu / sqrt(d) for whitening, the centre's larger share, offsets and students."""

    whiten_from: float
    larger_share_below: float
    offsets_below: float
    student_below: float = 20


RULE = 3
# Earlier rules, whose choices can be repeated. Rule 1 equals rule 2 without a metric.
LIMITS = {1: Limits(100, 0, 0), 2: Limits(100, 0, 0), RULE: Limits(50, 15, 10)}
EARLIER = (1, 2)

_LARGER_SHARE, _OFFSET_SHARE, _OFFSET_SHARE_OF_TWO = 0.2, 0.1, 0.05
# The least n mu / sqrt(d) for whitening by public rows, and the centre's share without whitening.
_LEAST_PUBLIC_SIGNAL, _CENTRE_SHARE = 5.0, 0.04


def choose_head(
    facts: DataFacts,
    rule: int = RULE,
    *,
    public: str | None = None,
    public_head: str | None = None,
) -> dict[str, Any]:
    """Returns the options of the head to train, on full batches; depends only on the arguments.

    `public` and `public_head` are the files of public rows and a public head, if the study has
    them.

    Example:
      >>> from dataclasses import replace
      >>> values = {"unit": "image", "dimension": 384, "classes": 4, "multi_label": False}
      >>> facts = DataFacts(n=50_000, epsilon=1.0, delta=1e-5, **values)
      >>> choose_head(facts)["normalize"], choose_head(replace(facts, n=500))["normalize"]
      ('whitened', {'kind': 'centred', 'share': 0.2})
    """
    balanced = facts.metric == BALANCED_METRIC and not facts.multi_label
    return {
        "head": "momentum",
        "normalize": _choose_normalisation(facts, LIMITS[rule], public),
        "loss": "sigmoid" if facts.multi_label else "softmax",
        **({} if public_head is None else {"public_head": public_head}),
        **(balance_options(facts, rule) if balanced else {}),
    }


def balance_options(facts: DataFacts, rule: int) -> dict[str, Any]:
    """Returns the options that balance the chosen head's classes."""
    signal, limit = _signal_of(facts), LIMITS[rule].offsets_below
    if signal < limit:
        return {"class_priors": "released", "offset_share": _OFFSET_SHARE}
    if limit and facts.classes == 2:
        return {"class_priors": "released", "offset_share": _OFFSET_SHARE_OF_TWO}
    return {"class_priors": "released"}


def may_have_student(facts: DataFacts, rule: int) -> bool:
    """Returns True if a student on public images is worth a try, if the user asked for one."""
    return _signal_of(facts) < LIMITS[rule].student_below


def _choose_normalisation(
    facts: DataFacts, limits: Limits, public: str | None
) -> dict[str, Any] | str:
    signal, fits = _signal_of(facts), facts.dimension <= MOST_FEATURES
    if fits and signal >= limits.whiten_from:
        return "whitened" if public is None else {"kind": "whitened", "public": public}
    if public is None:
        larger = signal < limits.larger_share_below
        return {"kind": "centred", "share": _LARGER_SHARE} if larger else "centred"
    if fits and signal >= _LEAST_PUBLIC_SIGNAL:
        return {"kind": "whitened", "public": public, "moment": "public", "share": _CENTRE_SHARE}
    return {"kind": "centred", "public": public}


def _signal_of(facts: DataFacts) -> float:
    """Returns n mu / sqrt(d), for the mu of the Gaussian mechanism at (epsilon, delta)."""
    mu = math.inf
    if math.isfinite(facts.epsilon):
        mu = gaussian_mu(facts.epsilon, facts.delta)
    return facts.n * mu / math.sqrt(facts.dimension)
