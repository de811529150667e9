"""Options (clipping, lambda) of heads that clip rows and release sums over all rows."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dpprobe.heads.normalisation import CENTRED_BY_DEFAULT, Centred, Normalize
from dpprobe.heads.options import MethodOptions

GRADIENTS = "gradients"
SMALLEST_ROW_NORM, LARGEST_ROW_NORM = 1e-4, 1e4
MaxRowNorm = Annotated[
    float,
    Field(
        ge=SMALLEST_ROW_NORM,
        le=LARGEST_ROW_NORM,
        description="Each example's feature vector is clipped to this L2 norm, C. The "
        "normalisations centred and l2 give norm 1.",
    ),
]
RowIntercept = Annotated[
    float,
    Field(
        ge=0,
        le=10,
        description="Constant appended to each feature vector, as a part of max_row_norm; the "
        "biases are learned from it. The constant's square is added to the squared sensitivity; 0 "
        "learns no biases.",
    ),
]
# An option of heads that invert a released second moment.
Ridge = Annotated[
    float | None,
    Field(
        ge=0,
        description="Ridge penalty lambda, added to the released matrix before inversion. If "
        "absent, lambda follows from the noise, the dimension and the number of classes, all "
        "public; without noise, from the dimension and the features' mean square. 0 adds nothing "
        "beyond a guard against rounding.",
    ),
]
# An option of heads that release sums of rows by label, with one or several labels per row.
MaxLabels = Annotated[
    int,
    Field(
        ge=1,
        description="Number of labels of an image that count in full. If an image has more labels, "
        "all of them are scaled down equally. The sensitivity of sums by label grows with the "
        "square root of max_labels.",
    ),
]


class RowOptions(MethodOptions):
    """A head that clips feature rows and appends a constant to them.

    A normalised row x becomes [x min(1, C / |x|), b C], with C = `max_row_norm` and b =
    `intercept`. The norm of the result is at most S = C sqrt(1 + b^2). A row with NaN, infinity or
    huge values becomes 0, including the constant b C.
    """

    normalize: Normalize = Field(default_factory=Centred, description=CENTRED_BY_DEFAULT)
    max_row_norm: MaxRowNorm = 1.0
    intercept: RowIntercept = 0.2

    @property
    def multi_label(self) -> bool:
        return True

    @property
    def link(self) -> Literal["softmax", "sigmoid", "none"]:
        return "none"

    @property
    def longest(self) -> float:
        """S, the largest norm of a row with its constant."""
        return float(self.max_row_norm * (1 + self.intercept**2) ** 0.5)
