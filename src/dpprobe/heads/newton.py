"""DP-Newton: full-batch steps, each with a noisy Hessian and a noisy gradient.

Rows x have norm at most S (see `clipped_row_options.RowOptions`), and p are a row's probabilities.
Each of `steps` steps makes two releases, at weights that depend only on earlier releases.

"hessians":

- `shared`: one matrix, the sum of c x x^T. The factor c in [0, 1] is a row's mean curvature over
  classes, relative to h at the start. For a softmax, the Hessian is (diag(p) - p p^T) (x) x x^T.
  The factor diag(p) - p p^T has trace 1 - |p|^2 and is 0 along equal logits. The factor's mean over
  the other K - 1 directions is (1 - |p|^2) / (K - 1) <= 1/K = h. For sigmoids, c is the mean of all
  min(1, p_k (1 - p_k) / h), and h = 1/4 for biases of 0. A row changes the sum by c x x^T, of norm
  <= S^2.
- `per_class`, for sigmoids only: K sums of min(1, p_k (1 - p_k) / h) x x^T, divided by sqrt(K). A
  row changes the matrices by squared norm sum_k c_k^2 |x|^4 / K <= S^4: sensitivity S^2. (The K
  Hessians themselves have sensitivity sqrt(K) S^2 / 4 for biases of 0.) With equal weights in every
  class, as at the start, all K matrices are equal. So for one step, `per_class` gives K copies of
  `shared`'s matrix, with sqrt(K) times the noise.

"gradients": the sum of r x^T with r = p - y, clipped to norm `max_grad_norm`. If `max_grad_norm` is
null, r has a bound of its own:

- softmax: |r|^2 = (1 - p_y)^2 + sum_{k != y} p_k^2 <= 2 (1 - p_y)^2 <= 2, since all p_k but p_y sum
  to 1 - p_y. So a softmax has sensitivity sqrt(2) S. For one step from zero weights, p = 1/K and
  |r|^2 = 1 - 1/K, so the sensitivity is at most S.
- sigmoids: |r_k| <= 1, so |r| <= sqrt(K), and for one step with p = 1/2, |r| = sqrt(K) / 2. Sums
  for sigmoids are divided by sqrt(K), so their sensitivity is S, or S / 2 for one step.

The Hessians use the share `hessian_share` of the budget T (1/sigma_H^2 + 1/sigma_g^2). Each step
applies `second_order.estimate_spectrum` to the mean of the shared Hessians released so far.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from dpprobe.heads.clipped_row_options import GRADIENTS
from dpprobe.heads.fitted import Fitted, Record
from dpprobe.heads.normalisation import Share
from dpprobe.heads.options import ClippingNorm
from dpprobe.heads.preconditioned_descent import MOST_FULL_STEPS, PreconditionedDescentOptions
from dpprobe.privacy.plan import Mechanism, full_batch, split_budget

if TYPE_CHECKING:
    import torch

    from dpprobe.heads.preconditioned_descent import Descent, Precondition
    from dpprobe.heads.rows import Rows
    from dpprobe.privacy.releases import Releases

HESSIANS = "hessians"


class Options(PreconditionedDescentOptions):
    """Newton's method; the defaults were fixed on public features (bench/results/defaults.md)."""

    head: Literal["newton"] = "newton"
    steps: Annotated[int, MOST_FULL_STEPS] = Field(
        3, ge=1, description="Number of full-batch steps."
    )
    hessian: Literal["shared", "per_class"] = Field(
        "shared",
        description="One matrix of the classes' mean curvature; or one matrix per class, only for "
        "loss: sigmoid, with sqrt(K) times the noise and K times the work.",
    )
    hessian_share: Share = Field(
        0.3, description="The Hessians' share of the head's budget; the gradients get the rest."
    )
    max_grad_norm: ClippingNorm | None = Field(
        0.7,
        description="Each example's gradient is clipped to this L2 norm; null uses the bound that "
        "the gradient has without clipping.",
    )

    @model_validator(mode="after")
    def _check_hessian(self) -> Options:
        if self.hessian == "per_class" and self.loss == "softmax":
            raise ValueError(
                "hessian per_class does not work with loss softmax, because its Hessian does not "
                "split by class; write `loss: sigmoid`, or `hessian: shared`"
            )
        return self

    @property
    def gradient_bound(self) -> float:
        """The largest norm of an example's gradient in the released sum."""
        if self.max_grad_norm is not None:
            return self.max_grad_norm
        once = self.steps == 1 and self.init_bias in (None, 0.0)
        if self.loss == "softmax":
            return self.longest * (1.0 if once else 2**0.5)
        return self.longest * (0.5 if self.steps == 1 and self.init_bias == 0 else 1.0)

    @property
    def _divided(self) -> bool:
        return self.max_grad_norm is None and self.loss == "sigmoid"

    def gradient_scale(self, classes: int) -> float:
        """Returns the number by which gradients are divided before their release."""
        return float(classes**0.5) if self._divided else 1.0

    def list_releases(self, n: int) -> tuple[Mechanism, ...]:  # noqa: ARG002
        hessians = full_batch(
            HESSIANS,
            "sum of the clipped rows' outer products, weighted by their mean curvature relative to "
            "the start's, one per step"
            if self.hessian == "shared"
            else "for each class the sum of the clipped rows' outer products, weighted by its "
            "curvature relative to the start's; all K together divided by sqrt(K), one stack a "
            "step",
            self.longest**2,
            self.steps,
        )
        released = "sum of the rows' clipped gradients"
        if self.max_grad_norm is None:
            released = "sum of the clipped rows' gradients, which are bounded without clipping"
        divided = ", divided by sqrt(K)" if self._divided else ""
        released += f"{divided}, one per step"
        gradients = full_batch(GRADIENTS, released, self.gradient_bound, self.steps)
        share = self.hessian_share
        return split_budget([(share, (hessians,)), (1 - share, (gradients,))])


def fit(options: Options, rows: Rows, releases: Releases, *, record: Record | None) -> Fitted:
    """Releases one Hessian (or one per class) and one gradient per step and seed."""
    # late imports: planning imports this module without torch
    import torch

    from dpprobe.heads.preconditioned_descent import Descent
    from dpprobe.heads.second_order import each_seed

    shared = options.hessian == "shared"
    hessians = precondition_by_mean if shared else precondition_per_class
    with torch.inference_mode():
        scale = options.gradient_scale(rows.num_classes)
        clip = options.gradient_bound * scale if releases.plan.private else math.inf
        descent = Descent(options, rows, releases, clip, scale=scale, record=record)

        def train_seed(seed_releases: Releases) -> torch.Tensor:
            return descent.take_steps(seed_releases, hessians(descent, seed_releases))

        weights = each_seed(releases, (HESSIANS, GRADIENTS), train_seed, head=options.head)
        return descent.make_fitted(weights)


def precondition_by_mean(descent: Descent, releases: Releases) -> Precondition:
    """Preconditions with the mean of the Hessians released so far, the same for all classes."""
    from dpprobe.heads.second_order import estimate_spectrum, second_moment  # imports torch

    total: torch.Tensor | None = None

    def release_hessian(weights: torch.Tensor) -> torch.Tensor:
        # the exact Hessian is freed on return
        factors = descent.design.make_factors(weights)
        exact = second_moment(
            descent.design, lambda _, block: descent.compute_curvatures(block, factors).mean(1)
        )
        return releases.release_symmetric(HESSIANS, exact.one_seed)[0]

    def precondition(
        step: int, weights: torch.Tensor, gradients: torch.Tensor, distance: torch.Tensor
    ) -> tuple[torch.Tensor, float]:
        nonlocal total
        released = release_hessian(weights)
        total = released if total is None else total.add_(released)
        shrink = math.sqrt(step + 1)
        mean = estimate_spectrum(total / (step + 1), releases.noise_deviation(HESSIANS) / shrink)
        multiplier = releases.plan.find_mechanism(HESSIANS).noise_multiplier / shrink
        solver = descent.make_solver(releases, mean, multiplier)
        return solver(step, weights, gradients, distance)

    return precondition


def precondition_per_class(descent: Descent, releases: Releases) -> Precondition:
    """Preconditions with one Hessian per class; frees each after use, to save memory."""
    import torch  # heavy: planning imports this module

    from dpprobe.heads.second_order import estimate_spectrum, second_moment

    root = math.sqrt(descent.rows.num_classes)

    def make_solver(label: int, weights: torch.Tensor) -> Precondition:
        factors = descent.design.make_factors(weights)
        exact = second_moment(
            descent.design, lambda _, block: descent.compute_curvatures(block, factors)[:, label]
        ).divide_by(root)
        released = releases.release_symmetric(HESSIANS, exact.one_seed, counted=False)[0].mul_(root)
        hessian = estimate_spectrum(released, releases.noise_deviation(HESSIANS) * root)
        multiplier = releases.plan.find_mechanism(HESSIANS).noise_multiplier * root
        return descent.make_solver(releases, hessian, multiplier)

    def precondition(
        step: int, weights: torch.Tensor, gradients: torch.Tensor, distance: torch.Tensor
    ) -> tuple[torch.Tensor, float]:
        releases.count_releases(HESSIANS, 1)
        out, gains = torch.empty_like(gradients), []
        for label in range(len(gradients)):
            solver = make_solver(label, weights)
            out[label], gain = solver(step, weights, gradients[label], distance[label])
            gains.append(gain)
        return out, max(gains)

    return precondition
