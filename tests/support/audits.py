"""Small private methods of every kind, with plans that were made without an accountant."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import HEADS
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.target import Target
from dpprobe.training.plan_file import plan_method
from tests.support.mechanisms import made_plan


def head(name: str, **options: Any) -> MethodOptions:
    made: MethodOptions = importlib.import_module(HEADS[name]).Options(head=name, **options)
    return made


_FULL = {"batch_size": "full", "steps": 5, "init": "zero", "max_grad_norm": 1.0}
# limit below 1, because rows of length 1 have gradients that a limit of 1 does not clip
_UNIT = _FULL | {"max_grad_norm": 0.5, "learning_rate": 0.1}
_BATCHES = {"batch_size": 60, "steps": 12, "max_grad_norm": 1.0}

METHODS: dict[str, MethodOptions] = {
    "least_squares": head("least_squares"),
    "prototypes": head("prototypes"),
    "feature_covariance": head("feature_covariance", normalize="l2"),
    "newton": head("newton"),
    "newton_per_class": head("newton", hessian="per_class", loss="sigmoid"),
    "sgd": head("sgd", **_FULL, learning_rate=0.1),
    "momentum_centred": head("momentum", **_UNIT, normalize="centred"),
    "momentum_whitened": head("momentum", **_UNIT, normalize="whitened"),
    "momentum_balanced": head(
        "momentum",
        **_UNIT,
        normalize="centred",
        class_priors="released",
        prior_share=0.2,
    ),
    "adam_layer_norm": head("adam", **_FULL, learning_rate=0.01, normalize="layer_norm"),
    "exact_sgd": head("sgd", **_FULL, learning_rate=0.1, engine="exact"),
    "sampled_sgd": head("sgd", **_BATCHES, learning_rate=0.1),
    "sampled_exact_sgd": head("sgd", **_BATCHES, learning_rate=0.1, engine="exact"),
    "sampled_lamb_centred": head("lamb", **_BATCHES, learning_rate=0.01, normalize="centred"),
}


def plan_of(method: MethodOptions, n: int, *, noise: float = 4.0, epsilon: float = 1.0) -> Plan:
    """Returns a plan with the method's mechanisms and given noise; its epsilon is arbitrary."""
    return made_plan(method.list_mechanisms(n), n, noise, epsilon=epsilon, priced_by="nobody")


def priced(method: MethodOptions, n: int, epsilon: float, cache: Path) -> Plan:
    """Returns the calibrated plan of a method on n images, at delta 1e-5, without checks."""
    return plan_method(method, Target(n=n, epsilon=epsilon, delta=1e-5), cache=cache, checked=False)
