"""Privacy statements of made-up cells, in which a test can change single facts."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from typing import Any, cast

from dpprobe.heads.registry import method_options
from dpprobe.privacy import accountants
from dpprobe.privacy.plan import Plan, Selection
from dpprobe.privacy.statement import Declared, Statement
from tests.support.mechanisms import gaussians

FREQUENCIES = {"head": "momentum", "class_priors": "released", "normalize": "l2"}
TUNED = {"head": "tuned", "base": {"head": "sgd"}, "search": {"learning_rate": [0.1, 1]}}
BATCHES = {"head": "sgd", "max_batch_grad_norm": 1.5}
UNPRICED = {"head": "fine_tune", "tune": "head", "search": {"space": {"learning_rate": [0.1, 1]}}}
EXACT = {"head": "sgd", "engine": "exact"}
SEARCH = Selection(mean=10, repeated=("gradients",))
NEAR: dict[str, Any] = {
    "threshold": 0.9,
    "train": {"near": 3, "exact": 1, "rows": 100},
    "test": {"near": 0, "exact": 0, "rows": 20},
}
NONE_NEAR = NEAR | {"train": NEAR["train"] | {"near": 0}}
BY_FILE = Declared(study="lesions", files={"public_covariance": "m"}, hashes={"m": "ab" * 32})
OUTSIDE = {"backbone_options": {"family": "external", "model": "some"}}
DRAWN = {"subsample": {"fraction": 0.25, "public_seed": 7}}
RULE = {"rule": "the rule of `auto`", "head": "sgd", "n": 1600, "classes": 3}
COPIES = {"rows": 12, "most": 3}
TESTED = {"n": 400, "split": {"by": "source"}, "compared": ["bytes", "pixels"]}


@cache
def plan(epsilon: float = 1.0) -> Plan:
    private = math.isfinite(epsilon)
    centre = gaussians(9.0 if private else 0.0, name="covariance")
    steps = gaussians(5.0 if private else 0.0, 0.02, 500, "gradients")
    mechanisms = (centre, replace(steps, sensitivity=1.2))
    return Plan(
        mechanisms=mechanisms,
        n=1600,
        epsilon=epsilon,
        delta=1e-5,
        accountant="pld",
        realised_epsilon=accountants.compute_epsilon(mechanisms, 1e-5, "pld"),
        priced_by=accountants.describe_accountant(mechanisms, "pld"),
        checks={"prv": 0.999} if private else {},
    )


def state(epsilon: float = 1.0, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "plan": plan(epsilon),
        "method": "paper",
        "mode": "benchmark",
        "seeds": [1, 2**127],
        "options": {"head": "sgd", "learning_rate": 0.1, "engine": "closed_form"},
        "epsilon_all_heads": 1.6 if math.isfinite(epsilon) else math.inf,
        **of_backbone(),
        **changes,
    }
    head = method_options(values["options"])
    values["private_choices"] = head.private_choices
    values["priced_normalisation"] = head.normalize.priced
    values["released_priors"] = head.releases_priors
    values["engine_limits"] = head.engine_limits
    return Statement(**values).to_dict()


def of_backbone(**facts: Any) -> dict[str, Any]:
    usual = {"backbone": "resnet50", "trained": True, "near_duplicate_check": "not_run"}
    return {"public_data": usual | facts}


def state_with(**changes: Any) -> dict[str, Any]:
    """Returns a statement as read from JSON; `changes` may also change values of the plan.

    Mechanisms use all rows unless `sampled`, and two heads are published.
    """
    made = plan(changes.pop("epsilon", 1.0))
    if not changes.pop("sampled", False):
        last = replace(made.mechanisms[1], sample_rate=1.0, count=20)
        made = replace(made, mechanisms=(made.mechanisms[0], last))
    if changes.get("options", {}).get("head") == "nonprivate":
        made = Plan(mechanisms=(), n=1600, epsilon=math.inf, delta=1e-5, accountant="pld")
    own = {key: changes.pop(key) for key in list(changes) if key in Plan.__dataclass_fields__}
    together = {} if made.private else {"epsilon_all_heads": math.inf}
    stated = state(plan=replace(made, **own), **together | changes)
    return cast("dict[str, Any]", json.loads(json.dumps(stated, allow_nan=False)))
