"""A public random projection of feature rows to fewer dimensions.

The projection to k numbers changes inner products of unit rows by about 1 / sqrt(k) (Johnson and
Lindenstrauss 1984). For random signs see Achlioptas 2003, "Database-friendly random projections".
The matrix is public, so projecting costs no privacy. Sums of shorter rows need less noise.
The matrix's signs are bits of SHAKE-256 of a text with both widths, so all machines agree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pydantic import Field

from dpprobe.backbones.options import BackboneOptions
from dpprobe.errors import ConfigError

if TYPE_CHECKING:
    import torch

# Projections to more numbers were no better on public images (docs/features.md).
USUAL_WIDTH = 512


class ProjectedOptions(BackboneOptions):
    """Options of families whose features can be projected."""

    project: int | None = Field(
        None,
        ge=1,
        description="Project features to this many numbers with public random signs, which costs "
        "no privacy. If absent, all features are kept.",
    )

    @property
    def unset_options(self) -> frozenset[str]:
        """Unset options, omitted from fingerprints, as older features lack them."""
        return frozenset({"project"} if self.project is None else ())

    @property
    def computed_dimension(self) -> int | None:
        return self.full_dimension if self.project is None else self.project

    @property
    def full_dimension(self) -> int | None:
        """Features per image before the projection; None if the number depends on images' sizes."""
        raise NotImplementedError

    @property
    def fewer_features(self) -> str | None:
        return f"project: {USUAL_WIDTH}"

    def check_projection(self) -> None:
        """Raises ConfigError if features cannot be projected: unknown or too small width."""
        if self.project is None:
            return
        if self.full_dimension is None:
            raise ConfigError(
                f"project: {self.project}: the number of features is not known; set the "
                "backbone's size"
            )
        if self.project >= self.full_dimension:
            raise ConfigError(
                f"project: {self.project} must be below the number of features, "
                f"{self.full_dimension}; choose a smaller number, or remove project"
            )

    def extraction_params(self) -> dict[str, Any]:
        values = super().extraction_params()
        return {name: value for name, value in values.items() if name not in self.unset_options}

    def add_projection(
        self, forward: Callable[[torch.Tensor], torch.Tensor], device: str
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """Returns the forward pass, followed by the projection if there is one."""
        if self.project is None:
            return forward
        assert self.full_dimension is not None
        matrix = draw_signs(self.full_dimension, self.project).to(device)
        return lambda batch: forward(batch) @ matrix


@lru_cache(maxsize=2)
def draw_signs(dimension: int, width: int) -> torch.Tensor:
    """Returns the projection matrix, float32 [dimension, width]: 1 and -1, over sqrt(width)."""
    import numpy as np  # slow import, and planning imports this module
    import torch

    seed = f"dpprobe projection {dimension} to {width}".encode()
    entries = dimension * width
    drawn = np.frombuffer(hashlib.shake_256(seed).digest(-(-entries // 8)), np.uint8)
    bits = np.unpackbits(drawn)[:entries].reshape(dimension, width)
    return torch.from_numpy((2 * bits.astype(np.float32) - 1) / np.float32(width**0.5))
