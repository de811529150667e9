"""Predicts the share of the non-private head's lead that a private head keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dpprobe.errors import ConfigError
from dpprobe.planner.learning_curves import Law, read_curves
from dpprobe.privacy.gaussian_mu import gaussian_mu
from dpprobe.privacy.limits import LARGEST_EPSILON, SMALLEST_DELTA, SMALLEST_EPSILON
from dpprobe.shown_text import join_lines

# The share of the lead at which the message about too few units calls n enough.
ENOUGH = 0.5
# Below this value of n mu / sqrt(d) a released mean is mostly noise, so `auto` gives it a larger
# share of the budget, and public images may help (`heads.auto_rule`).
_FEW_UNITS = 15.0


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The public facts of a classifier to be trained.

    Attributes:
      n: training units of privacy: images, or patients.
      dimension: feature dimension; if None, the most favourable measured dimension is assumed.

    Example:
      >>> Setting(n=100, classes=5, epsilon=0.001).check_ranges()
      Traceback (most recent call last):
          ...
      dpprobe.errors.ConfigError: epsilon 0.001: outside 0.01 to 100, the range that can be
      calibrated; use a number in this range
    """

    n: int
    classes: int
    epsilon: float
    delta: float = 1e-5
    dimension: int | None = None

    def check_ranges(self) -> None:
        """Raises ConfigError with one line for each value that is out of range."""
        faults = []
        if self.classes < 2:
            faults.append(f"classes {self.classes}: one class needs no classifier; use 2 or more")
        if self.n < max(self.classes, 1):
            faults.append(
                f"n {self.n}: fewer than the {self.classes} classes; use at least one per class"
            )
        if self.dimension is not None and self.dimension < 1:
            faults.append(f"d {self.dimension}: no features; use 1 or more")
        if not SMALLEST_EPSILON <= self.epsilon <= LARGEST_EPSILON:
            faults.append(
                f"epsilon {self.epsilon:g}: outside {SMALLEST_EPSILON:g} to {LARGEST_EPSILON:g}, "
                "the range that can be calibrated; use a number in this range"
            )
        if not SMALLEST_DELTA <= self.delta < 1:
            faults.append(
                f"delta {self.delta:g}: outside {SMALLEST_DELTA:g} to 1; choose a delta below 1 / n"
            )
        if faults:
            raise ConfigError(join_lines(faults))

    def with_n(self, n: int) -> Setting:
        return replace(self, n=n)

    def with_epsilon(self, epsilon: float) -> Setting:
        return replace(self, epsilon=epsilon)


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The predicted share of the non-private lead that a private head keeps.

    Attributes:
      beyond: -1 or 1 if the signal is below or above all measured signals, 0 otherwise. Outside,
        shares are taken from the nearest measured signal.
    """

    low: float
    expected: float
    high: float
    beyond: int

    def predict_accuracy(self, *, chance: float, ceiling: float) -> tuple[float, float, float]:
        """Returns low, expected and high accuracy, if the non-private accuracy is `ceiling`."""
        low, expected, high = (
            min(max(chance + share * (ceiling - chance), 0.0), 1.0)
            for share in (self.low, self.expected, self.high)
        )
        return low, expected, high


@dataclass(frozen=True, kw_only=True)
class Start:
    """A measured share of the non-private lead, to which predictions are adjusted.

    Attributes:
      setting: the measured setting.
      share: the measured share, within the range predicted for the setting.
      place: the share's position in the range: -1 at the low end, 0 as expected, 1 at the high end.
    """

    setting: Setting
    share: float
    place: float

    @classmethod
    def of_measured(cls, setting: Setting, share: float) -> Start | None:
        """Makes a start; returns None if the measured share is outside the predicted range."""
        kept = predict(setting)
        if not kept.low <= share <= kept.high:
            return None
        width = (kept.high if share > kept.expected else kept.low) - kept.expected
        place = abs((share - kept.expected) / width) if width else 0.0
        return cls(setting=setting, share=share, place=math.copysign(place, share - kept.expected))

    def shift(self, low: float, expected: float, high: float) -> float:
        """Returns the share at the measured share's relative position in another range."""
        return expected + self.place * (high - expected if self.place > 0 else expected - low)


def predict(setting: Setting, *, noise: float = 1.0, start: Start | None = None) -> Kept:
    """Predicts the share of the non-private lead that a private head keeps.

    Args:
      noise: a factor on the standard deviation of the head's noise.
      start: a measured head on this dataset, whose relative position in the range the prediction
        keeps. With more units or a larger budget, the range begins at the measured share.

    Example:
      >>> kept = predict(Setting(n=2000, classes=5, epsilon=1.0, dimension=384))
      >>> round(kept.low, 2), round(kept.expected, 2), round(kept.high, 2)
      (0.67, 0.85, 0.99)
      >>> [round(part, 2) for part in kept.predict_accuracy(chance=0.2, ceiling=0.9)]
      [0.67, 0.8, 0.89]
    """
    law = read_curves().law
    signal = _find_signal(setting, law) - law.mu * math.log(noise)
    low, expected, high = law.shares_at(signal)
    if start is not None:
        expected = min(max(low, start.shift(low, expected, high)), high)
        if signal >= _find_signal(start.setting, law):
            low = min(max(low, start.share), expected)
    beyond = int(signal > law.signals[-1]) - int(signal < law.signals[0])
    return Kept(low=low, expected=expected, high=high, beyond=beyond)


def too_few(setting: Setting, *, floor: float = 0.0) -> bool:
    """Returns True if the expected accuracy is too close to the majority-class baseline.

    At the lowest measured signal, luck alone may lift a head to the high end of the range. The
    expected accuracy must exceed the baseline by more than this.

    Args:
      floor: the majority-class baseline's lead over chance, as a share of the non-private lead.
    """
    return predict(setting).expected <= floor + read_curves().law.high[0]


def public_images_help(setting: Setting) -> bool:
    """Returns True if the noise is so large that unlabelled public images may help.

    If the dimension is unknown, the most favourable dimension is assumed.
    """
    mu = gaussian_mu(setting.epsilon, setting.delta)
    return setting.n * mu / math.sqrt(_find_dimension(setting, read_curves().law)) < _FEW_UNITS


def n_to_keep(setting: Setting, share: float, *, start: Start | None = None) -> int | None:
    """Returns the least n to keep more than `share`; None if beyond all measured signals.

    Example:
      >>> n_to_keep(Setting(n=500, classes=5, epsilon=1.0, dimension=384), 0.9)
      3302
    """
    law = read_curves().law
    expected = law.expected
    if start is not None:
        expected = tuple(map(start.shift, law.low, law.expected, law.high))
    return _n_at(setting, law, law.signal_of(expected, share))


def n_that_would_do(setting: Setting, *, floor: float = 0.0) -> int | None:
    """Returns the n at which a head is halfway from majority-class to non-private baseline."""
    return n_to_keep(setting, floor + ENOUGH * (1 - floor))


def _find_signal(setting: Setting, law: Law) -> float:
    return math.log(setting.n) + _without_n(setting, law)


def _without_n(setting: Setting, law: Law) -> float:
    return (
        law.mu * math.log(gaussian_mu(setting.epsilon, setting.delta))
        - law.dimension * math.log(_find_dimension(setting, law))
        - law.classes * math.log(setting.classes)
    )


def _find_dimension(setting: Setting, law: Law) -> int:
    return law.smallest if setting.dimension is None else setting.dimension


def _n_at(setting: Setting, law: Law, signal: float | None) -> int | None:
    if signal is None:
        return None
    return max(math.ceil(math.exp(signal - _without_n(setting, law))), setting.classes)
