"""Logistic regression with an L2 penalty, to convergence: the non-private ceiling."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, field_validator

from dpprobe.heads.options import MethodOptions
from dpprobe.privacy.plan import Mechanism

if TYPE_CHECKING:
    from dpprobe.heads import Fitted, Record
    from dpprobe.heads.rows import Rows
    from dpprobe.privacy.releases import Releases


class Options(MethodOptions):
    """Logistic regression; the penalty is chosen by cross-validation on the training split."""

    private: ClassVar[bool] = False
    private_choices: ClassVar[str | None] = (
        "the head itself: it standardises features with the private rows' means and deviations, "
        "and chooses its penalty by cross-validation on them"
    )

    head: Literal["nonprivate"] = "nonprivate"
    penalties: tuple[float, ...] = Field(
        (1e-5, 1e-4, 1e-3, 1e-2, 1e-1),
        min_length=1,
        description="Candidates for lambda in: mean cross-entropy + lambda / 2 * squared weights, "
        "on standardised features, bias unpenalised. One candidate skips the cross-validation.",
    )
    folds: int = Field(3, ge=2, description="Folds of the cross-validation.")
    tolerance: float = Field(
        3e-5, gt=0, description="Converged when no entry of the gradient is larger."
    )
    max_iterations: int = Field(1000, ge=1, description="Iterations a fit may take, at most.")

    @field_validator("penalties")
    @classmethod
    def _check_penalties(cls, values: tuple[float, ...]) -> tuple[float, ...]:
        for value in values:
            if not 0 < value < float("inf"):
                raise ValueError(f"penalty {value!r}: must be a positive number")
            if values.count(value) > 1:
                raise ValueError(f"penalty {value!r} stands twice in the list; remove one")
        return values

    @property
    def multi_label(self) -> bool:
        return True

    def link_on(self, multi_label: bool) -> Literal["softmax", "sigmoid", "none"]:
        return "sigmoid" if multi_label else "softmax"

    def releases(self, n: int) -> tuple[Mechanism, ...]:  # noqa: ARG002
        return ()


def fit(
    options: Options, rows: Rows, releases: Releases, *, record: Record | None = None
) -> Fitted:
    """Fits one head and repeats it for every seed; see `dpprobe.heads.fit`."""
    from dpprobe.heads.logistic_regression import fit as fit_logistic_regression

    return fit_logistic_regression(options, rows, releases, record=record)
