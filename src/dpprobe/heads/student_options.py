"""Option and mechanism of a student on public images, which `heads.student` trains."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from dpprobe.heads.fitted import STUDENT_GAIN
from dpprobe.heads.gradient_options import UnitRowOptions
from dpprobe.heads.normalisation import AroundCentre, Share
from dpprobe.privacy.plan import Mechanism, Plan, full_batch, split_budget

_DEVIATIONS = 2.0

StudentShare = Annotated[
    Share | None,
    Field(
        exclude_if=lambda value: value is None,
        description="With public images: the trained head labels them, and a student is trained "
        "on these labels. The option is the share of the budget for one count: how many more "
        "training images the student has right. The student replaces the head only if the noisy "
        "count is above two standard deviations of its noise. Try 0.04. If absent, no student.",
    ),
]


class StudentOptions(UnitRowOptions):
    """A head of gradient steps that a student on public images may replace."""

    student_share: StudentShare = None

    @model_validator(mode="after")
    def _check_student(self) -> StudentOptions:
        if self.student_share is None:
            return self
        if self.multi_label:
            raise ValueError(
                f"student_share {self.student_share:g}: a student learns one label per image; "
                "write `loss: softmax`, or remove student_share"
            )
        if not isinstance(self.normalize, AroundCentre) or self.normalize.public is None:
            raise ValueError(
                f"student_share {self.student_share:g}: a student needs public images; write "
                "`normalize: {kind: centred, public: NAME}`, or remove student_share"
            )
        return self

    @property
    def has_student(self) -> bool:
        return self.student_share is not None

    def list_mechanisms(self, n: int) -> tuple[Mechanism, ...]:
        others = super().list_mechanisms(n)
        if self.student_share is None:
            return others
        summed = "sum over the units, of each the student's accuracy minus the head's"
        gain = full_batch(STUDENT_GAIN, summed, 1.0)
        return split_budget([(self.student_share, (gain,)), (1 - self.student_share, others)])


def gain_threshold(plan: Plan) -> float:
    """Returns the noisy gain above which a student replaces the head, in units of privacy."""
    return _DEVIATIONS * plan.find_mechanism(STUDENT_GAIN).noise_scale
