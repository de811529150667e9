"""The record of the gradients of subgroups, as a typed object.

A record is not private: all numbers come from gradients of training examples, without noise.
"""

from __future__ import annotations

from typing import Final, Literal

from dpprobe.analyses.fairness.fairness_record import Group
from dpprobe.files.records import Record, RecordPart
from dpprobe.privacy.limits import epsilon_value
from dpprobe.privacy.risk import RiskEpsilon

ALL: Final = "all"  # the attribute's name, and the name of its only group: all rows


class Spread(RecordPart):
    """The mean, the smallest and the largest value over seeds."""

    mean: float
    low: float
    high: float


class GroupGradients(RecordPart):
    """The gradients of a group's examples at a cell's heads.

    An example's gradient is the gradient of its cross-entropy in the trained parameters.

    Attributes:
      median, p90: median and 90th percentile of the gradients' L2 norms.
      clipped: share of the examples whose gradient is longer than `max_grad_norm`.
      alignment: cosine of the group's mean clipped gradient and the mean clipped gradient of all
        examples; None if a mean is 0 for a seed.
      unclipped_alignment: cosine of the group's mean clipped gradient and the mean gradient of all
        examples without clipping.
    """

    attribute: str
    group: str
    rows: int
    median: Spread
    p90: Spread
    clipped: Spread
    alignment: Spread | None
    unclipped_alignment: Spread | None


class GradientsCell(RecordPart):
    """A cell, and its groups' gradients.

    Attributes:
      epsilon_at_delta: the epsilon of a budget given as a risk; None for other budgets.
      private: False if the cell has no guarantee, so that training clipped nothing.
    """

    method: str
    epsilon: str
    epsilon_at_delta: float | None
    private: bool
    seeds: int
    max_grad_norm: float
    groups: tuple[GroupGradients, ...]

    @property
    def place(self) -> float:
        """The cell's epsilon on an axis."""
        if self.epsilon_at_delta is None:
            return epsilon_value(self.epsilon)
        return RiskEpsilon(self.epsilon_at_delta, self.epsilon)


class GroupedRows(RecordPart):
    """An attribute and its groups, with reasons for groups that are not measured."""

    attribute: str
    groups: tuple[Group, ...]


class GradientsRecord(Record):
    """Gradients of the subgroups of one (dataset, backbone).

    Attributes:
      rows: training examples with usable features.
      unusable: omitted examples: null, or with NaN, infinite, huge or tiny features.
      skipped: for each method that is not measured, the reason.
    """

    format: Literal["dpprobe-group-gradients"] = "dpprobe-group-gradients"
    format_version: Literal[1] = 1
    private: Literal[False] = False
    dataset: str
    backbone: str
    rows: int
    unusable: int
    minimum: int
    attributes: tuple[GroupedRows, ...]
    cells: tuple[GradientsCell, ...]
    skipped: dict[str, str]
