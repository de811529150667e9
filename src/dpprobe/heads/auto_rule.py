"""The rule of `head: auto`: the options of a head from public facts, by a table fixed beforehand.

The rule looks at no data. A change of what it chooses raises `RULE`: cells of another rule are then
trained anew, and a bundle that names one is verified by the dpprobe that has it.
"""

from __future__ import annotations

from typing import Any

from dpprobe.heads.facts import DataFacts

RULE = 1

# A head that releases or inverts a d x d matrix is not chosen above: 0.5 GB each in float64.
_MOST_FEATURES = 8192
# Below so many units a class, times epsilon, a d x d matrix is noise: sums of classes alone.
_FEWEST_UNITS = 100.0


def choose(facts: DataFacts) -> dict[str, Any]:
    """Returns the options of the head to train, a pure function of the facts.

    What it returns takes rows with several labels where the facts say so, and every release of it
    is of all rows.
    """
    if facts.n * facts.epsilon < _FEWEST_UNITS * facts.classes:
        return {"head": "prototypes", "normalize": "centred"}
    loss = "sigmoid" if facts.multi_label else "softmax"
    if facts.dimension > _MOST_FEATURES:
        return {
            "head": "momentum",
            "normalize": "centred",
            "loss": loss,
            "batch_size": "full",
            "steps": 20,
            "learning_rate": 1.0,
            "max_grad_norm": 1.0,
        }
    return {"head": "feature_covariance", "normalize": "centred", "loss": loss, "steps": 6}
