"""The options of the block `long_tail` in a study file."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from dpprobe.options import Name, Options, reject_repeats


class MemorisationOptions(Options):
    """Memorisation scores: how much more often heads trained on an image predict its label."""

    heads: int = Field(
        200,
        ge=50,
        le=100_000,
        description="Number of heads to train, each on a random 70% of the units of privacy.",
    )
    rows: int = Field(
        10_000,
        ge=20,
        description="Score at most this many training examples. Larger sets are sampled by unit of "
        "privacy, with the study's seed.",
    )


class LongTailOptions(Options):
    """Sub-classes of the features of each class, and memorisation: not private."""

    datasets: tuple[Name, ...] | None = Field(
        None,
        min_length=1,
        description="Datasets to measure; without this option, all datasets with one label per "
        "image.",
    )
    clusters: Annotated[
        tuple[Annotated[int, Field(ge=2, le=10_000)], ...], AfterValidator(reject_repeats)
    ] = Field(
        (5, 20, 50),
        min_length=1,
        description="Numbers of sub-classes per class, with one clustering for each number. A "
        "class with fewer than 5 examples per sub-class gets fewer sub-classes.",
    )
    rows: int = Field(
        50_000,
        ge=20,
        description="Cluster at most this many training examples. Larger sets are sampled with the "
        "study's seed.",
    )
    memorisation: MemorisationOptions | None = Field(
        MemorisationOptions(), description="Options of memorisation scores; null omits the scores."
    )
