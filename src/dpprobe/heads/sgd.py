"""DP-SGD (Abadi et al. 2016, algorithm 1, with Poisson sampling) on a linear head."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from dpprobe.heads.fitted import Fitted, Record
from dpprobe.heads.gradient_options import BatchSize, GradientNorm, GradientOptions, Init
from dpprobe.heads.optimiser import Sgd

if TYPE_CHECKING:
    from dpprobe.heads.rows import Rows
    from dpprobe.privacy.releases import Releases


class Options(GradientOptions):
    """DP-SGD; the defaults are the foundation-features paper's (docs/references.md)."""

    DEFAULT_EPOCHS: ClassVar[float] = 20

    head: Literal["sgd"] = "sgd"
    batch_size: BatchSize = 32
    learning_rate: float = Field(0.1, gt=0, description="Length of a step.")
    max_grad_norm: GradientNorm = 1.2
    init: Init = "torch"


def fit(options: Options, rows: Rows, releases: Releases, *, record: Record | None) -> Fitted:
    from dpprobe.heads import gradient_steps  # imports torch, which planning goes without

    return gradient_steps.take_gradient_steps(options, rows, releases, Sgd, record=record)
