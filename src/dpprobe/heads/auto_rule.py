"""The rule of `head: auto`: the options of a head from public facts, by a table fixed beforehand.

The rule of `head: auto` reads no data. Raise the version `RULE` if the choice or the chosen head's
defaults change. Cells of another version of the rule are trained again. Only a dpprobe with a
bundle's version of the rule verifies the bundle.

Rule 2 balances classes if a person named macro accuracy as the metric. Balancing was measured on
many pairs (bench/results/balanced.md). If classes are unequal it gains points from epsilon 0.5 on,
and loses at most 0.3 below. If classes are equal, which is no public fact, it costs 0.3 on average.

The rule was fixed on the pairs of data and backbone that bench/results/accuracy.md reserves for
choosing. `momentum` was the best head: on centred rows at small n and epsilon, and on whitened rows
above n mu = 50 sqrt(d), with mu of the Gaussian mechanism at (epsilon, delta). At smaller n mu,
noise of spectral norm about sqrt(2 d) / (sqrt(0.1) mu) hides most of the released second moment, so
the moment's tenth of the budget is better spent on gradients. Rules 1 and 2 whitened from 100
sqrt(d) on.
"""

from __future__ import annotations

import math
from typing import Any

from dpprobe.heads.dimension_limits import MOST_FEATURES
from dpprobe.heads.facts import DataFacts
from dpprobe.privacy.gaussian_mu import gaussian_mu

RULE = 3
# The least n mu / sqrt(d) at which the second moment is worth its share of the budget, by rule.
# Choices of earlier rules can be repeated. Rule 1 chose as rule 2 does without a metric.
_LEAST_SIGNAL = {1: 100.0, 2: 100.0, RULE: 50.0}
EARLIER = (1, 2)
# The metric for which all classes are equally important.
BALANCED_METRIC = "macro_accuracy"


def choose_head(facts: DataFacts, rule: int = RULE) -> dict[str, Any]:
    """Returns the options of the head to train, on full batches: a pure function of the facts."""
    balanced = facts.metric == BALANCED_METRIC and not facts.multi_label
    mu = math.inf
    if math.isfinite(facts.epsilon):
        mu = gaussian_mu(facts.epsilon, facts.delta)
    signal = facts.n * mu / math.sqrt(facts.dimension)
    whitens = facts.dimension <= MOST_FEATURES and signal >= _LEAST_SIGNAL[rule]
    return {
        "head": "momentum",
        "normalize": "whitened" if whitens else "centred",
        "loss": "sigmoid" if facts.multi_label else "softmax",
        **({"class_priors": "released"} if balanced else {}),
    }
