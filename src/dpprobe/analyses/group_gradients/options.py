"""The options of the block `group_gradients` in a study file."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from dpprobe.options import Name, Options
from dpprobe.privacy.risk import to_tokens


class GroupGradientsOptions(Options):
    """Gradients of subgroups of the training images, at trained heads. Not private."""

    groups: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="Group columns, or `class` for the classes. Without this option: all group "
        "columns, or the classes of a dataset without group columns.",
    )
    methods: tuple[Name, ...] | None = Field(
        None,
        min_length=1,
        description="Methods to measure; without this option, all methods that clip the gradients "
        "of examples.",
    )
    epsilons: Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(to_tokens)] | None = (
        Field(None, description="Epsilons to measure; by default, all epsilons of the study.")
    )
    minimum: int = Field(
        30,
        ge=2,
        description="Fewest training units (patients or images) of a measured group; smaller "
        "groups are listed.",
    )
