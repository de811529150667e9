"""L2-penalised logistic regression by L-BFGS, its penalty by cross-validation.

Multinomial for one label a row, one regression a label for several.

Features are standardised with the training set's own means and deviations: nothing here is
private. No standardised copy is made: each evaluation centres the rows block by block, in the
processor's cache, and the scale is put into the weights. Rows outside a fold have weight 0.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize

from dpprobe.heads import Fitted, Record
from dpprobe.heads import nonprivate as nonprivate_module
from dpprobe.heads.rows import Rows
from dpprobe.privacy.releases import Releases

logger = logging.getLogger("dpprobe")

Array = npt.NDArray[np.float64]


def fit(
    options: nonprivate_module.Options,
    rows: Rows,
    releases: Releases,
    *,
    record: Record | None = None,
) -> Fitted:
    """Fits once; the problem has one solution, so the heads of all seeds are the same."""
    with torch.inference_mode():
        problem = Problem(rows)
        penalty = choose_penalty(problem, options)
        everyone = torch.ones(rows.n, device=rows.device)
        solution = problem.solve(everyone, penalty, problem.zeros(), options)
        weights = problem.raw_weights(solution)
        repeated = np.repeat(weights[None].astype(np.float32), len(releases.seeds), axis=0)
        loss = problem.loss(solution, everyone)
        history = [
            {"seed_index": index, "step": 0, "epoch": 0.0, "train_loss": loss, "penalty": penalty}
            for index in range(len(releases.seeds))
        ]
        if record is not None:
            further = record(0, torch.from_numpy(repeated).to(rows.device)) or {}
            for index, row in enumerate(history):
                row.update({name: float(values[index]) for name, values in further.items()})
    return Fitted(weights=repeated, steps=0, history=history if record is not None else [])


def choose_penalty(problem: Problem, options: nonprivate_module.Options) -> float:
    """The candidate with the best accuracy over folds; of equals, the largest.

    Candidates are tried from the largest down, each fold starting at its last solution, and no
    further once accuracy has fallen by more than a standard error: sharper fits only overfit
    more, and take longest.
    """
    candidates = sorted(options.penalties, reverse=True)
    if len(candidates) == 1:
        return candidates[0]
    fold_of = torch.arange(problem.rows, device=problem.device) % options.folds
    solutions = [problem.zeros() for _ in range(options.folds)]
    accuracies: dict[float, float] = {}
    for candidate in candidates:
        correct = 0
        for fold in range(options.folds):
            training = (fold_of != fold).to(torch.float32)
            solutions[fold] = problem.solve(training, candidate, solutions[fold], options)
            correct += problem.correct(solutions[fold], training == 0)
        accuracies[candidate] = correct / problem.decisions
        highest = max(accuracies.values())
        error = math.sqrt(highest * (1 - highest) / problem.rows)
        if accuracies[candidate] < highest - error:
            break
    best = max(accuracies, key=lambda candidate: accuracies[candidate])
    logger.info("nonprivate: accuracy by penalty %s; chosen %g", accuracies, best)
    return best


def _losses(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row's loss [m], and its derivative by the logits [classes, m], which it overwrites."""
    if labels.ndim == 2:
        targets = labels.T.to(logits.dtype)
        losses = (torch.nn.functional.softplus(logits) - targets * logits).sum(0)
        return losses, logits.sigmoid_().sub_(targets)
    logs = torch.log_softmax(logits, 0)
    index = labels.unsqueeze(0)
    losses = -logs.gather(0, index).squeeze(0)
    return losses, logs.exp_().scatter_(0, index, -1.0, reduce="add")


class Problem:
    """The objective: mean cross-entropy + penalty / 2 |W|^2 over standardised features.

    For several labels a row a row's cross-entropy is the sum over its labels.

    Parameters are float64 [classes, d + 1] on standardised features, bias last.

    Args:
      one_scale: divides all features by one number, the root of their mean variance. Of a handful
        of rows each feature's own deviation says little: two rows would become -1 and 1 in every
        feature, so that those in which they hardly differ count most.
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
        return np.zeros((self._classes, self._dimension + 1))

    def raw_weights(self, parameters: Array) -> Array:
        """The same classifier as weights on the features themselves, [classes, d + 1]."""
        weights = parameters[:, :-1] * self._scale
        centre = self._centre.cpu().numpy().astype(np.float64)
        return np.column_stack([weights, parameters[:, -1] - weights @ centre])

    def solve(
        self,
        row_weights: torch.Tensor,
        penalty: float,
        start: Array,
        options: nonprivate_module.Options,
    ) -> Array:
        """The minimiser over the rows of weight 1, by L-BFGS from `start`."""
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
                "maxiter": options.max_iterations,
                "maxfun": 2 * options.max_iterations,
                "gtol": options.tolerance,
                "ftol": 0.0,
                "maxcor": 20,
            },
        )
        slope = float(np.abs(result.jac).max())
        logger.info(
            "nonprivate: penalty %g: loss %.6f after %d iterations, largest slope %.1e",
            penalty, result.fun, result.nit, slope,
        )  # fmt: skip
        if slope > options.tolerance:
            logger.warning(
                "nonprivate: penalty %g stopped at slope %.1e, above the tolerance %.1e: %s",
                penalty, slope, options.tolerance, result.message,
            )  # fmt: skip
        solution: Array = result.x.reshape(start.shape)
        return solution

    def loss(self, parameters: Array, row_weights: torch.Tensor) -> float:
        """Mean cross-entropy over the rows of weight 1, without the penalty."""
        return self._evaluate(parameters, row_weights)[0] / float(row_weights.sum())

    def correct(self, parameters: Array, chosen: torch.Tensor) -> int:
        """How many decisions are right over the chosen rows: one a row, or one for each label."""
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
        """Summed cross-entropy and its gradient, both over the rows of weight 1."""
        weights, bias = self._on_device(parameters)
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        product = torch.zeros(weights.shape, dtype=torch.float64, device=self.device)
        sums = torch.zeros(self._classes, dtype=torch.float64, device=self.device)
        for block, features in self._centred():
            own = row_weights[block]
            losses, residuals = _losses(
                torch.addmm(bias, weights, features.T), self._data.labels[block]
            )
            loss += (losses * own).sum(dtype=torch.float64)
            residuals *= own
            product += residuals @ features
            sums += residuals.sum(1, dtype=torch.float64)
        gradient = product.cpu().numpy() * self._scale
        return float(loss), np.column_stack([gradient, sums.cpu().numpy()])

    def _on_device(self, parameters: Array) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights [classes, d] and bias [classes, 1] for centred features."""
        both = np.column_stack([parameters[:, :-1] * self._scale, parameters[:, -1]])
        moved = torch.from_numpy(both).to(device=self.device, dtype=torch.float32)
        return moved[:, :-1].contiguous(), moved[:, -1:]

    def _centred(self) -> Iterator[tuple[slice, torch.Tensor]]:
        for start, stop, features in self._data.blocks(8 * self._dimension):
            yield slice(start, stop), features - self._centre
