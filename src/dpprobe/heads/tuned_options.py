"""Options and mechanisms of a search over a head's options; `heads.tuned` runs the search."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, WithJsonSchema, model_validator

from dpprobe.errors import ConfigError
from dpprobe.heads.default_search_spaces import default_space
from dpprobe.heads.normalisation import Share
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import AnyMethod
from dpprobe.heads.search_space import Space, list_corners, list_probes, spell_options
from dpprobe.options import AtMost
from dpprobe.privacy.plan import (
    LARGEST_MEAN_RUNS,
    Mechanism,
    Selection,
    full_batch,
    split_budget,
)
from dpprobe.wrong_keys_and_values import explain_first

SCORE = "score"
MOST_TRIALS = AtMost(LARGEST_MEAN_RUNS, "each trial trains a head, and epsilon covers all of them")
# The largest number of combinations of a search space that are tried when a study is checked.
_MOST_CORNERS = 4096
# Appended to a mechanism's description if its sensitivity is searched.
_CLIPPED_ANEW = (
    "; a trial clips to its own norm, with noise in proportion, in place of this sensitivity"
)
_BASE_SCHEMA = {
    "type": "object",
    "required": ["head"],
    "description": "The head to tune, with its fixed options.",
}


class Options(MethodOptions):
    """Any private head with searched options; epsilon covers search and best trial."""

    head: Literal["tuned"] = "tuned"
    base: Annotated[AnyMethod, WithJsonSchema(_BASE_SCHEMA)]
    search: dict[str, Space] = Field(
        default_factory=dict,
        description="For each searched option of the base, a list of values, or {low, high, log}. "
        "Options that change the privacy price, such as steps and batch_size, cannot be searched. "
        "If absent: the search space of the base's head, without the options that the base sets.",
    )
    trials: Annotated[float, MOST_TRIALS] = Field(
        10.0, gt=1, description="Mean of the random number of trials."
    )
    score_share: Share = Field(
        0.05,
        description="The score's share of a trial's budget: its part of the sum of count * rate^2 "
        "/ noise_multiplier^2.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.base.private or self.base.head == self.head:
            raise ValueError(f"base: head {self.base.head} cannot be tuned; choose another head")
        if self.base.tunes_network:
            raise ValueError(
                f"base: head {self.base.head} trains networks, but tuned searches only linear "
                f"heads; fix the options, or write `search` in {self.base.head}, which epsilon "
                "does not cover"
            )
        if self.base.head == "auto":
            raise ValueError("base: head auto chooses its own options; name the head to tune")
        if "normalize" in self.model_fields_set and self.normalize != self.base.normalize:
            raise ValueError("normalize: is an option of the base; move it there")
        self._derive(normalize=self.base.normalize)
        if "search" not in self.model_fields_set:
            self._derive(search=default_space(self.base))
            if not self.search:
                raise ValueError(
                    f"search: head {self.base.head} with these options has no default search; "
                    "list the options to search"
                )
        self._check_space()
        return self

    def _check_space(self) -> None:
        if not self.search:
            raise ValueError("search: {}: set one option or more, or leave search out")
        known = set(type(self.base).model_fields) - {*self.base.FIXED, *self.base.paths}
        for name in self.search:
            if name not in known:
                raise ValueError(
                    f"search.{name}: not an option of head {self.base.head} that can be searched"
                )
        corners = math.prod(len(list_probes(space)) for space in self.search.values())
        if corners > _MOST_CORNERS:
            raise ValueError(
                f"search: {corners} combinations of values and ends of ranges, and each is "
                f"checked beforehand; use at most {_MOST_CORNERS}"
            )
        for values in list_corners(self.search):
            try:
                trial = self.make_trial(values)
                if trial.releases_priors:
                    raise ValueError(
                        f"search: {spell_options(values)}: class_priors: released does not work "
                        "in a search; use public numbers, or remove it"
                    )
                if trial.has_student:
                    raise ValueError(
                        f"search: {spell_options(values)}: student_share does not work in a "
                        "search; remove it"
                    )
            except ValidationError as error:
                reason = explain_first(error)
                raise ValueError(f"search: {spell_options(values)}: {reason}") from None

    def make_trial(self, values: Mapping[str, Any]) -> MethodOptions:
        """Returns the base head's options with some values replaced."""
        return type(self.base).model_validate({**self.base.model_dump(), **values})

    @property
    def trial_head(self) -> MethodOptions:
        return self.base

    @property
    def multi_label(self) -> bool:
        return self.base.multi_label

    @property
    def link(self) -> Literal["softmax", "sigmoid", "none"]:
        return self.base.link

    @property
    def is_exact(self) -> bool:
        return self.base.is_exact

    @property
    def counted_classes(self) -> int | None:
        return self.base.counted_classes

    def class_fault(self, classes: int, *, multi_label: bool) -> str | None:
        return self.base.class_fault(classes, multi_label=multi_label)

    @property
    def units_fault(self) -> str | None:
        return self.base.units_fault

    @property
    def engine_limits(self) -> str | None:
        return self.base.engine_limits

    def public_files(self) -> dict[str, str]:
        return {f"base.{name}": path for name, path in self.base.public_files().items()}

    def identity_options(self) -> dict[str, Any]:
        return {**super().identity_options(), "base": self.base.identity_options()}

    def fill_paths(self, *, dataset: str, backbone: str) -> Self:
        base = self.base.fill_paths(dataset=dataset, backbone=backbone)
        return self.model_copy(update={"base": base})

    def list_releases(self, n: int) -> tuple[Mechanism, ...]:
        """Returns one trial's releases; raises ConfigError if a searched option changes epsilon."""
        priced = self.base.list_releases(n)
        clipped_anew = set()
        for values in list_corners(self.search):
            trial = self.make_trial(values)
            try:
                released = trial.list_releases(n)
            except ConfigError as error:
                raise ConfigError(f"search: {spell_options(values)}: {error}") from None
            if _list_priced(released) != _list_priced(priced):
                raise ConfigError(
                    f"search: {spell_options(values)} changes epsilon, because it changes the "
                    "sampling of rows, the number of steps or the split of noise; search other "
                    "options"
                )
            if (trial.link, trial.multi_label) != (self.link, self.multi_label):
                raise ConfigError(
                    f"search: {spell_options(values)} changes how scores become probabilities, "
                    "or whether an image has several labels; search other options"
                )
            clipped_anew |= {
                item.name
                for item, base in zip(released, priced, strict=True)
                if item.sensitivity != base.sensitivity
            }
        worded = [
            replace(item, released=item.released + _CLIPPED_ANEW)
            if item.name in clipped_anew
            else item
            for item in priced
        ]
        scored = (
            "sum over the rows of 1 minus the mean squared error of a trial's probabilities"
            if self.multi_label
            else "number of rows that a trial's head predicts correctly"
        )
        score, share = full_batch(SCORE, scored, 1.0), self.score_share
        return split_budget([(share, (score,)), (1 - share, worded)])

    def priced_selection(self, n: int) -> Selection:
        names = tuple(mechanism.name for mechanism in self.list_releases(n))
        return Selection(mean=self.trials, repeated=names)


def _list_priced(mechanisms: tuple[Mechanism, ...]) -> list[tuple[Any, ...]]:
    """Returns the mechanisms' fields that epsilon depends on, up to a common noise factor."""
    return [
        (
            item.name,
            item.sample_rate,
            item.count,
            float(f"{item.noise_multiplier / mechanisms[0].noise_multiplier:.9g}"),
        )
        for item in mechanisms
    ]
