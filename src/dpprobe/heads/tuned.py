"""Random search over a head's options, priced: the best of a random number of trials.

A *trial* draws options from a public search space, fits the base head with them, and releases a
noisy score on the training rows. The number of trials is random too, and only the best trial's
head, options and noisy score leave: repeat-and-select (Papernot and Steinke 2022).

**What is released, and who prices it.** A trial is the base's mechanisms with the score's beside
them, in one composition Q. Options are drawn without the data, so they are part of Q's randomness;
searched options may change how a release is used and how it is clipped, but neither which
mechanisms there are nor their sampling, counts and noise multipliers, and these alone have a price:
every trial costs what Q costs. `ConfigError` otherwise, at the study's start. Trials are then best
of K runs of one Q, ordered by score, and `plan.Selection` has that priced.

**Score.** The number of training rows whose label the head gets right. Adding or removing a row
changes it by at most 1 at any fixed head; the head is an earlier release of the same trial, and
composition is adaptive. Of a multi-label row, 1 minus the mean over labels of the squared distance
between probability and label (Brier 1950): it lies in [0, 1], so the sensitivity is 1 as well, and
unlike the fraction of right labels it tells heads apart where most labels are 0.

**Normalisation.** The base's. A priced one releases statistics of all rows once in a fit, before
the first trial, and every trial works on the same normalised rows. So it is outside the selection
and composes with it, once: whatever it released, given that the trials are best of K runs of one Q,
the selection's bound holds, and composition is adaptive. Inside the trials it would be released
anew each time, and cost more, as all does there.

**No trial.** A Poisson number can be 0. Then the head is all zeros, which no data decides.

**Not released**, since K given the output is not covered: how many trials there were, which of them
was best, and all other trials' heads and scores.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, WithJsonSchema, model_validator

from dpprobe.errors import ConfigError
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import AnyMethod
from dpprobe.options import Options as Block
from dpprobe.privacy.plan import (
    LARGEST_MEAN_RUNS,
    LARGEST_SHAPE,
    Mechanism,
    Selection,
    split_budget,
)

if TYPE_CHECKING:
    from dpprobe.heads import Fitted, Record
    from dpprobe.heads.rows import Rows
    from dpprobe.privacy.releases import Releases

SCORE = "score"
# What is tried out of a search space when a study is checked, at most.
_MOST_CORNERS = 4096
_SHAPES = {"logarithmic": 0.0, "geometric": 1.0, "poisson": math.inf}
_OWN = "; a trial clips to its own norm, with noise in proportion, in place of this sensitivity"
# Nothing a search may change, whatever it costs.
_FIXED = ("head", "normalize", "engine")


class Range(Block):
    """Numbers between two ends, drawn uniformly, or uniformly in their logarithm."""

    low: float = Field(allow_inf_nan=False)
    high: float = Field(allow_inf_nan=False)
    log: bool = False

    @model_validator(mode="after")
    def _check(self) -> Range:
        if not self.low < self.high:
            raise ValueError(f"low {self.low:g} must be below high {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"low {self.low:g} has no logarithm; write a positive number")
        return self

    def at(self, place: float) -> float:
        """The number a part of the way from one end to the other, to six digits."""
        if self.log:
            value = self.low * (self.high / self.low) ** place
        else:
            value = self.low + place * (self.high - self.low)
        return min(max(float(f"{value:.6g}"), self.low), self.high)


def _read_space(value: Any) -> Any:
    """A mapping is a range, so that what is wrong with it is said of a range."""
    if isinstance(value, Mapping):
        return Range.model_validate(dict(value))
    if isinstance(value, Range) or (isinstance(value, list | tuple) and len(value) > 1):
        return value
    raise ValueError(f"{value!r}: write a list of two values or more, or low and high")


Choices = Annotated[tuple[bool | int | float | str, ...], Field(min_length=2)]
Space = Annotated[Choices | Range, BeforeValidator(_read_space)]
_BASE_SCHEMA = {
    "type": "object",
    "required": ["head"],
    "description": "The head that is tuned, with its fixed options.",
}


class Options(MethodOptions):
    """Any private head, its options searched; what leaves is the best trial, priced as such."""

    head: Literal["tuned"] = "tuned"
    base: Annotated[AnyMethod, WithJsonSchema(_BASE_SCHEMA)]
    search: dict[str, Space] = Field(
        min_length=1,
        description="For each searched option of the base a list of values, or {low, high, log}. "
        "Options that change what is priced, such as steps and batch_size, cannot be searched.",
    )
    trials: float = Field(
        10.0, gt=1, le=LARGEST_MEAN_RUNS, description="The mean of the random number of trials."
    )
    distribution: Literal["geometric", "logarithmic", "negative_binomial", "poisson"] = Field(
        "geometric",
        description="Of the number of trials. All but poisson give one trial at least; poisson "
        "seldom gives few, and costs most.",
    )
    shape: float | None = Field(
        None, gt=0, le=LARGEST_SHAPE, description="Of negative_binomial, and of it alone."
    )
    score_share: float = Field(
        0.05,
        gt=0,
        lt=1,
        description="The score's part of a trial's budget, as a part of the sum of count * rate^2 "
        "/ noise_multiplier^2.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.base.private or self.base.head == self.head:
            raise ValueError(f"base: head {self.base.head} cannot be tuned; write another")
        if (self.shape is None) == (self.distribution == "negative_binomial"):
            raise ValueError(
                f"shape {self.shape!r} with distribution {self.distribution}: negative_binomial "
                "needs one, the others have none"
            )
        if "normalize" in self.model_fields_set and self.normalize != self.base.normalize:
            raise ValueError("normalize: it is the base's; write it there")
        self.__dict__["normalize"] = self.base.normalize
        self._check_space()
        return self

    def _check_space(self) -> None:
        known = set(type(self.base).model_fields) - {*_FIXED, *self.base.paths}
        for name in self.search:
            if name not in known:
                raise ValueError(
                    f"search.{name}: not an option of head {self.base.head} that can be searched"
                )
        corners = math.prod(len(self._probes(name)) for name in self.search)
        if corners > _MOST_CORNERS:
            raise ValueError(
                f"search: {corners} combinations of values and ends of ranges, which are all "
                f"checked beforehand; write fewer than {_MOST_CORNERS}"
            )
        for values in self.corners():
            try:
                self.trial(values)
            except ValidationError as error:
                first = error.errors()[0]
                reason = first["msg"].removeprefix("Value error, ")
                raise ValueError(f"search: {_spelt(values)}: {reason}") from None

    def _probes(self, name: str) -> tuple[Any, ...]:
        """All values, or of a range both ends and a number between that is no whole one."""
        space = self.search[name]
        return (space.low, space.at(0.3819), space.high) if isinstance(space, Range) else space

    def corners(self) -> Iterator[dict[str, Any]]:
        """What is tried of the search space beforehand: each option alone, then all of them."""
        for name in self.search:
            for value in self._probes(name):
                yield {name: value}
        for values in itertools.product(*(self._probes(name) for name in self.search)):
            yield dict(zip(self.search, values, strict=True))

    def trial(self, values: Mapping[str, Any]) -> MethodOptions:
        """The base with the values of some of its options replaced."""
        return type(self.base).model_validate({**self.base.model_dump(), **values})

    @property
    def multi_label(self) -> bool:
        return self.base.multi_label

    @property
    def link(self) -> Literal["softmax", "sigmoid", "none"]:
        return self.base.link

    def input_files(self) -> tuple[str, ...]:
        return self.base.input_files()

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "base": self.base.identity()}

    def located(self, *, dataset: str, backbone: str) -> Self:
        base = self.base.located(dataset=dataset, backbone=backbone)
        return self.model_copy(update={"base": base})

    def releases(self, n: int) -> tuple[Mechanism, ...]:
        """What one trial releases.

        Raises:
          ConfigError: for a searched option that changes what is priced.
        """
        own = self.base.releases(n)
        own_clipping = set()
        for values in self.corners():
            trial = self.trial(values)
            try:
                released = trial.releases(n)
            except ConfigError as error:
                raise ConfigError(f"search: {_spelt(values)}: {error}") from None
            if _priced(released) != _priced(own):
                raise ConfigError(
                    f"search: {_spelt(values)} changes what is priced: how rows are sampled, the "
                    "number of steps or how noise is split; search other options"
                )
            if (trial.link, trial.multi_label) != (self.link, self.multi_label):
                raise ConfigError(
                    f"search: {_spelt(values)} changes what the head's scores are; search other "
                    "options"
                )
            own_clipping |= {
                item.name
                for item, base in zip(released, own, strict=True)
                if item.sensitivity != base.sensitivity
            }
        worded = [
            replace(item, released=f"{item.released}{_OWN}") if item.name in own_clipping else item
            for item in own
        ]
        return split_budget([(self.score_share, (self._score(),)), (1 - self.score_share, worded)])

    def _score(self) -> Mechanism:
        what = (
            "sum over the rows of 1 minus the mean squared error of a trial's probabilities"
            if self.multi_label
            else "number of rows whose label a trial's head gets right"
        )
        return Mechanism(
            name=SCORE,
            released=what,
            sensitivity=1.0,
            noise_multiplier=1.0,
            sample_rate=1.0,
            count=1,
        )

    def selection(self, n: int) -> Selection:
        names = tuple(mechanism.name for mechanism in self.releases(n))
        shape = _SHAPES.get(self.distribution, self.shape)
        assert shape is not None
        return Selection(mean=self.trials, shape=shape, repeated=names)


def _priced(mechanisms: tuple[Mechanism, ...]) -> list[tuple[Any, ...]]:
    """All that bears on a composition's price, but for a common factor on the noise."""
    return [
        (
            item.name,
            item.sample_rate,
            item.count,
            float(f"{item.noise_multiplier / mechanisms[0].noise_multiplier:.9g}"),
        )
        for item in mechanisms
    ]


def _spelt(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value!r}" for name, value in values.items())


def fit(
    options: Options, rows: Rows, releases: Releases, *, record: Record | None = None
) -> Fitted:
    """Releases the best trial of each seed; see `dpprobe.heads.fit`."""
    from dpprobe.heads.tuning import fit as fit_best

    return fit_best(options, rows, releases, record=record)
