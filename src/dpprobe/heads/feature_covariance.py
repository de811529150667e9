"""DP-FC: noisy gradient steps, preconditioned by a noisy covariance that is released once.

Implements DP-SGD with feature covariance, the algorithm DP-FC of Mehta et al. 2023 ("Differentially
private image classification from features").

The head releases two sums over rows x of norm at most S (`clipped_row_options.RowOptions`):

- "covariance", once: G = sum of x x^T. A row adds x x^T, of Frobenius norm |x|^2 <= S^2; a null row
  adds nothing. The noise on G is symmetric and isometric. G is not released if `public_covariance`
  names a public dataset's features from the same backbone.
- "gradients", `steps` times: the sum of the examples' gradients r x^T, each clipped to norm
  `max_grad_norm`. So the sensitivity is `max_grad_norm` at any weights.

`covariance_share` is G's share of mu^2 = 1/sigma_G^2 + steps/sigma_g^2. Each step is W <- W - rate
(g + lambda h (W - W_0)) (G* + lambda I)^-1 with G* from `second_order.estimate_spectrum`,
decomposed once. From W = 0 with a softmax, h = 1/K and rate = K, the first step is exactly K times
the least-squares solution. Later steps correct the weights towards logistic regression, whose
gradient is right even if the estimate G* is wrong.

Published settings (CIFAR-100, epsilon 8): loss sigmoid, steps 10, learning_rate 0.2, ridge 100,
max_row_norm 1, max_grad_norm 0.005, covariance_share 1/11, intercept 0, init_bias -10,
penalised false, average last, normalize none.

Without noise nothing is clipped, and lambda is `second_order.floor_ridge`. Enough steps then
converge to logistic regression with penalty lambda / (2 K) |W|^2; none if `ridge: 0`.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from dpprobe.heads.clipped_row_options import GRADIENTS
from dpprobe.heads.fitted import Fitted, Record
from dpprobe.heads.gradient_options import GradientNorm, InitFile, check_start
from dpprobe.heads.normalisation import Share
from dpprobe.heads.preconditioned_descent import (
    MOST_FULL_STEPS,
    PreconditionedDescentOptions,
    default_start,
)
from dpprobe.options import resolve_path
from dpprobe.privacy.plan import Mechanism, full_batch, split_budget

if TYPE_CHECKING:
    import torch

    from dpprobe.heads.rows import Rows
    from dpprobe.heads.second_order import Design
    from dpprobe.privacy.releases import Releases

COVARIANCE = "covariance"


class Options(PreconditionedDescentOptions):
    """DP-FC; the defaults were fixed on public features (bench/results/defaults.md)."""

    paths: ClassVar[tuple[str, ...]] = ("init_file", "public_covariance")

    head: Literal["feature_covariance"] = "feature_covariance"
    init: Literal["zero", "file"] = Field(
        "zero", description="Start from weights 0, or from public weights in init_file."
    )
    init_scale: float | None = Field(
        None, gt=0, description="Factor by which the file's weights are multiplied."
    )
    init_file: InitFile = None
    steps: Annotated[int, MOST_FULL_STEPS] = Field(
        6, ge=1, description="Number of full-batch steps."
    )
    covariance_share: Share = Field(
        0.2, description="The covariance's share of the head's budget; the gradients get the rest."
    )
    max_grad_norm: GradientNorm = 0.7
    public_covariance: str | None = Field(
        None,
        min_length=1,
        description="A manifest.json of a public dataset's features from the same backbone. The "
        "features' covariance replaces the released covariance and costs no privacy. Features of "
        "private images are refused.",
    )

    @model_validator(mode="after")
    def _check_init(self) -> Options:
        check_start(self.init, self.init_file)
        if self.init_scale is not None and self.init != "file":
            raise ValueError(
                f"init_scale {self.init_scale:g} has no effect with init {self.init}; remove "
                "it, or write `init: file`"
            )
        return self

    @property
    def running_sums(self) -> tuple[str, ...] | None:
        if self.is_balanced:  # because cohorts differ in class frequencies
            return None
        return () if self.public_covariance is not None else (COVARIANCE,)

    def list_releases(self, n: int) -> tuple[Mechanism, ...]:  # noqa: ARG002
        gradients = full_batch(
            GRADIENTS,
            "sum of the rows' clipped gradients, one per step",
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


def fit(options: Options, rows: Rows, releases: Releases, *, record: Record | None) -> Fitted:
    """Releases one covariance and `steps` gradients for each seed."""
    # late imports: planning imports this module without torch
    import torch

    from dpprobe.heads.preconditioned_descent import Descent
    from dpprobe.heads.second_order import each_seed, estimate_spectrum, second_moment

    public = options.public_covariance
    with torch.inference_mode():
        clip = options.max_grad_norm if releases.plan.private else math.inf
        start, share = public_start(options, rows), 1.0
        running = releases.running
        if running is not None and running.last_weights is not None:
            # The previous head was trained on the earlier units, so gradients use only new units.
            # The smaller the share of new units, the less the head moves
            # (bench/results/cohorts.md).
            start, share = torch.from_numpy(running.last_weights).to(rows.device), running.new_share
        descent = Descent(options, rows, releases, clip, start=start, record=record)
        design = descent.design
        if public is None:
            moment = rows.make_once(design.cache_key("gram"), partial(second_moment, design))
        else:
            make = partial(public_moment, public, options, design)
            public_matrix = rows.make_once((*design.cache_key("public"), public), make)

        def train_seed(seed_releases: Releases) -> torch.Tensor:
            if public is not None:
                covariance, multiplier = estimate_spectrum(public_matrix, 0.0), 0.0
            else:
                released = seed_releases.release_symmetric(COVARIANCE, moment.one_seed)[0]
                deviation = seed_releases.noise_deviation(COVARIANCE) * share
                covariance = estimate_spectrum(released * share, deviation)
                multiplier = seed_releases.noise_multiplier(COVARIANCE) * share
            solver = descent.make_solver(seed_releases, covariance, multiplier)
            return descent.take_steps(seed_releases, solver)

        names = (GRADIENTS,) if public is not None else (COVARIANCE, GRADIENTS)
        weights = each_seed(releases, names, train_seed, head=options.head)
        if share < 1:
            weights = start + math.sqrt(share) * (weights - start)
        return descent.make_fitted(weights)


def public_start(options: Options, rows: Rows) -> torch.Tensor:
    """Returns the initial weights, float32 [K, d + 1]: from the file, if given."""
    import torch  # heavy: planning imports this module

    from dpprobe.heads.initial_weights import weights_from_file

    start = default_start(options, rows)
    if options.init_file is not None:
        path = str(resolve_path(options.init_file))
        public = weights_from_file(path, rows.num_classes, rows.dimension)
        start.copy_(torch.from_numpy(public * (options.init_scale or 1.0)))
        if options.init_bias is not None:
            start[:, -1] = options.init_bias
    return start


def public_moment(manifest: str, options: Options, design: Design) -> torch.Tensor:
    """Returns the second moment of public examples, clipped like private examples, scaled to n."""
    from dpprobe.heads.public_rows import open_public_set  # imports torch
    from dpprobe.heads.rows import Rows
    from dpprobe.heads.second_order import Design, second_moment

    data = open_public_set("public_covariance", manifest, design.rows.data)
    rows = Rows(data, design.rows.transform)
    public = Design(options, rows, private=design.private)
    return second_moment(public).values.mul_(design.rows.n / len(rows))
