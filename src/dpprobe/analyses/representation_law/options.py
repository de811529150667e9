"""The options of the block `representation_law` in a study file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from dpprobe.options import Name, Options
from dpprobe.privacy.risk import to_tokens


class RepresentationLawOptions(Options):
    """Separability and prediction residual of blocks, in frozen and tuned networks: not private."""

    methods: tuple[Name, ...] | None = Field(
        None,
        description="Methods whose tuned networks are measured besides the frozen network. Without "
        "this option, all methods that tune networks.",
    )
    epsilons: Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(to_tokens)] | None = (
        Field(None, description="Epsilons to measure; by default, all epsilons of the study.")
    )
    rows: int = Field(
        10_000,
        ge=20,
        description="Use at most this many examples of each split. Larger splits are sampled with "
        "the study's seed.",
    )
    token: Literal["class", "pooled"] = Field(
        "class",
        description="Features of a transformer block: its class token, or the mean over its "
        "patches. Networks without a class token, such as convolutional networks, use the mean.",
    )
    shuffles: int = Field(
        3,
        ge=1,
        le=100,
        description="Number of measurements with shuffled labels, as a reference for each law.",
    )
