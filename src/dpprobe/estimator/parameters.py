"""The parameters of a `PrivateClassifier`, checked before any import that takes seconds."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.estimator.budget import Budget
from dpprobe.estimator.given_values import list_classes, read_number, read_target
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import method_options
from dpprobe.privacy.plan import Plan

PROTECTS_NOTHING = (
    "benchmark=True protects nothing: the noise follows from a seed in the statement. "
)


class Parameters(Protocol):
    """The parameters of a `PrivateClassifier`, which its docstring explains."""

    epsilon: float | Mapping[str, float]
    delta: float | None
    head: str | Mapping[str, Any]
    classes: Sequence[Hashable] | None
    unit: Literal["row", "group", "image", "patient"]
    budget: Budget | None
    benchmark: bool
    random_state: int | np.random.RandomState | None
    missing: Literal["refuse", "null"]


def check_parameters(classifier: Parameters) -> None:
    """Raises PrivacyError or ConfigError for parameters that would break a guarantee.

    After this check, an estimator has a budget exactly if its fit is private.
    """
    if classifier.unit not in Plan.UNITS:
        raise ConfigError(f"unit {classifier.unit!r}: must be row or group, or image or patient")
    if classifier.missing not in ("refuse", "null"):
        raise ConfigError(f"missing {classifier.missing!r}: must be refuse or null")
    epsilon = read_target(classifier.epsilon)
    if classifier.delta is not None:
        read_number("delta", classifier.delta)
    if classifier.classes is not None:
        list_classes(classifier.classes)
    if classifier.benchmark:
        if classifier.budget is not None:
            raise ConfigError(
                f"budget: {PROTECTS_NOTHING}It needs no budget; remove budget or benchmark=True"
            )
        return
    if classifier.budget is None:
        raise PrivacyError(
            "budget: a private fit needs one: budget=dpprobe.Budget(max_epsilon=1, delta=1e-6); "
            "or pass benchmark=True for a seeded fit that protects nothing"
        )
    if not isinstance(classifier.budget, Budget):
        raise ConfigError(f"budget {classifier.budget!r}: pass a dpprobe.Budget")
    if classifier.random_state is not None:
        raise PrivacyError(
            "random_state: nobody may know the noise of a private fit; remove random_state, or "
            "pass benchmark=True"
        )
    if classifier.classes is None:
        raise PrivacyError(
            "classes: missing. They are published with the weights, so a private fit does not "
            "read them from y. Write a list that is known beforehand: classes=[0, 1]"
        )
    if epsilon == math.inf:
        raise PrivacyError(
            "epsilon inf: a head without noise is not private; use a finite epsilon, or pass "
            "benchmark=True"
        )


def read_method(classifier: Parameters) -> MethodOptions:
    head = classifier.head
    return method_options(dict(head) if isinstance(head, Mapping) else {"head": head})
