"""The optimisers' common interface; each head's module has its optimiser.

An optimiser looks at noisy sums alone, so it is post-processing and costs no privacy. Nothing heavy
is imported here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, TypeAlias

if TYPE_CHECKING:
    import torch


class Optimiser(ABC):
    """Updates heads [seeds, classes, d + 1] in place; each seed as if it were alone.

    Class attributes:
      plain: True if a step is w - rate g and nothing else, so that a compiled loop may take it. It
        is not inherited: see `is_plain`.
    """

    plain: ClassVar[bool] = False

    @abstractmethod
    def step(self, weights: torch.Tensor, gradient: torch.Tensor, rate: float) -> None:
        """Takes a step of length `rate` along `gradient`, of the weights' shape; may alter it."""

    @abstractmethod
    def copy_state(self) -> dict[str, State]:
        """Returns a copy of all that the next steps depend on, beside the weights."""

    @abstractmethod
    def restore_state(self, state: Mapping[str, State]) -> None:
        """Continues where another optimiser of the same constants stood at `state`."""


# A tensor of an optimiser, or the number of its steps.
State: TypeAlias = "torch.Tensor | int"
MakeOptimiser = Callable[[], Optimiser]


def is_plain(optimiser: Optimiser) -> bool:
    """Returns True if the optimiser's class itself, not one that it derives from, is plain."""
    return bool(vars(type(optimiser)).get("plain", False))
