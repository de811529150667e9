"""The heads and networks that a method may name, with the modules of their options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import SerializeAsAny

from dpprobe.heads.options import MethodOptions
from dpprobe.options import by_registry
from dpprobe.wrong_keys_and_values import read_options

HEADS: dict[str, str] = {
    "adam": "dpprobe.heads.adam",
    "auto": "dpprobe.heads.auto",
    "feature_covariance": "dpprobe.heads.feature_covariance",
    "lamb": "dpprobe.heads.lamb",
    "least_squares": "dpprobe.heads.least_squares",
    "momentum": "dpprobe.heads.momentum",
    "newton": "dpprobe.heads.newton",
    "nonprivate": "dpprobe.heads.nonprivate",
    "prototypes": "dpprobe.heads.prototypes",
    "sgd": "dpprobe.heads.sgd",
    "tuned": "dpprobe.heads.tuned",
}

# `NETWORKS` train parts of a network; `HEADS` are linear, on stored features.
NETWORKS: dict[str, str] = {"fine_tune": "dpprobe.finetune.options"}
METHODS = HEADS | NETWORKS

AnyMethod = Annotated[SerializeAsAny[MethodOptions], by_registry(METHODS, "head")]


def method_options(values: Mapping[str, Any]) -> MethodOptions:
    """Parses serialised options; raises ConfigError with one line per error.

    Example:
      >>> options = method_options({"head": "sgd", "batch_size": 32, "epochs": 20})
      >>> [(m.name, round(m.sample_rate, 4), m.count) for m in options.list_mechanisms(1000)]
      [('gradients', 0.032, 625)]
      >>> method_options({"head": "sgd", "bach_size": 32})
      Traceback (most recent call last):
          ...
      dpprobe.errors.ConfigError: head: bach_size: unknown key; write batch_size, or remove it
    """
    return read_options(METHODS, "head", values, MethodOptions)  # type: ignore[type-abstract]
