"""The block `representation_law` of a study."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from dpprobe.options import Name, Options
from dpprobe.privacy.risk import to_tokens


class RepresentationLawOptions(Options):
    """Separability and prediction residual of each block, frozen and tuned: not private."""

    methods: tuple[Name, ...] | None = Field(
        None,
        description="Methods whose tuned networks are measured beside the frozen one; if absent, "
        "all methods that tune networks.",
    )
    epsilons: Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(to_tokens)] | None = (
        Field(None, description="A selection of the study's epsilons; all if absent.")
    )
    rows: int = Field(
        10_000,
        ge=20,
        description="Use at most this many examples of each split; from larger "
        "splits, a seeded sample.",
    )
    token: Literal["class", "pooled"] = Field(
        "class",
        description="Source of a transformer block's features: the class token, or the mean over "
        "the patches. Networks without a class token, including convolutional ones, use the mean.",
    )
    shuffles: int = Field(
        3,
        ge=1,
        le=100,
        description="Measurements with shuffled labels, as the null distribution for each law.",
    )
