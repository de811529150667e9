"""The block `representation_law` of a study."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from dpprobe.options import Name, Options
from dpprobe.privacy.limits import to_tokens


class RepresentationLawOptions(Options):
    """Separability and prediction residual of each block, frozen and tuned: not private."""

    methods: tuple[Name, ...] | None = Field(
        None,
        description="Methods whose tuned networks are measured beside the frozen one; all that "
        "tune networks where absent.",
    )
    epsilons: Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(to_tokens)] | None = (
        Field(None, description="Some of the study's; all where absent.")
    )
    rows: int = Field(
        10_000, ge=20, description="Rows of each split used at most; of more, a seeded sample."
    )
    token: Literal["class", "pooled"] = Field(
        "class",
        description="A transformer's features of a block: its class token, or the mean of its "
        "patches. Those without such a token, and convolutional networks, are pooled.",
    )
    shuffles: int = Field(
        3, ge=1, le=100, description="Measurements with shuffled labels, the null beside each law."
    )

    @field_validator("methods")
    @classmethod
    def _check_methods(cls, values: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for value in values or ():
            if values is not None and values.count(value) > 1:
                raise ValueError(f"{value} stands twice in the list; remove one")
        return values
