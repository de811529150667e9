"""L2-penalised logistic regression by L-BFGS: multinomial, or one regression per label.

Nothing here is differentially private: features are standardised with the training set's means and
standard deviations. Each evaluation centres the rows block by block, in the processor's cache; the
scale is part of the weights. Rows outside a fold have weight 0. Each row of a unit with m rows has
weight 1 / m everywhere: in means, deviations, the loss and counts of correct decisions. In a
balanced fit, weights are also multiplied by N / (K N_k), where N is the sum of all weights, N_k the
sum over the row's class, and K the number of classes that occur. So all classes have equal weight.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize

from dpprobe import devices
from dpprobe.heads.rows import Block, Rows

logger = logging.getLogger("dpprobe")

Array = npt.NDArray[np.float64]


def _compute_losses(
    logits: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the loss per row [m]; replaces the logits [classes, m] by the loss's derivative."""
    if labels.ndim == 2:
        targets = labels.T.to(logits.dtype)
        losses = (torch.nn.functional.softplus(logits) - targets * logits).sum(0)
        return losses, logits.sigmoid_().sub_(targets)
    logs = torch.log_softmax(logits, 0)
    index = labels.unsqueeze(0)
    losses = -logs.gather(0, index).squeeze(0)
    return losses, logs.exp_().scatter_(0, index, -1.0, reduce="add")


def _balance_classes(weights: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns factors, float32 [rows], that give all classes equal total weight."""
    totals = torch.bincount(labels, weights.double())
    present = totals > 0
    shares = totals.sum() / (present.sum() * totals)
    return torch.where(present, shares, 0.0)[labels].to(torch.float32)


class Objective:
    """Mean cross-entropy + penalty / 2 |W|^2 over standardised features.

    With several labels, an example's cross-entropy is the sum over its labels. Parameters are
    float64 [classes, d + 1] on standardised features, bias last.

    Attributes:
      everyone: float32 [rows], the rows' weights; 0 for null rows.

    Args:
      one_scale: divides all features by the root of their mean variance, for fits on very few rows.
        With one scale per feature, the features of any two rows would become -1 and 1.
      balanced: gives all classes equal weight; only for one label per row.
    """

    def __init__(self, data: Rows, *, one_scale: bool = False, balanced: bool = False) -> None:
        self._data = data
        self._classes = data.num_classes
        self.n, self._dimension = data.n, data.dimension
        self.device = data.device
        # In float32, rounding would end a search early if features are nearly collinear.
        self._dtype = torch.float32 if devices.has_kernels(self.device) else torch.float64
        self._metric: tuple[float, Metric] | None = None
        usable = data.lengths.isfinite()
        self._weighted = balanced or data.weights is not None or not bool(usable.all())
        weights = (
            torch.ones(len(data), device=self.device) if data.weights is None else data.weights
        )
        self.everyone = weights * usable
        if balanced:
            self.everyone *= _balance_classes(self.everyone, data.labels)
        total = float(self.everyone.sum(dtype=torch.float64))
        # The number of decisions: one per unit, or one per unit and label.
        self.decisions = total * (data.num_classes if data.multi_label else 1)
        mean = torch.zeros(self._dimension, dtype=torch.float64, device=self.device)
        for block in data.read_blocks():
            mean += self._weigh_rows(block.features, block).sum(0, dtype=torch.float64)
        self._centre = (mean / total).to(torch.float32)
        square = torch.zeros_like(mean)
        for block in data.read_blocks(12 * self._dimension):
            distances = (block.features - self._centre).double().square_()
            square += self._weigh_rows(distances, block).sum(0)
        deviation = (square / total).sqrt()
        if one_scale:
            deviation = torch.where(deviation > 0, deviation.square().mean().sqrt(), 0.0)
        constant = deviation <= 1e-6 * self._centre.abs().clamp(min=1e-30)
        self._scale = torch.where(constant, 0.0, 1 / deviation).cpu().numpy()

    def _weigh_rows(self, values: torch.Tensor, block: Block) -> torch.Tensor:
        if not self._weighted:
            return values
        return values * self.everyone[block.start : block.stop, None]

    def zero_parameters(self) -> Array:
        return np.zeros((self._classes, self._dimension + 1))

    def assign_folds(self, count: int) -> torch.Tensor:
        """Returns folds, int64 [rows]; units get folds in turn, in order of their first rows."""
        units = self._data.units
        if units is None:
            return torch.arange(len(self._data), device=self.device) % count
        unit_of = units.unit_of_rows()
        place = np.argsort(np.argsort(units.members[units.starts[:-1]]))
        return torch.from_numpy(place[unit_of] % count).to(self.device)

    def raw_weights(self, parameters: Array) -> Array:
        """Converts weights on standardised features to weights on features, [classes, d + 1]."""
        weights = parameters[:, :-1] * self._scale
        centre = self._centre.cpu().numpy().astype(np.float64)
        return np.column_stack([weights, parameters[:, -1] - weights @ centre])

    def find_minimum(
        self, row_weights: torch.Tensor, penalty: float, start: Array, stopping: tuple[float, int]
    ) -> Array:
        """Returns the minimiser over the weighted rows, by L-BFGS from `start`.

        Weight 0 leaves a row out. The fit has converged if no entry of the gradient exceeds the
        tolerance in absolute value. `stopping` is (tolerance, largest number of iterations).
        """
        tolerance, max_iterations = stopping
        total = float(row_weights.sum())
        if self._metric is None or self._metric[0] != penalty:  # folds share the metric
            self._metric = penalty, self._choose_metric(penalty)
        metric = self._metric[1]
        solution, evaluations, failure = start, 0, None

        def evaluate(parameters: Array) -> tuple[float, Array]:
            loss, gradient = self._evaluate_loss(parameters, row_weights)
            loss, gradient = loss / total, gradient / total
            loss += penalty / 2 * float(np.square(parameters[:, :-1]).sum())
            gradient[:, :-1] += penalty * parameters[:, :-1]
            return loss, gradient

        def evaluate_flat(flat: Array) -> tuple[float, Array]:
            nonlocal evaluations, solution
            evaluations += 1
            solution = metric.find_parameters(flat.reshape(start.shape))
            loss, gradient = evaluate(solution)
            if np.abs(gradient).max() <= tolerance:
                raise StopIteration
            return loss, metric.map_gradient(gradient).ravel()

        with suppress(StopIteration):
            limits: dict[str, float] = {"gtol": 0.0, "ftol": 0.0, "maxcor": 20}
            limits |= {"maxiter": max_iterations, "maxfun": 2 * max_iterations}
            variables = metric.find_variables(start).ravel()
            result = minimize(evaluate_flat, variables, jac=True, method="L-BFGS-B", options=limits)
            solution = metric.find_parameters(result.x.reshape(start.shape))
            # L-BFGS also succeeds if float64 cannot represent a lower loss, near the minimum.
            failure = None if result.success else result.status
        loss, gradient = evaluate(solution)
        slope = float(np.abs(gradient).max())
        logger.info(
            "nonprivate: penalty %g: loss %.6f after %d evaluations, largest slope %.1e",
            penalty,
            loss,
            evaluations,
            slope,
        )
        if failure is not None:
            level, reason = logging.INFO, "no step lowered the loss beyond rounding"
            if failure == 1:
                level = logging.WARNING
                reason = (
                    f"max_iterations {max_iterations}; accuracy may be too low: set a larger number"
                )
            logger.log(
                level,
                "nonprivate: penalty %g ended early (largest slope %.1e, wanted %.1e): %s",
                penalty,
                slope,
                tolerance,
                reason,
            )
        return solution

    def _choose_metric(self, penalty: float) -> Metric:
        """Returns a whitening metric; none for fewer rows than features, as few steps suffice."""
        if len(self._data) < self._dimension:
            return Metric()
        # The curvature of the loss at equal logits, per class and per unit of the second moment.
        curvature = 0.25 if self._data.multi_label else 1 / self._classes
        matrix = curvature * self._second_moment
        slack = penalty
        matrix.diagonal().add_(slack)
        # Rounding may outweigh a small penalty, so `slack` grows; the minimum stays the same.
        while (factored := torch.linalg.cholesky_ex(matrix)).info and slack < self._dimension:
            slack *= 10
            matrix.diagonal().add_(slack)
        return Metric(factored.L, curvature**-0.5)

    @cached_property
    def _second_moment(self) -> torch.Tensor:
        """The mean of x x^T over standardised rows, float64 [d, d]."""
        scale = torch.from_numpy(self._scale).to(self.device)
        total = scale.new_zeros((self._dimension, self._dimension))
        for block, features in self._read_centred():
            total += (features * self.everyone[block, None]).T @ features
        return total.mul_(scale).mul_(scale[:, None]).div_(float(self.everyone.sum()))

    def mean_loss(self, parameters: Array, row_weights: torch.Tensor) -> float:
        """Returns the mean cross-entropy over the weighted rows, without the penalty."""
        return self._evaluate_loss(parameters, row_weights)[0] / float(row_weights.sum())

    def count_correct(self, parameters: Array, chosen: torch.Tensor) -> float:
        """Counts correct decisions on the chosen rows, weighted: one per row, or one per label."""
        right = torch.zeros((), dtype=torch.float64, device=self.device)
        weights, bias = self._on_device(parameters)
        for block, features in self._read_centred():
            logits = torch.addmm(bias, weights, features.T)
            labels = self._data.labels[block]
            hits = (
                (logits.T > 0) == labels.bool() if labels.ndim == 2 else logits.argmax(0) == labels
            )
            picked = chosen[block]
            by_row = hits.reshape(len(labels), -1)[picked].sum(1, dtype=torch.float64)
            right += by_row @ self.everyone[block][picked].double()
        return float(right)

    def _evaluate_loss(self, parameters: Array, row_weights: torch.Tensor) -> tuple[float, Array]:
        """Returns the summed cross-entropy and its gradient, both over the weighted rows."""
        weights, bias = self._on_device(parameters)
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        product = torch.zeros(weights.shape, dtype=torch.float64, device=self.device)
        sums = torch.zeros(self._classes, dtype=torch.float64, device=self.device)
        for block, features in self._read_centred():
            block_weights = row_weights[block]
            losses, residuals = _compute_losses(
                torch.addmm(bias, weights, features.T), self._data.labels[block]
            )
            loss += (losses * block_weights).sum(dtype=torch.float64)
            residuals *= block_weights
            product += residuals @ features
            sums += residuals.sum(1, dtype=torch.float64)
        gradient = product.cpu().numpy() * self._scale
        return float(loss), np.column_stack([gradient, sums.cpu().numpy()])

    def _on_device(self, parameters: Array) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns weights [classes, d] and biases [classes, 1] for centred features."""
        both = np.column_stack([parameters[:, :-1] * self._scale, parameters[:, -1]])
        moved = torch.from_numpy(both).to(device=self.device, dtype=self._dtype)
        return moved[:, :-1].contiguous(), moved[:, -1:]

    def _read_centred(self) -> Iterator[tuple[slice, torch.Tensor]]:
        for start, stop, features in self._data.read_blocks(8 * self._dimension):
            yield slice(start, stop), features.to(self._dtype) - self._centre


class Metric:
    """A change of variables for L-BFGS: weights W = V L^-1, where L L^T is a curvature.

    Features of a network are nearly collinear, so L-BFGS on W needs hundreds of iterations. With V,
    whose curvature at equal logits is 1, about twenty iterations suffice.

    Args:
      factor: L for the weights of each class, float64 [d, d]; None for L = 1, and no bias scale.
      bias_scale: the factor from a bias's variable to the bias.
    """

    def __init__(self, factor: torch.Tensor | None = None, bias_scale: float = 1.0) -> None:
        self._factor = self._inverse = factor
        self._bias_scale = bias_scale
        if factor is not None:
            unit = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
            self._inverse = torch.linalg.solve_triangular(self._factor, unit, upper=False)

    def find_parameters(self, variables: Array) -> Array:
        return self._multiply(variables, self._inverse, self._bias_scale)

    def find_variables(self, parameters: Array) -> Array:
        return self._multiply(parameters, self._factor, 1 / self._bias_scale)

    def map_gradient(self, gradient: Array) -> Array:
        """Converts the gradient with respect to parameters to that with respect to variables."""
        matrix = None if self._inverse is None else self._inverse.T
        return self._multiply(gradient, matrix, self._bias_scale)

    def _multiply(self, values: Array, matrix: torch.Tensor | None, scale: float) -> Array:
        if matrix is None:
            return values
        moved = torch.from_numpy(values).to(matrix.device)
        return torch.cat([moved[:, :-1] @ matrix, moved[:, -1:] * scale], 1).cpu().numpy()
