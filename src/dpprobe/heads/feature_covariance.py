"""DP-FC: noisy gradient steps, preconditioned by a noisy covariance that is released once.

DP-SGD with feature covariance of Mehta et al. 2023 ("Differentially private image classification
from features"), algorithm for DP-FC.

Released, of rows x of norm at most S (see `second_order_options.RowOptions`):

- "covariance", once: G = sum of x x^T. A row more or less changes it by x x^T, of Frobenius norm
  |x|^2 <= S^2. The noise is symmetric and isometric. Not released where `public_covariance` names
  another, public dataset's features through the same backbone.
- "gradients", `steps` times: the sum of the rows' gradients r x^T, each clipped to norm
  `max_grad_norm` whatever the weights are: that is the sensitivity.

The noise multipliers give `covariance_share` of mu^2 = 1/sigma_G^2 + steps/sigma_g^2 to G. Each
step is W <- W - rate (g + lambda h (W - W_0)) (G* + lambda I)^-1 with G* from
`second_order.spectrum`, decomposed once. From W = 0 with a softmax, h = 1/K and rate = K the first
step is exactly least squares times K; what follows corrects it towards logistic regression, whose
gradient is right even where G* is not.

Published settings (CIFAR-100, epsilon 8): loss sigmoid, steps 10, learning_rate 0.2, ridge 100,
max_row_norm 1, max_grad_norm 0.005, covariance_share 1/11, intercept 0, init_bias -10,
penalised false, average last, normalize none.

Without noise nothing is clipped, and lambda is the sums' rounding: steps enough converge to
logistic regression without a penalty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from dpprobe.heads.descent_options import FileInitOptions
from dpprobe.heads.second_order_options import GRADIENTS, full_batch
from dpprobe.privacy.plan import (
    LARGEST_SENSITIVITY,
    SMALLEST_SENSITIVITY,
    Mechanism,
    split_budget,
)

if TYPE_CHECKING:
    from dpprobe.heads import Fitted, Record
    from dpprobe.heads.rows import Rows
    from dpprobe.privacy.releases import Releases

COVARIANCE = "covariance"


class Options(FileInitOptions):
    """DP-FC; the defaults were fixed on public features (bench/results/defaults.md)."""

    paths: ClassVar[tuple[str, ...]] = ("init_file", "public_covariance")

    head: Literal["feature_covariance"] = "feature_covariance"
    steps: int = Field(6, ge=1, description="Full-batch steps.")
    covariance_share: float = Field(
        0.2,
        gt=0,
        lt=1,
        allow_inf_nan=False,
        description="The covariance's part of the head's budget; the gradients have the rest.",
    )
    max_grad_norm: float = Field(
        0.7,
        ge=SMALLEST_SENSITIVITY,
        le=LARGEST_SENSITIVITY,
        allow_inf_nan=False,
        description="Each row's gradient is clipped to this L2 norm.",
    )
    public_covariance: str | None = Field(
        None,
        min_length=1,
        description="A manifest.json of a public dataset's features through the same backbone: "
        "its covariance takes the place of the released one and costs nothing.",
    )

    def releases(self, n: int) -> tuple[Mechanism, ...]:  # noqa: ARG002
        gradients = full_batch(
            GRADIENTS,
            "sum of the rows' clipped gradients, one a step",
            self.max_grad_norm,
            self.steps,
        )
        if self.public_covariance is not None:
            return (gradients,)
        covariance = full_batch(
            COVARIANCE, "sum of the clipped rows' outer products", self.longest**2
        )
        share = self.covariance_share
        return split_budget([(share, (covariance,)), (1 - share, (gradients,))])


def fit(
    options: Options, rows: Rows, releases: Releases, *, record: Record | None = None
) -> Fitted:
    """Trains one head a seed; see `dpprobe.heads.fit`."""
    from dpprobe.heads.descent import fit_feature_covariance

    return fit_feature_covariance(options, rows, releases, record=record)
