"""The block `fairness` of a study."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from dpprobe.options import Name, Options
from dpprobe.privacy.risk import to_tokens


class MinimumOptions(Options):
    """Minimum numbers of test units (patients or images) per compared group."""

    units: int = Field(30, ge=2, description="Minimum number of test units in total.")
    positives: int = Field(
        10,
        ge=1,
        description="Minimum number of test units with a label; the label's recall and "
        "AUC are then compared.",
    )
    negatives: int = Field(
        10,
        ge=1,
        description="Minimum number of test units without a label; "
        "the label's AUC is then compared.",
    )


class FairnessOptions(Options):
    """Comparison of subgroups of the test images, in every cell. Not private."""

    groups: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="Group columns of the datasets, or `class`. If absent: every group column, or "
        "the classes of a dataset without group columns.",
    )
    pairs: tuple[tuple[str, str], ...] = Field(
        (), description="Pairs of group columns whose intersections are compared too: [[sex, age]]."
    )
    methods: tuple[Name, ...] | None = Field(
        None, min_length=1, description="All if absent; references are always compared."
    )
    epsilons: Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(to_tokens)] | None = (
        Field(None, description="A selection of the study's epsilons; all if absent.")
    )
    minimum: MinimumOptions = Field(
        MinimumOptions(),
        description="Minimum number of test units per group; the report names smaller groups but "
        "leaves them out.",
    )
    resamples: int = Field(
        2000, ge=200, le=100_000, description="Bootstrap resamples of the test units."
    )
    confidence: float = Field(0.95, ge=0.5, lt=1, description="Confidence level of the intervals.")
    reference: Name | None = Field(
        None,
        description="Gaps are compared with this method's heads without privacy. If absent: the "
        "non-private baseline, or in a study without one each method itself at inf.",
    )
