"""The values that a search may choose for an option: a list, or a range of numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AllowInfNan, BeforeValidator, Field, model_validator

from dpprobe.options import Options


class Range(Options):
    """Numbers between two ends, drawn uniformly, or uniformly in their logarithm."""

    low: float = Field(allow_inf_nan=False, description="Smallest value.")
    high: float = Field(allow_inf_nan=False, description="Largest value.")
    log: bool = Field(False, description="Draw the logarithm uniformly.")

    @model_validator(mode="after")
    def _check(self) -> Range:
        if not self.low < self.high:
            raise ValueError(f"low {self.low:g} must be below high {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(
                f"low {self.low:g} has no logarithm, but log: true needs it; use a positive number"
            )
        return self

    def value_at(self, place: float) -> float:
        """Returns the number at a fraction of the way between the ends, to six digits.

        Example:
          >>> Range(low=0.01, high=1, log=True).value_at(0.5)
          0.1
        """
        if self.log:
            return self.round_value(self.low * (self.high / self.low) ** place)
        return self.round_value(self.low + place * (self.high - self.low))

    def round_value(self, value: float) -> float:
        """Rounds a number to six digits, within the range."""
        return min(max(float(f"{value:.6g}"), self.low), self.high)


def _read_space(value: Any) -> Any:
    """Reads a mapping as a range, so that error messages are about ranges."""
    if isinstance(value, Mapping):
        return Range.model_validate(dict(value))
    if isinstance(value, Range) or (isinstance(value, list | tuple) and len(value) > 1):
        return value
    raise ValueError(f"{value!r}: must be a list of two or more values, or low and high")


# Values that are not finite are refused by the searched option, with its own error.
_Number = Annotated[float, AllowInfNan(True)]
Choices = Annotated[tuple[bool | int | _Number | str, ...], Field(min_length=2)]
Space = Annotated[Choices | Range, BeforeValidator(_read_space)]


def list_probes(space: Any) -> tuple[Any, ...]:
    """Lists the values of a list, or both ends of a range and a non-integer between them."""
    return (space.low, space.value_at(0.3819), space.high) if isinstance(space, Range) else space


def list_corners(spaces: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields values for checking a study: changes each option separately, then all together."""
    probes = {name: list_probes(space) for name, space in spaces.items()}
    for name, values in probes.items():
        for value in values:
            yield {name: value}
    for together in itertools.product(*probes.values()):
        yield dict(zip(probes, together, strict=True))


def spell_options(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value!r}" for name, value in values.items())
