"""The output of each priced mechanism changes the result: nothing is paid for and not used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dpprobe.heads.fit import fit_heads
from dpprobe.heads.registry import method_options
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.releases import Observer
from tests.support.tiny_networks import plan_of

ROWS, WIDTH, CLASSES = 60, 6, 3
METHODS: list[dict[str, Any]] = [
    {"head": "sgd", "batch_size": 12, "steps": 4},
    {"head": "sgd", "batch_size": 12, "steps": 4, "engine": "closed_form"},
    {"head": "momentum", "steps": 4, "class_priors": "released"},
    {"head": "adam", "steps": 4},
    {"head": "lamb", "steps": 4, "normalize": {"kind": "centred"}},
    {"head": "least_squares"},
    {"head": "newton", "steps": 2},
    {"head": "feature_covariance", "steps": 3},
    {"head": "prototypes"},
]


class Changed(Observer):
    """An observer that changes the output of one mechanism, each release by another amount."""

    def __init__(self, mechanism: str) -> None:
        self.mechanism, self.seen = mechanism, set[str]()

    def observe_release(
        self,
        name: str,
        seed: int,  # noqa: ARG002
        sums: torch.Tensor,  # noqa: ARG002
        draw: Callable[[], torch.Tensor],
        step: float | None = None,
    ) -> torch.Tensor:
        self.seen.add(name)
        released = draw()
        if name != self.mechanism:
            return released
        shift = torch.arange(released.numel(), dtype=released.dtype).view(released.shape)
        if released.ndim == 2 and released.shape[0] == released.shape[1]:
            shift = shift + shift.T
        return released + round(0.01 / step) * step * shift if step else released + 0.01 * shift

    def replace_sampler(self, seed: int, sampler: Any) -> Any:  # noqa: ARG002
        return sampler


def cases() -> list[Any]:
    made = []
    for values in METHODS:
        options = method_options(values)
        names = [item.name for item in options.list_mechanisms(ROWS)]
        made += [pytest.param(options, name, id=f"{options.head}, {name}") for name in names]
    return made


@pytest.mark.parametrize(("options", "mechanism"), cases())
def test_each_release_of_a_head_changes_its_weights(options: Any, mechanism: str) -> None:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(ROWS, WIDTH, generator=generator)
    data = TrainingSet(rows, rows[:, :CLASSES].argmax(1), CLASSES)
    plan = plan_of(options, ROWS, 1.0)
    plain, changed = Changed(""), Changed(mechanism)
    first, second = (fit_heads(options, data, plan, [7], observer=one) for one in (plain, changed))
    assert mechanism in plain.seen
    assert np.abs(first.weights - second.weights).max() > 0 or any(
        not torch.equal(first.transforms[0].arrays[key], value)
        for key, value in second.transforms[0].arrays.items()
    )
