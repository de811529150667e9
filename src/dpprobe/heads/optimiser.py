"""The optimisers' common interface, and plain SGD; other optimisers are in their heads' modules.

Optimisers read only noisy sums: post-processing, without privacy cost. Imports nothing heavy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import torch

# A value in an optimiser's state: a tensor, or the number of steps.
State: TypeAlias = "torch.Tensor | int"


class Optimiser(ABC):
    """Updates heads [seeds, classes, d + 1] in place, each seed independently."""

    def __init__(self) -> None:
        # The state that later steps need besides the weights; empty before the first step.
        self._state: dict[str, Any] = {}

    @abstractmethod
    def step(self, weights: torch.Tensor, gradient: torch.Tensor, rate: float) -> None:
        """Takes a step; `gradient` has the weights' shape, and may be overwritten."""

    def copy_state(self) -> dict[str, State]:
        """Returns a copy of the state, for another optimiser's `restore_state`."""
        return _copy_values(self._state)

    def restore_state(self, state: Mapping[str, State]) -> None:
        self._state = _copy_values(state)


def _copy_values(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one if isinstance(one, int) else one.clone() for name, one in state.items()}


class Sgd(Optimiser):
    """Plain SGD, w - rate g, which compiled code also implements."""

    def step(self, weights: torch.Tensor, gradient: torch.Tensor, rate: float) -> None:
        weights.add_(gradient, alpha=-rate)


MakeOptimiser = Callable[[], Optimiser]
