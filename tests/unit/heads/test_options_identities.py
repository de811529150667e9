"""Seeds of finished cells derive from plans: rewording a release must not change them."""

from __future__ import annotations

from typing import Any

import pytest

from dpprobe.artifacts import hash_value
from dpprobe.heads.registry import HEADS, method_options
from dpprobe.privacy.plan import plan_identity

from .test_fit_every_head import FULL, plan

TUNED: dict[str, Any] = {
    "head": "tuned",
    "base": {"head": "prototypes"},
    "search": {"max_row_norm": [0.5, 1.0]},
    "trials": 2,
}
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "adam": (FULL["adam"] | {"head": "adam"}, "9a9a5873e0fcc02d"),
    "auto": (FULL["auto"] | {"head": "auto"}, "3a6d1a4b7ab75ca6"),
    "feature_covariance": (
        FULL["feature_covariance"] | {"head": "feature_covariance"},
        "3a6d1a4b7ab75ca6",
    ),
    "lamb": (FULL["lamb"] | {"head": "lamb"}, "9a9a5873e0fcc02d"),
    "least_squares": (FULL["least_squares"] | {"head": "least_squares"}, "2d3e13911a441915"),
    "momentum": (FULL["momentum"] | {"head": "momentum"}, "9a9a5873e0fcc02d"),
    "newton": (FULL["newton"] | {"head": "newton"}, "e4b34eef641bac3c"),
    "nonprivate": (FULL["nonprivate"] | {"head": "nonprivate"}, "ea19d26812a1d6a6"),
    "prototypes": (FULL["prototypes"] | {"head": "prototypes"}, "d94856431fe7de0f"),
    "sgd": (FULL["sgd"] | {"head": "sgd"}, "b3b84298c65c51c0"),
    "tuned": (FULL["tuned"] | {"head": "tuned"}, "219516f5b0063413"),
    "newton, per class": (
        {"head": "newton", "hessian": "per_class", "loss": "sigmoid"},
        "2a323fa1c2ecc8cf",
    ),
    "sgd, sampled": ({"head": "sgd", "batch_size": 64}, "be4fd3a07c9f94e5"),
    "sgd, whitened": (
        {"head": "sgd", "normalize": "whitened", "batch_size": 64},
        "e4e6e0680c502c61",
    ),
    "tuned, several norms": (TUNED, "e5f40dc7039c6495"),
    "fine_tune": (
        {"head": "fine_tune", "tune": "all", "batch_size": 64, "steps": 5},
        "a6fde15731500376",
    ),
}


def test_every_head_has_a_case() -> None:
    assert {options["head"] for options, _ in CASES.values()} == set(HEADS) | {"fine_tune"}


@pytest.mark.parametrize("case", CASES)
def test_plans_keep_their_identities(case: str) -> None:
    options, expected = CASES[case]
    values = plan(method_options(options), 3000, noise=5.0).to_dict()
    assert hash_value(plan_identity(values))[:16] == expected
