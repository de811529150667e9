"""DP-Adam (Kingma and Ba 2015 on privatised gradients) on a linear head."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from dpprobe.heads.gradient_options import GradientOptions

if TYPE_CHECKING:
    from dpprobe.heads import Fitted, Record
    from dpprobe.heads.rows import Rows
    from dpprobe.privacy.releases import Releases


class Options(GradientOptions):
    """DP-Adam.

    Defaults: full batch, zero weights and C = 1 (Mehta et al. 2022, sections 4 and 5), the
    moments' decays of Kingma and Ba; 40 steps at 0.01, chosen like momentum's.
    """

    DEFAULT_EPOCHS: ClassVar[float] = 40

    head: Literal["adam"] = "adam"
    learning_rate: float = Field(0.01, gt=0, allow_inf_nan=False)
    beta1: float = Field(0.9, ge=0, lt=1, allow_inf_nan=False, description="Of the mean gradient.")
    beta2: float = Field(
        0.999, ge=0, lt=1, allow_inf_nan=False, description="Of the mean squared gradient."
    )
    eps: float = Field(
        1e-8, gt=0, allow_inf_nan=False, description="Added to the root of the mean square."
    )


def fit(
    options: Options, rows: Rows, releases: Releases, *, record: Record | None = None
) -> Fitted:
    """Trains one head a seed; see `dpprobe.heads.fit`."""
    from dpprobe.heads import first_order
    from dpprobe.heads.optimisers import Adam

    optimiser = partial(Adam, beta1=options.beta1, beta2=options.beta2, eps=options.eps)
    return first_order.fit(options, rows, releases, optimiser, record=record)
