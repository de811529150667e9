"""The block `fairness` of a study."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from dpprobe.options import Name, Options
from dpprobe.privacy.limits import to_tokens


class MinimumOptions(Options):
    """The test units (patients, or rows) that a group needs to be compared."""

    units: int = Field(30, ge=2, description="In all.")
    positives: int = Field(
        10, ge=1, description="With a label, for its recall and AUC to be compared."
    )
    negatives: int = Field(10, ge=1, description="Without a label, for its AUC to be compared.")


class FalsePositiveRate(Options):
    """A threshold: the smallest score that at most this share of the negatives lies above."""

    false_positive_rate: float = Field(
        gt=0, lt=1, description="Of the test rows without a label: for evaluation only."
    )


class FairnessOptions(Options):
    """Comparison of subgroups of the test rows, in every cell. Not private."""

    groups: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="Group columns of the datasets, or `class`; where absent every group column, "
        "and the classes of a dataset that has none.",
    )
    pairs: tuple[tuple[str, str], ...] = Field(
        (), description="Pairs of group columns whose intersections are compared too: [[sex, age]]."
    )
    methods: tuple[Name, ...] | None = Field(
        None, min_length=1, description="All where absent; references are always compared."
    )
    epsilons: Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(to_tokens)] | None = (
        Field(None, description="Some of the study's; all where absent.")
    )
    minimum: MinimumOptions = Field(
        MinimumOptions(),
        description="The test units that a group needs: smaller groups are named and left out.",
    )
    thresholds: tuple[
        Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] | FalsePositiveRate, ...
    ] = Field(
        (0.5, FalsePositiveRate(false_positive_rate=0.1)),
        description="Probabilities above which a label counts as predicted, or "
        "{false_positive_rate: r}. With more than two classes the top one is predicted.",
    )
    resamples: int = Field(
        2000, ge=200, le=100_000, description="Bootstrap resamples of the test units."
    )
    confidence: float = Field(0.95, ge=0.5, lt=1, description="Of the intervals.")
    reference: Name | None = Field(
        None,
        description="The method whose heads without privacy the gaps are compared with; where "
        "absent the non-private ceiling, or in a study without one the same method at inf.",
    )

    @model_validator(mode="after")
    def _check_pairs(self) -> FairnessOptions:
        for first, second in self.pairs:
            if first == second:
                raise ValueError(f"pairs: [{first}, {second}]: a pair needs two different columns")
        return self
