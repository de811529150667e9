"""Several backbones side by side: their features, each scaled to L2 norm 1, make one row.

A joined backbone has no network and needs no extraction: the feature store reads its members'
shards together.
"""

from __future__ import annotations

from typing import Literal, NoReturn

from pydantic import Field, field_validator, model_validator

from dpprobe.backbones.backbone import Runtime
from dpprobe.backbones.options import MOST_GREY_BITS, BackboneOptions
from dpprobe.errors import ConfigError
from dpprobe.options import Name

FAMILY = "joined"
# Number format of joined features, which are computed while the members' features are read.
DTYPE = "float32"


class Options(BackboneOptions):
    """Features of other backbones of the study side by side, each scaled to L2 norm 1."""

    family: Literal["joined"] = "joined"
    of: tuple[Name, ...] = Field(
        min_length=2,
        description="Names of at least two other backbones of the study. Their features are "
        "stored once and read together.",
    )

    @field_validator("of")
    @classmethod
    def _check_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name} appears twice; remove one")
        return names

    @model_validator(mode="after")
    def _check_decoding(self) -> Options:
        if self.jpeg_decoding != "full" or self.grey_bits != MOST_GREY_BITS:
            raise ValueError(
                "jpeg_decoding and grey_bits have no effect on joined features; set them in the "
                "backbones that are listed in `of`"
            )
        return self

    def check_files(self) -> None:
        """Checks nothing: the members check their files."""


def load(options: Options, runtime: Runtime) -> NoReturn:  # noqa: ARG001
    raise ConfigError(
        f"family joined has no network: its features are the features of {', '.join(options.of)}; "
        "load these backbones, and join them with joined_network.join_backbones"
    )
