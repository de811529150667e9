"""L2-penalised logistic regression by L-BFGS: the solver's mathematics.

Multinomial for one label a row, one regression a label for several.

Features are standardised with the training set's means and standard deviations: nothing here is
private. No standardised copy is made: each evaluation centres the rows block by block, in the
processor's cache, and the scale is put into the weights. Rows outside a fold have weight 0.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize

from dpprobe.heads.rows import Rows

logger = logging.getLogger("dpprobe")

Array = npt.NDArray[np.float64]


def _losses(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns each row's loss [m] and its derivative by the logits [classes, m].

    The derivative takes the logits' place.
    """
    if labels.ndim == 2:
        targets = labels.T.to(logits.dtype)
        losses = (torch.nn.functional.softplus(logits) - targets * logits).sum(0)
        return losses, logits.sigmoid_().sub_(targets)
    logs = torch.log_softmax(logits, 0)
    index = labels.unsqueeze(0)
    losses = -logs.gather(0, index).squeeze(0)
    return losses, logs.exp_().scatter_(0, index, -1.0, reduce="add")


class Objective:
    """The objective: mean cross-entropy + penalty / 2 |W|^2 over standardised features.

    For several labels a row a row's cross-entropy is the sum over its labels.

    Parameters are float64 [classes, d + 1] on standardised features, bias last.

    Args:
      one_scale: divides all features by one number, the root of their mean variance. Of a handful
        of rows each feature's standard deviation says little: two rows would become -1 and 1 in
        every feature, so that those in which they hardly differ count most.
    """

    def __init__(self, data: Rows, *, one_scale: bool = False) -> None:
        self._data = data
        self._classes = data.num_classes
        self.rows, self._dimension = data.n, data.dimension
        # One a row, or one for each of its labels.
        self.decisions = data.n * (data.num_classes if data.multi_label else 1)
        self.device = data.device
        mean = torch.zeros(self._dimension, dtype=torch.float64, device=self.device)
        for block in data.blocks():
            mean += block.features.sum(0, dtype=torch.float64)
        self._centre = (mean / self.rows).to(torch.float32)
        square = torch.zeros_like(mean)
        for block in data.blocks(12 * self._dimension):
            square += (block.features - self._centre).double().square_().sum(0)
        deviation = (square / self.rows).sqrt()
        if one_scale:
            deviation = torch.where(deviation > 0, deviation.square().mean().sqrt(), 0.0)
        constant = deviation <= 1e-6 * self._centre.abs().clamp(min=1e-30)
        self._scale = torch.where(constant, 0.0, 1 / deviation).cpu().numpy()

    def zeros(self) -> Array:
        """Returns parameters that are all 0."""
        return np.zeros((self._classes, self._dimension + 1))

    def raw_weights(self, parameters: Array) -> Array:
        """Returns the same classifier as weights on the features themselves, [classes, d + 1]."""
        weights = parameters[:, :-1] * self._scale
        centre = self._centre.cpu().numpy().astype(np.float64)
        return np.column_stack([weights, parameters[:, -1] - weights @ centre])

    def solve(
        self,
        row_weights: torch.Tensor,
        penalty: float,
        start: Array,
        *,
        tolerance: float,
        max_iterations: int,
    ) -> Array:
        """Returns the minimiser over the rows of weight 1, by L-BFGS from `start`.

        Args:
          tolerance: converged when no entry of the gradient is larger.
          max_iterations: the most iterations taken; stopping there is warned of.
        """
        total = float(row_weights.sum())

        def objective(flat: Array) -> tuple[float, Array]:
            parameters = flat.reshape(start.shape)
            loss, gradient = self._evaluate(parameters, row_weights)
            loss, gradient = loss / total, gradient / total
            loss += penalty / 2 * float(np.square(parameters[:, :-1]).sum())
            gradient[:, :-1] += penalty * parameters[:, :-1]
            return loss, gradient.ravel()

        result = minimize(
            objective,
            start.ravel(),
            jac=True,
            method="L-BFGS-B",
            options={
                "maxiter": max_iterations,
                "maxfun": 2 * max_iterations,
                "gtol": tolerance,
                "ftol": 0.0,
                "maxcor": 20,
            },
        )
        slope = float(np.abs(result.jac).max())
        logger.info(
            "nonprivate: penalty %g: loss %.6f after %d iterations, largest slope %.1e",
            penalty, result.fun, result.nit, slope,
        )  # fmt: skip
        if slope > tolerance:
            logger.warning(
                "nonprivate: penalty %g stopped at slope %.1e, above the tolerance %.1e: %s",
                penalty, slope, tolerance, result.message,
            )  # fmt: skip
        solution: Array = result.x.reshape(start.shape)
        return solution

    def loss(self, parameters: Array, row_weights: torch.Tensor) -> float:
        """Returns the mean cross-entropy over the rows of weight 1, without the penalty."""
        return self._evaluate(parameters, row_weights)[0] / float(row_weights.sum())

    def correct(self, parameters: Array, chosen: torch.Tensor) -> int:
        """Counts the right decisions over the chosen rows: one a row, or one for each label."""
        right = torch.zeros((), dtype=torch.int64, device=self.device)
        weights, bias = self._on_device(parameters)
        for block, features in self._centred():
            logits = torch.addmm(bias, weights, features.T)
            labels = self._data.labels[block]
            hits = (
                (logits.T > 0) == labels.bool() if labels.ndim == 2 else logits.argmax(0) == labels
            )
            right += hits[chosen[block]].sum()
        return int(right)

    def _evaluate(self, parameters: Array, row_weights: torch.Tensor) -> tuple[float, Array]:
        """Returns the summed cross-entropy and its gradient, both over the rows of weight 1."""
        weights, bias = self._on_device(parameters)
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        product = torch.zeros(weights.shape, dtype=torch.float64, device=self.device)
        sums = torch.zeros(self._classes, dtype=torch.float64, device=self.device)
        for block, features in self._centred():
            block_weights = row_weights[block]
            losses, residuals = _losses(
                torch.addmm(bias, weights, features.T), self._data.labels[block]
            )
            loss += (losses * block_weights).sum(dtype=torch.float64)
            residuals *= block_weights
            product += residuals @ features
            sums += residuals.sum(1, dtype=torch.float64)
        gradient = product.cpu().numpy() * self._scale
        return float(loss), np.column_stack([gradient, sums.cpu().numpy()])

    def _on_device(self, parameters: Array) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns weights [classes, d] and bias [classes, 1] for centred features."""
        both = np.column_stack([parameters[:, :-1] * self._scale, parameters[:, -1]])
        moved = torch.from_numpy(both).to(device=self.device, dtype=torch.float32)
        return moved[:, :-1].contiguous(), moved[:, -1:]

    def _centred(self) -> Iterator[tuple[slice, torch.Tensor]]:
        for start, stop, features in self._data.blocks(8 * self._dimension):
            yield slice(start, stop), features - self._centre
