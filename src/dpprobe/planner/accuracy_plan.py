"""Predicts the accuracy of a private head, and the gain from more images or a larger budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dpprobe.errors import ConfigError
from dpprobe.planner.learning_curves import read_curves
from dpprobe.planner.predicted_accuracy import (
    Kept,
    Setting,
    n_that_would_do,
    n_to_keep,
    predict,
    too_few,
)
from dpprobe.privacy.limits import LARGEST_EPSILON, delta_above, delta_warning
from dpprobe.privacy.risk import Risk, RiskEpsilon

UNITS = (2, 4, 10)
BUDGETS = (2, 4)
LOSSES = (5, 2)  # percentage points


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One row of a plan: n units of privacy, an epsilon, and the predicted share of the lead."""

    label: str
    n: int
    epsilon: float
    kept: Kept


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Converts accuracies to shares of the non-private head's lead over chance, and back.

    Attributes:
      chance: the accuracy of random guessing, 1 / classes.
      majority: accuracy of the majority-class baseline.
      ceilings: non-private accuracies: the user's if `given`, otherwise from public datasets.
    """

    chance: float
    majority: float
    ceilings: tuple[float, ...]
    given: bool

    @property
    def middle(self) -> float:
        return self.ceilings[len(self.ceilings) // 2]

    @property
    def floor(self) -> float:
        """The majority-class baseline's lead over chance, as a share of the non-private lead."""
        return self.share_of(self.majority)

    def share_of(self, accuracy: float) -> float:
        """Returns an accuracy's lead over chance, relative to the median non-private lead."""
        return (accuracy - self.chance) / (self.middle - self.chance)

    def accuracy_of(self, share: float) -> float:
        return self.chance + share * (self.middle - self.chance)


@dataclass(frozen=True, kw_only=True)
class PlanForPeople:
    """The predictions for a setting and for variations of it.

    Attributes:
      choices: the setting itself, settings with more units, and settings with a larger epsilon.
      n_within: maps a loss (in percentage points below the median non-private accuracy) to the
        smallest n with at most this loss; to None if unknown.
      too_few: True if the expected accuracy barely exceeds the majority-class baseline.
      would_do: the result of `n_that_would_do`.
      unit: the unit of privacy that n counts.
    """

    setting: Setting
    scale: Scale
    choices: tuple[Choice, ...]
    n_within: Mapping[int, int | None]
    too_few: bool
    would_do: int | None
    warnings: tuple[str, ...]
    unit: str = "image"

    @property
    def now(self) -> Choice:
        return self.choices[0]

    def as_json(self) -> dict[str, Any]:
        """Returns JSON-compatible values, with accuracies as fractions."""
        law, epsilon = read_curves().law, self.setting.epsilon
        risk = Risk.from_token(epsilon.token) if isinstance(epsilon, RiskEpsilon) else None
        choices = []
        for choice in self.choices:
            accuracies = []
            for ceiling in self.scale.ceilings:
                low, expected, high = choice.kept.predict_accuracy(
                    chance=self.scale.chance, ceiling=ceiling
                )
                accuracies.append(
                    {"ceiling": ceiling, "low": low, "expected": expected, "high": high}
                )
            choices.append({**asdict(choice), "accuracy": accuracies})
        return {
            "setting": asdict(self.setting),
            **({"risk_target": risk.to_dict()} if risk else {}),
            "unit": self.unit,
            "chance": self.scale.chance,
            "majority": self.scale.majority,
            "ceilings": list(self.scale.ceilings),
            "ceiling_given": self.scale.given,
            "choices": choices,
            "n_within_points": {str(points): n for points, n in self.n_within.items()},
            "too_few": self.too_few,
            "n_that_would_do": self.would_do,
            "sources": list(read_curves().sources),
            "coverage": dict(law.coverage),
            "warnings": list(self.warnings),
        }


def make_plan(
    setting: Setting,
    *,
    ceiling: float | None = None,
    majority: float | None = None,
    unit: str = "image",
) -> PlanForPeople:
    """Predicts accuracies for a setting, for more units, and for larger epsilons.

    Args:
      ceiling: the non-private accuracy on these images, known or guessed, as a fraction.
      majority: the share of the largest class, by default 1 / classes; if the unit is a patient,
        the mean over patients of the class's share of the patient's images.
      unit: the unit of privacy that n counts: "image" or "patient".

    Raises:
      ConfigError: with one line for each value that is out of range.
    """
    setting.check_ranges()
    scale = _make_scale(setting, ceiling, majority)
    wished = [("this", setting)]
    wished += [(f"{times}x {unit}s", setting.with_n(times * setting.n)) for times in UNITS]
    wished += [
        (f"{times}x budget", setting.with_epsilon(times * setting.epsilon))
        for times in BUDGETS
        if times * setting.epsilon <= LARGEST_EPSILON
    ]
    lead = 100 * (scale.middle - scale.chance)
    return PlanForPeople(
        setting=setting,
        scale=scale,
        choices=tuple(
            Choice(label=label, n=item.n, epsilon=item.epsilon, kept=predict(item))
            for label, item in wished
        ),
        n_within={points: n_to_keep(setting, 1 - points / lead) for points in LOSSES},
        too_few=too_few(setting, floor=scale.floor),
        would_do=n_that_would_do(setting, floor=scale.floor),
        warnings=_list_warnings(setting),
        unit=unit,
    )


def _make_scale(setting: Setting, ceiling: float | None, majority: float | None) -> Scale:
    """Makes a scale after checking the given values; missing values get defaults."""
    chance = 1 / setting.classes
    if majority is None:
        majority = chance
    elif not chance - 1e-9 <= majority < 1:
        raise ConfigError(
            f"majority {majority:g}: the share of the largest of {setting.classes} classes must "
            f"be at least {chance:.3g} and below 1; give it as a fraction"
        )
    if ceiling is not None and not majority < ceiling <= 1:
        raise ConfigError(
            f"ceiling {ceiling:g}: outside {majority:.3g} (majority-class baseline) to 1; give "
            "the non-private accuracy as a fraction, such as 0.82"
        )
    return make_scale(setting.classes, ceiling=ceiling, majority=majority)


def make_scale(classes: int, *, ceiling: float | None, majority: float) -> Scale:
    """Makes a scale from `ceiling`, or from public datasets if `ceiling` is at most `majority`."""
    given = ceiling is not None and ceiling > majority
    public = tuple(value for value in read_curves().choose_ceilings(classes) if value > majority)
    return Scale(
        chance=1 / classes,
        majority=majority,
        ceilings=(float(ceiling),) if ceiling is not None and given else public or (1.0,),
        given=given,
    )


def _list_warnings(setting: Setting) -> tuple[str, ...]:
    warning = delta_warning(setting.delta, setting.n)
    if delta_above(setting.delta, setting.n):
        return (f"{warning} Choose a smaller --delta.",)
    return (warning,) if warning else ()
