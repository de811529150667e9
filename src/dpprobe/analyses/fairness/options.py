"""The options of the block `fairness` in a study file."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from dpprobe.options import Name, Options
from dpprobe.privacy.risk import to_tokens


class MinimumOptions(Options):
    """The fewest test units (patients or images) that a group needs to be compared."""

    units: int = Field(30, ge=2, description="Fewest test units in a group.")
    positives: int = Field(
        10,
        ge=1,
        description="Fewest test units with a label in each group, for comparing recall and AUC of "
        "the label.",
    )
    negatives: int = Field(
        10,
        ge=1,
        description="Fewest test units without a label in each group, for comparing AUC of the "
        "label.",
    )


class FairnessOptions(Options):
    """Comparison of subgroups of the test images, in each cell. Not private."""

    groups: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="Group columns to compare, or `class` for the classes. Without this option: "
        "all group columns, or the classes of a dataset without group columns.",
    )
    pairs: tuple[tuple[str, str], ...] = Field(
        (), description="Pairs of group columns whose intersections form groups: [[sex, age]]."
    )
    methods: tuple[Name, ...] | None = Field(
        None,
        min_length=1,
        description="Methods to compare; without this option, all methods. Reference methods are "
        "always compared.",
    )
    epsilons: Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(to_tokens)] | None = (
        Field(None, description="Epsilons to compare; by default, all epsilons of the study.")
    )
    minimum: MinimumOptions = Field(
        MinimumOptions(),
        description="Fewest test units per group; the report lists smaller groups, but does not "
        "compare them.",
    )
    resamples: int = Field(
        2000, ge=200, le=100_000, description="Bootstrap resamples of the test units."
    )
    confidence: float = Field(0.95, ge=0.5, lt=1, description="Confidence level of the intervals.")
    reference: Name | None = Field(
        None,
        description="The non-private method to whose gaps all other gaps are compared. Without "
        "this option: the non-private baseline or, in a study without a baseline, each method at "
        "inf.",
    )
