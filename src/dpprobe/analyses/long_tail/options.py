"""The block `long_tail` of a study."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from dpprobe.options import Name, Options, reject_repeats


class MemorisationOptions(Options):
    """Scores of images that heads classify correctly only if they were trained on them."""

    heads: int = Field(
        200,
        ge=50,
        le=100_000,
        description="Number of heads to train, each on a random 70% of the units.",
    )
    rows: int = Field(
        10_000,
        ge=20,
        description="Use at most this many training examples; from larger sets, a "
        "seeded sample of units.",
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
        description="Numbers of sub-classes to look for in each class, with one clustering for "
        "each number. A class with fewer than 5 examples per sub-class gets fewer sub-classes.",
    )
    rows: int = Field(
        50_000,
        ge=20,
        description="Cluster at most this many training examples; from larger "
        "sets, a seeded sample.",
    )
    memorisation: MemorisationOptions | None = Field(
        MemorisationOptions(), description="Options of the memorisation scores; null skips them."
    )
