"""Options of momentum, Adam and LAMB without normalisation, with a constant learning rate."""

from __future__ import annotations

from typing import ClassVar

from dpprobe.heads import adam, lamb, momentum
from dpprobe.heads.normalisation import NoNormalisation, Normalize


class Momentum(momentum.Options):
    DEFAULT_EPOCHS: ClassVar[float] = 20

    normalize: Normalize = NoNormalisation()
    learning_rate: float | None = 1.0
    max_grad_norm: float = 1.0
    intercept: float = 1.0


class Adam(adam.Options):
    normalize: Normalize = NoNormalisation()
    learning_rate: float | None = 0.01
    max_grad_norm: float = 1.0
    intercept: float = 1.0
    noise_correction: float | None = None


class Lamb(lamb.Options):
    DEFAULT_EPOCHS: ClassVar[float] = 1

    normalize: Normalize = NoNormalisation()
    learning_rate: float | None = 1e-3
    max_grad_norm: float = 1.0
    intercept: float = 1.0
