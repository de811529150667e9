"""Other libraries' DP-SGD on a linear softmax layer, one adapter a library.

An adapter is a module of this package with

- `version() -> str | None`: of the installed library; None where it is not installed;
- `trainer(task, features, labels) -> Run`: a function that takes so many steps and returns when
  they are done. A library compiles before `trainer` returns.

A step draws a batch, clips each example's gradient to an L2 norm, adds Gaussian noise and updates
the weights. At its top an adapter imports nothing but NumPy: `peers.worker` asks each for its
version, in whatever environment it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Run = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class Task:
    """The work of a peer.

    Attributes:
      rows, classes: of the data.
      batch: expected rows per step, each row with probability batch / rows; `rows` is full batch.
      physical: rows whose gradients are taken at a time; None is the whole batch at once.
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
