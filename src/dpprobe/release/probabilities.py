"""Turns the scores of a calibrated head into probabilities, sets of classes, and abstention.

All parameters come from the block `calibration` of a bundle's privacy statement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpprobe.errors import ConfigError, DataError

# Edges of the ranges of an image's largest probability in a calibration's counts.
TOP_EDGES = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Turns the scores of a released head into probabilities and sets.

    Attributes:
      thresholds: maps each coverage to the lowest probability of a class in a prediction set.
      operating_point: a class and its threshold (None if no threshold passed the test); None if
        the release has no operating point.
    """

    scale: float
    offset: float
    thresholds: Mapping[float, float]
    operating_point: tuple[str, float | None] | None = None

    @classmethod
    def from_block(cls, block: Mapping[str, Any]) -> Calibration:
        """Reads the block `calibration` of a statement; raises DataError for impossible values."""
        try:
            scale, offset = float(block["scale"]), float(block["offset"])
            sets = {float(one["coverage"]): float(one["threshold"]) for one in block["sets"]}
            point = _read_point(block.get("operating_point"))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"calibration: cannot be read ({error!r})") from error
        if not (0 <= scale < math.inf and math.isfinite(offset)):
            raise DataError(f"calibration: scale {scale:g}, offset {offset:g}")
        return cls(scale=scale, offset=offset, thresholds=sets, operating_point=point)

    def rescale(self, scores: Any) -> Any:
        """Returns the logits of scores [..., classes], in NumPy or PyTorch."""
        logits = scores * self.scale
        if self.offset:
            logits[..., 1] += self.offset
        return logits


def _read_point(block: Mapping[str, Any] | None) -> tuple[str, float | None] | None:
    if block is None:
        return None
    threshold = block["threshold"]
    return str(block["positive_class"]), None if threshold is None else float(threshold)


def read_operating_point(calibration: Calibration | None) -> dict[str, float]:
    """Returns class and threshold of a release's operating point; ConfigError if absent."""
    point = None if calibration is None else calibration.operating_point
    if point is None:
        raise ConfigError(
            "operating_point: the release has none; leave it out, or make a release with "
            "`calibrate: {operating_point: ...}`"
        )
    name, threshold = point
    if threshold is None:
        raise ConfigError(
            f"operating_point: the release has no threshold for {name}, because its test units "
            "were too few for the noise; leave it out, or set a threshold of your own"
        )
    return {name: threshold}


@dataclass(frozen=True, kw_only=True)
class SetRule:
    """Chooses the classes in a prediction set, or abstains from a prediction.

    Attributes:
      threshold: the lowest probability of a class in a prediction set; None without sets.
      abstain_below: abstain if the largest probability is below this value; None to abstain unless
        the set holds exactly one class.
    """

    threshold: float | None
    abstain_below: float | None

    @classmethod
    def choose_rule(
        cls,
        calibration: Calibration | None,
        *,
        coverage: float | None = None,
        abstain_below: float | None = None,
    ) -> SetRule | None:
        """Returns the rule for a coverage; default: the lowest published coverage of at least 90%.

        Returns None without a calibration. Raises ConfigError for an unpublished coverage.
        """
        if calibration is None:
            if coverage is None and abstain_below is None:
                return None
            raise ConfigError(
                "coverage, abstain_below: the release was not calibrated; leave them out, or make "
                "a release with `calibrate`"
            )
        offered = calibration.thresholds
        if coverage is not None and coverage not in offered:
            has = ", ".join(f"{each:g}" for each in offered) or "none"
            raise ConfigError(f"coverage {coverage:g}: the release has {has}; choose one of these")
        if abstain_below is not None and not 0 <= abstain_below <= 1:
            raise ConfigError(f"abstain_below {abstain_below:g}: must be a probability from 0 to 1")
        wanted = 0.9 if coverage is None else coverage
        enough = [each for each in offered if each >= wanted]
        chosen = min(enough, default=max(offered, default=None))
        return cls(threshold=chosen and offered[chosen], abstain_below=abstain_below)

    def apply_to(self, values: npt.NDArray[Any]) -> tuple[npt.NDArray[np.intp], bool]:
        """Returns the classes in a row's set, most probable first, and True to abstain.

        Every set contains the most probable class, which never lowers the coverage.
        """
        # in float32 like the probabilities, so that a probability equal to the threshold reaches it
        least = np.float32(0.0 if self.threshold is None else self.threshold)
        order = np.argsort(-values, kind="stable")
        reached = values[order] >= least
        reached[0] = True
        held = order[reached]
        if self.abstain_below is None:
            return held, len(held) != 1
        return held, bool(values.max() < np.float32(self.abstain_below))
