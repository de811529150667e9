"""The rule of `head: auto`: the options of a head from public facts, by a table fixed beforehand.

The rule of `head: auto` reads no data. Raise the version `RULE` if the choice or the chosen head's
defaults change. Cells of another version of the rule are trained again. Only a dpprobe with a
bundle's version of the rule verifies the bundle.

Rule 2 balances classes if a person named macro accuracy as the metric. Balancing was measured on
many pairs (bench/results/balanced.md). If classes are unequal it gains points from epsilon 0.5 on,
and loses at most 0.3 below. If classes are equal, which is no public fact, it costs 0.3 on average.

The rule was fixed on the pairs of data and backbone that bench/results/accuracy.md reserves for
choosing. `momentum` was the best
head: on centred rows at small n and epsilon, and on whitened rows above n mu = 100 sqrt(d), with mu
  of the Gaussian mechanism at (epsilon, delta). At smaller n mu, noise of spectral norm about
  sqrt(2 d) / (sqrt(0.1) mu) hides most of the released second moment, so the moment's tenth of the
  budget is better spent on gradients.
"""

from __future__ import annotations

import math
from typing import Any

from dpprobe.heads.dimension_limits import MOST_FEATURES
from dpprobe.heads.facts import DataFacts
from dpprobe.privacy.gaussian_mu import gaussian_mu

RULE = 3
# Earlier rules whose choices this version can repeat. Rule 1 chose as rule 2 does without a metric.
EARLIER = ()
# The metric for which all classes are equally important.
BALANCED_METRIC = "macro_accuracy"

# The least n mu / sqrt(d) at which the second moment is worth its share of the budget.
_LEAST_SIGNAL = 100.0
# Below this n mu / sqrt(d) the centre gets a larger share, or the second moment of public rows is
# used from another one on.
_SMALL_SIGNAL, _LARGER_SHARE = 15.0, 0.2
_LEAST_PUBLIC_SIGNAL, _CENTRE_SHARE = 5.0, 0.04
# The largest n mu / sqrt(d) at which the mean scores of classes are worth their share.
_MOST_OFFSET_SIGNAL, _OFFSET_SHARE = 10.0, 0.1


def choose_head(facts: DataFacts, *, public: str | None = None) -> dict[str, Any]:
    """Returns the options of the head to train, on full batches: a pure function of the facts.

    `public` names a file of public rows, if the study has one.
    """
    balanced = facts.metric == BALANCED_METRIC and not facts.multi_label
    return {
        "head": "momentum",
        "normalize": choose_normalisation(facts, public),
        "loss": "sigmoid" if facts.multi_label else "softmax",
        **(balance_options(facts) if balanced else {}),
    }


def choose_normalisation(facts: DataFacts, public: str | None) -> dict[str, Any] | str:
    """Returns the normalisation of the chosen head."""
    signal, fits = signal_of(facts), facts.dimension <= MOST_FEATURES
    if fits and signal >= _LEAST_SIGNAL:
        return "whitened" if public is None else {"kind": "whitened", "public": public}
    if public is None:
        return "centred" if signal >= _SMALL_SIGNAL else {"kind": "centred", "share": _LARGER_SHARE}
    if fits and signal >= _LEAST_PUBLIC_SIGNAL:
        return {"kind": "whitened", "public": public, "moment": "public", "share": _CENTRE_SHARE}
    return {"kind": "centred", "public": public}


def balance_options(facts: DataFacts) -> dict[str, Any]:
    """Returns the options that balance the chosen head's classes."""
    offsets = {"offset_share": _OFFSET_SHARE} if signal_of(facts) < _MOST_OFFSET_SIGNAL else {}
    return {"class_priors": "released", **offsets}


def signal_of(facts: DataFacts) -> float:
    """Returns n mu / sqrt(d), with mu of the Gaussian mechanism at (epsilon, delta)."""
    mu = math.inf
    if math.isfinite(facts.epsilon):
        mu = gaussian_mu(facts.epsilon, facts.delta)
    return facts.n * mu / math.sqrt(facts.dimension)
