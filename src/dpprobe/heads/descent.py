"""Heads of few preconditioned full-batch steps: feature_covariance and newton."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from dpprobe.errors import DataError
from dpprobe.features.store import FeatureStore
from dpprobe.heads import Fitted, Record
from dpprobe.heads import feature_covariance as feature_covariance_module
from dpprobe.heads import newton as newton_module
from dpprobe.heads.descent_options import DescentOptions, FileInitOptions
from dpprobe.heads.feature_covariance import COVARIANCE
from dpprobe.heads.first_order import History, weights_from_file
from dpprobe.heads.newton import HESSIANS
from dpprobe.heads.rows import Rows
from dpprobe.heads.second_order import (
    Design,
    Loss,
    Piece,
    Spectrum,
    check_dimension,
    descend,
    each_seed,
    gradient,
    ridge_of,
    second_moment,
    spectrum,
    step_rate,
)
from dpprobe.heads.second_order_options import GRADIENTS
from dpprobe.heads.training_set import TrainingSet
from dpprobe.options import resolve_path
from dpprobe.privacy.noise import GaussianNoise
from dpprobe.privacy.randomness import derived_seed
from dpprobe.privacy.releases import Releases

# Of a step, the weights before it, the released gradients there and the distance from the start:
# the direction, and the noise gain of what the gradients were multiplied with.
Precondition = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, float]]


def fit_feature_covariance(
    options: feature_covariance_module.Options,
    rows: Rows,
    releases: Releases,
    *,
    record: Record | None = None,
) -> Fitted:
    """One covariance and `steps` gradients for each seed."""
    public = options.public_covariance
    with torch.inference_mode():
        clip = options.max_grad_norm if releases.plan.private else math.inf
        descent = Descent(options, rows, releases, clip, record=record)
        design = descent.design
        if public is None:
            moment = rows.cached(design.key("gram"), partial(second_moment, design))
        else:
            make = partial(public_moment, public, options, design)
            moment = rows.cached((*design.key("public"), public), make)

        def train(own: Releases) -> torch.Tensor:
            if public is not None:
                return descent.run(own, descent.solver(own, spectrum(moment, 0.0), 0.0))
            released = own.symmetric(COVARIANCE, moment[None])[0]
            found = spectrum(released, own.deviation(COVARIANCE))
            multiplier = own.plan.mechanism(COVARIANCE).noise_multiplier
            return descent.run(own, descent.solver(own, found, multiplier))

        names = (GRADIENTS,) if public is not None else (COVARIANCE, GRADIENTS)
        weights = each_seed(releases, names, train, head=options.head)
        return descent.fitted(weights)


def public_moment(
    manifest: str, options: feature_covariance_module.Options, design: Design
) -> torch.Tensor:
    """The second moment of public rows, treated like the private ones, for as many rows.

    Raises:
      DataError: when the features are of another dimension.
      StoreError: when the manifest or a shard is damaged.
    """
    rows = design.rows
    store = FeatureStore(resolve_path(manifest))
    if store.dimension != rows.dimension:
        raise DataError(
            f"public_covariance {manifest}: features of dimension {store.dimension}, the private "
            f"ones have {rows.dimension}; write a manifest of the same backbone"
        )
    labels = torch.zeros(store.rows, dtype=torch.int64)
    data = TrainingSet(store, labels, rows.num_classes, device=rows.device)
    own = Design(options, Rows(data, rows.transform), private=not design.exact)
    return second_moment(own).mul_(rows.n / store.rows)


def fit_newton(
    options: newton_module.Options,
    rows: Rows,
    releases: Releases,
    *,
    record: Record | None = None,
) -> Fitted:
    """One Hessian, or one a class, and one gradient in each step for each seed."""
    with torch.inference_mode():
        scale = options.gradient_scale(rows.num_classes)
        clip = options.gradient_bound * scale if releases.plan.private else math.inf
        descent = Descent(options, rows, releases, clip, scale=scale, record=record)
        kind = SharedHessians if options.hessian == "shared" else PerClassHessians
        weights = each_seed(
            releases,
            (HESSIANS, GRADIENTS),
            lambda own: descent.run(own, kind(descent, own)),
            head=options.head,
        )
        return descent.fitted(weights)


class Descent:
    """The steps of one fit's heads.

    Attributes:
      options, rows, design: of the fit.
      curvature: h, of the loss at the start per unit of the second moment.
      start: float32 [K, d + 1] on normalised rows.
    """

    def __init__(
        self,
        options: DescentOptions,
        rows: Rows,
        releases: Releases,
        clip: float,
        *,
        scale: float = 1.0,
        record: Record | None,
    ) -> None:
        check_dimension(rows, options.head)
        self.options, self.rows = options, rows
        self.design = Design(options, rows, private=releases.plan.private)
        self.curvature = options.curvature(rows.num_classes)
        self.loss = Loss(sigmoid=options.loss == "sigmoid", clip=clip)
        self.start = start_weights(options, rows)
        self._steps = releases.plan.mechanism(GRADIENTS).count
        self._scale = scale
        self._record = record
        self._snapshots: list[list[torch.Tensor]] = []

    def weights(self, parameters: torch.Tensor) -> torch.Tensor:
        """Float32 [K, d + 1] on normalised rows, of parameters counted from the start."""
        return self.start + self.design.weights(parameters)

    def curvatures(self, piece: Piece, weights: torch.Tensor) -> torch.Tensor:
        """[m, K] of a piece's rows relative to h, at most 1; [m, 1] for a softmax."""
        p = self.loss.probabilities(piece, weights)
        if self.loss.sigmoid:
            return (p * (1 - p) / self.curvature).clamp_(0, 1)
        classes = self.rows.num_classes
        spread = 1 - p.square().sum(1, keepdim=True)
        return (spread * (classes / max(classes - 1, 1))).clamp_(0, 1)

    def solver(self, own: Releases, found: Spectrum, matrix_noise: float) -> Precondition:
        """(g + lambda h D) (A + lambda I)^-1 for a released A in every step.

        Args:
          matrix_noise: A's noise multiplier.
        """
        noise = own.plan.mechanism(GRADIENTS).noise_multiplier / math.sqrt(self._steps)
        longest = self.options.longest
        ridge = ridge_of(self.design, self.options.ridge, longest, matrix_noise, noise, found)
        penalty = ridge * self.curvature if self.options.penalised else 0.0
        gain = found.noise_gain(ridge)

        def precondition(
            _step: int, _weights: torch.Tensor, gradients: torch.Tensor, distance: torch.Tensor
        ) -> tuple[torch.Tensor, float]:
            return found.solve(gradients + penalty * distance, ridge), gain

        return precondition

    def run(self, own: Releases, precondition: Precondition) -> torch.Tensor:
        """One seed's weights [K, d + 1] on normalised rows."""
        options, rows = self.options, self.rows
        deviation = own.deviation(GRADIENTS) * self._scale
        longest = options.step / self.curvature

        def direction(step: int, parameters: torch.Tensor) -> tuple[torch.Tensor, float]:
            weights = self.weights(parameters)
            total = gradient(self.design, self.loss, weights).div_(self._scale)
            noisy = own.gaussian(GRADIENTS, total[None])[0].double() * self._scale
            towards, gain = precondition(step, weights, noisy, parameters)
            if options.learning_rate is not None:
                return towards, options.learning_rate
            return towards, step_rate(longest, deviation, gain, rows.n)

        zero = torch.zeros_like(self.start, dtype=torch.float64)
        snapshots = None if self._record is None else [zero]
        result = descend(zero, self._steps, direction, options.average, snapshots)
        if snapshots is not None:
            self._snapshots.append([self.weights(snapshot) for snapshot in snapshots])
        return self.weights(result)

    def fitted(self, weights: torch.Tensor) -> Fitted:
        """All seeds' heads, and their history."""
        history = History(self.rows, 1.0, self._record, sigmoid=self.loss.sigmoid)
        for step, snapshots in enumerate(zip(*self._snapshots, strict=True)):
            history.add(step, torch.stack(snapshots))
        return Fitted(weights=weights.cpu().numpy(), steps=self._steps, history=history.rows)


class SharedHessians:
    """The mean of the Hessians released so far, one for all classes."""

    def __init__(self, descent: Descent, own: Releases) -> None:
        self._descent, self._own = descent, own
        self._total: torch.Tensor | None = None

    def __call__(
        self, step: int, weights: torch.Tensor, gradients: torch.Tensor, distance: torch.Tensor
    ) -> tuple[torch.Tensor, float]:
        own = self._own
        self._add(weights)
        assert self._total is not None
        shrink = math.sqrt(step + 1)
        found = spectrum(self._total / (step + 1), own.deviation(HESSIANS) / shrink)
        multiplier = own.plan.mechanism(HESSIANS).noise_multiplier / shrink
        solver = self._descent.solver(own, found, multiplier)
        return solver(step, weights, gradients, distance)

    def _add(self, weights: torch.Tensor) -> None:
        """Releases the Hessian at the weights; the exact one is freed on return."""
        exact = second_moment(
            self._descent.design, lambda piece: self._descent.curvatures(piece, weights).mean(1)
        )
        released = self._own.symmetric(HESSIANS, exact[None])[0]
        self._total = released if self._total is None else self._total.add_(released)


class PerClassHessians:
    """One Hessian a class: made, released, used and forgotten one after the other."""

    def __init__(self, descent: Descent, own: Releases) -> None:
        self._descent, self._own = descent, own
        columns, (seed,) = descent.design.columns, own.seeds
        noise_seed = derived_seed(seed, f"{HESSIANS} of classes")
        self._noise = GaussianNoise([noise_seed], columns**2, descent.rows.device)

    def __call__(
        self, step: int, weights: torch.Tensor, gradients: torch.Tensor, distance: torch.Tensor
    ) -> tuple[torch.Tensor, float]:
        self._own.count(HESSIANS, 1)
        out, gains = torch.empty_like(gradients), []
        for label in range(len(gradients)):
            solver = self._solver(label, weights)
            out[label], gain = solver(step, weights, gradients[label], distance[label])
            gains.append(gain)
        return out, max(gains)

    def _solver(self, label: int, weights: torch.Tensor) -> Precondition:
        """Of one class's part of the stack, which is released divided by sqrt(K)."""
        descent, own = self._descent, self._own
        columns, root = descent.design.columns, math.sqrt(descent.rows.num_classes)
        exact = second_moment(
            descent.design, lambda piece: descent.curvatures(piece, weights)[:, label]
        )
        deviation = own.deviation(HESSIANS) * root
        noise = self._noise.draw(1, deviation).reshape(columns, columns).to(exact.dtype)
        found = spectrum(exact + (noise + noise.mT) / 2, deviation)
        multiplier = own.plan.mechanism(HESSIANS).noise_multiplier * root
        return descent.solver(own, found, multiplier)


def start_weights(options: DescentOptions, rows: Rows) -> torch.Tensor:
    """Float32 [K, d + 1] on normalised rows."""
    start = torch.zeros((rows.num_classes, rows.dimension + 1), device=rows.device)
    if isinstance(options, FileInitOptions) and options.init_file is not None:
        scale = 1.0 if options.init_scale is None else options.init_scale
        found = weights_from_file(
            str(resolve_path(options.init_file)), rows.num_classes, rows.dimension
        )
        start.copy_(torch.from_numpy(found * scale))
        if options.init_bias is None:
            return start
    start[:, -1] = options.start_bias(rows.num_classes)
    return start
