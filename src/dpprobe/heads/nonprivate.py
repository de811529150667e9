"""Logistic regression with an L2 penalty, to convergence: the non-private baseline.

A baseline must optimise the same metric as the private heads. If a cell's headline metric is macro
accuracy, all classes have equal weight in the loss and in the choice of the penalty.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator

from dpprobe.errors import ConfigError
from dpprobe.heads.facts import BALANCED_METRIC
from dpprobe.heads.fitted import Fitted, Record
from dpprobe.heads.options import MethodOptions
from dpprobe.options import AtMost
from dpprobe.privacy.plan import Mechanism

if TYPE_CHECKING:
    from dpprobe.heads.logistic_regression import Objective
    from dpprobe.heads.rows import Rows
    from dpprobe.privacy.releases import Releases

logger = logging.getLogger("dpprobe")


class Options(MethodOptions):
    """Logistic regression; the penalty is chosen by cross-validation on the training split."""

    private: ClassVar[bool] = False
    head: Literal["nonprivate"] = "nonprivate"
    penalties: tuple[float, ...] = Field(
        (1e-5, 1e-4, 1e-3, 1e-2, 1e-1),
        min_length=1,
        description="Candidates for the penalty lambda in: mean cross-entropy + lambda / 2 * "
        "squared weights, on standardised features, bias unpenalised. A single candidate skips "
        "the cross-validation.",
    )
    folds: Annotated[int, AtMost(100, "each fold fits every penalty")] = Field(
        3, ge=2, description="Folds of the cross-validation."
    )
    balanced: bool | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="Give all classes equal weight in the loss and in the cross-validation. Only "
        "for one label per image. If absent, true exactly if the dataset's headline metric is "
        "macro_accuracy, so that the baseline optimises what is measured.",
    )
    tolerance: float = Field(
        3e-5, gt=0, description="The fit ends once no entry of the gradient is larger."
    )
    max_iterations: Annotated[int, AtMost(1_000_000, "each iteration is a pass over all rows")] = (
        Field(1000, ge=1, description="Maximum iterations per fit.")
    )

    @field_validator("penalties")
    @classmethod
    def _check_penalties(cls, values: tuple[float, ...]) -> tuple[float, ...]:
        for value in values:
            if not 0 < value < float("inf"):
                raise ValueError(f"penalty {value!r}: must be a positive number")
            if values.count(value) > 1:
                raise ValueError(f"penalty {value!r} appears twice in the list; remove one")
        return values

    @property
    def private_choices(self) -> str | None:
        return "nonprivate_head"

    @property
    def multi_label(self) -> bool:
        return True

    @property
    def stopping(self) -> tuple[float, int]:
        """(tolerance, largest number of iterations) of a fit, for `Objective.find_minimum`."""
        return self.tolerance, self.max_iterations

    def follow_metric(self, metric: str, *, multi_label: bool) -> Self:
        if self.balanced is not None or multi_label or metric != BALANCED_METRIC:
            return self
        return self.model_copy(update={"balanced": True})

    def class_fault(self, classes: int, *, multi_label: bool) -> str | None:  # noqa: ARG002
        if self.balanced and multi_label:
            return "balanced needs one label per row, but these rows have several; remove it"
        return None

    def link_on(self, multi_label: bool) -> Literal["softmax", "sigmoid", "none"]:
        return "sigmoid" if multi_label else "softmax"

    def list_releases(self, n: int) -> tuple[Mechanism, ...]:  # noqa: ARG002
        return ()


def fit(options: Options, rows: Rows, releases: Releases, *, record: Record | None) -> Fitted:
    """Trains once and repeats the head, because all seeds have the same solution."""
    # late imports: planning imports this module without NumPy, torch and SciPy
    import numpy as np
    import torch

    from dpprobe.heads.logistic_regression import Objective

    if fault := options.class_fault(rows.num_classes, multi_label=rows.multi_label):
        raise ConfigError(f"head nonprivate: {fault}")
    with torch.inference_mode():
        objective = Objective(rows, balanced=bool(options.balanced))
        penalty = choose_penalty(objective, options)
        start = objective.zero_parameters()
        solution = objective.find_minimum(objective.everyone, penalty, start, options.stopping)
        weights = objective.raw_weights(solution)
        repeated = np.repeat(weights[None].astype(np.float32), len(releases.seeds), axis=0)
        loss = objective.mean_loss(solution, objective.everyone)
        history = [
            {"seed_index": index, "step": 0, "epoch": 0.0, "train_loss": loss, "penalty": penalty}
            for index in range(len(releases.seeds))
        ]
        if record is not None:
            further = record(0, torch.from_numpy(repeated).to(rows.device)) or {}
            for index, row in enumerate(history):
                row.update({name: float(values[index]) for name, values in further.items()})
    return Fitted(weights=repeated, steps=0, history=history if record is not None else [])


def choose_penalty(objective: Objective, options: Options) -> float:
    """Returns the penalty with the best cross-validated accuracy; the largest of equally good ones.

    If the objective is balanced, accuracy means macro accuracy.

    Tries penalties in decreasing order, and stops once accuracy has fallen by more than a standard
    error, because smaller penalties overfit more and take longer. All rows of a unit of privacy are
    in one fold, and a unit counts once.
    """
    candidates = sorted(options.penalties, reverse=True)
    if len(candidates) == 1:
        return candidates[0]
    fold_of = objective.assign_folds(options.folds)
    solutions = [objective.zero_parameters() for _ in range(options.folds)]
    accuracies: dict[float, float] = {}
    for candidate in candidates:
        correct = 0.0
        for fold in range(options.folds):
            held = fold_of == fold
            if not bool(held.any()) or bool(held.all()):  # fewer units than folds
                continue
            training = objective.everyone.masked_fill(held, 0.0)
            start = solutions[fold]
            solutions[fold] = objective.find_minimum(training, candidate, start, options.stopping)
            correct += objective.count_correct(solutions[fold], held)
        accuracies[candidate] = min(1.0, correct / objective.decisions)
        highest = max(accuracies.values())
        error = math.sqrt(highest * (1 - highest) / objective.n)
        if accuracies[candidate] < highest - error:
            break
    best = max(accuracies, key=lambda candidate: accuracies[candidate])
    logger.info("nonprivate: accuracy by penalty %s; chosen %g", accuracies, best)
    return best
