"""Public facts of a training set and its target, from which `head: auto` chooses."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from dpprobe.privacy.limits import INFINITE


@dataclass(frozen=True)
class DataFacts:
    """All that a choice of a head may depend on; public, so that choosing costs nothing.

    Attributes:
      n: training units of privacy: images, or patients.
      classes: number of classes, or of labels if images have several.
      epsilon: target; infinite without privacy.
    """

    n: int
    dimension: int
    classes: int
    multi_label: bool
    epsilon: float
    delta: float
    unit: str

    def to_dict(self) -> dict[str, Any]:
        """Returns the facts as plain values; an infinite epsilon is a word."""
        epsilon = self.epsilon if math.isfinite(self.epsilon) else INFINITE
        return {**asdict(self), "epsilon": epsilon}
