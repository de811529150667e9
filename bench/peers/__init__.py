"""DP-SGD of other libraries on a linear softmax layer, by one adapter per library.

An adapter is a module of this package with

- `version() -> str | None`: the version of the installed library; None if not installed;
- `trainer(task, features, labels) -> Run`: returns, after compiling, a function that takes a number
  of steps and returns when the steps are done.

A step draws a batch, clips each example's gradient to an L2 norm, adds Gaussian noise and updates
the weights. The top of an adapter imports only NumPy, because `peers.worker` asks all adapters for
versions in environments that lack libraries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Run = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class Task:
    """The work of a peer.

    Attributes:
      rows, classes: the size of the data.
      batch: expected rows per step, each row with probability batch / rows; full if equal to rows.
      physical: number of rows whose gradients are computed at once; None for the whole batch.
      device: "cpu" or "cuda".
    """

    rows: int
    classes: int
    batch: int
    physical: int | None = None
    device: str = "cpu"
    clip: float = 1.2
    noise_multiplier: float = 0.7524
    learning_rate: float = 0.1

    @property
    def full(self) -> bool:
        return self.batch == self.rows

    @property
    def rate(self) -> float:
        return self.batch / self.rows

    @property
    def at_once(self) -> int:
        return self.physical or self.rows
