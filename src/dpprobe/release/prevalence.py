"""Adapts the probabilities of a released head to the class frequencies of another clinic.

The probabilities of a head with class priors assume equally frequent classes; with class weights
too, they assume frequencies in proportion to the weights. If the images of each class look as in
training, Bayes' rule gives the probabilities at other frequencies: multiply by the new frequencies,
divide by the assumed frequencies, and scale to sum 1. Unlabelled images give the new frequencies by
expectation maximisation (Saerens, Latinne and Decaestecker 2002, "Adjusting the outputs of a
classifier to new a priori probabilities", equations 2.4 and 2.5).

Both computations are post-processing of a released head, which spends no epsilon. An estimated
prevalence is a fact about the new images, which no guarantee covers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from dpprobe.errors import ConfigError, DataError
from dpprobe.release.bundle import Bundle, BundleFacts
from dpprobe.similar_names import suggest_names

Floats = npt.NDArray[np.floating]
# A user's request: frequencies of some or all classes, or "estimate".
Asked = Mapping[str, float] | Literal["estimate"]
_TOLERANCE, _MOST_STEPS = 1e-10, 100_000
_ROUNDING = 1e-6  # largest deviation from 1 of the sum of frequencies that a person writes


@dataclass(frozen=True, kw_only=True)
class Prevalence:
    """The class frequencies that probabilities assume, and to which they are adapted.

    Attributes:
      answered: float64 [classes], the frequencies that the head's probabilities assume.
      wanted: float64 [classes], the new frequencies; None until `estimate` finds them.
    """

    answered: npt.NDArray[np.float64]
    wanted: npt.NDArray[np.float64] | None

    @classmethod
    def of_bundle(cls, bundle: Bundle, asked: Asked) -> Prevalence:
        """Checks the frequencies that a user asks for; raises ConfigError if they cannot be used.

        Classes that `asked` omits share the remaining frequency in proportion to training priors.
        """
        facts = bundle.facts
        priors, answered = _read_priors(facts)
        if bundle.calibration is not None:
            raise ConfigError(
                f"prevalence: {facts.name} is calibrated to the class frequencies of its test "
                "images, which are not published; leave prevalence out, or use a release without "
                "`calibrate`"
            )
        if asked == "estimate":
            return cls(answered=answered, wanted=None)
        return cls(answered=answered, wanted=_complete_shares(asked, facts.class_names, priors))

    def estimate(self, probabilities: Floats) -> Prevalence:
        """Returns the frequencies with the highest likelihood, for probabilities [n, classes].

        Raises DataError if there are no rows.
        """
        if not len(probabilities):
            raise DataError("prevalence: no image can be used to estimate it; name other images")
        ratios = probabilities.astype(np.float64) / self.answered
        shares = self.answered
        for _ in range(_MOST_STEPS):
            before, shares = shares, _scale_rows(ratios * shares).mean(axis=0)
            if np.abs(shares - before).max() <= _TOLERANCE:
                break
        return Prevalence(answered=self.answered, wanted=shares)

    def adapt(self, probabilities: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Returns float32 [n, classes], the probabilities at the wanted frequencies."""
        assert self.wanted is not None, "estimate the prevalence first"
        adapted = probabilities.astype(np.float64) * (self.wanted / self.answered)
        return _scale_rows(adapted).astype(np.float32)

    def name_shares(self, classes: tuple[str, ...]) -> dict[str, float]:
        assert self.wanted is not None, "estimate the prevalence first"
        return dict(zip(classes, self.wanted.tolist(), strict=True))


def _scale_rows(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Scales rows to sum 1; replaces rows of zeros by rows of equal values."""
    sums = values.sum(axis=1, keepdims=True)
    return np.divide(values, sums, out=np.full_like(values, 1 / values.shape[1]), where=sums > 0)


def _read_priors(facts: BundleFacts) -> tuple[Floats, npt.NDArray[np.float64]]:
    """Returns the training priors, and the frequencies that the head's probabilities assume."""
    options = facts.head.read_options()
    priors = facts.head.class_priors or getattr(options, "public_priors", ())
    if not priors:
        raise ConfigError(
            f"prevalence: {facts.name} does not state the class frequencies that it was trained "
            "on, and its probabilities assume these frequencies; use a release of a method with "
            "`balanced: true` or `class_priors`"
        )
    answered = np.array(getattr(options, "class_weights", None) or np.ones(len(priors)))
    return np.array(priors), answered / answered.sum()


def _complete_shares(
    given: Mapping[str, float], names: tuple[str, ...], priors: Floats
) -> npt.NDArray[np.float64]:
    for name, value in given.items():
        if name not in names:
            raise ConfigError(
                f"prevalence of {name}: no class has this name; {suggest_names(name, names)}: the "
                f"classes are {', '.join(names[:20])}"
            )
        if not 0 < value < 1:
            raise ConfigError(
                f"prevalence of {name}: {value:g}; must be a frequency between 0 and 1, such as "
                "0.02"
            )
    total = math.fsum(given.values())
    if len(given) == len(names) and abs(total - 1) > _ROUNDING:
        raise ConfigError(
            f"prevalence: the frequencies of all classes add up to {total:g}; correct them to add "
            "up to 1, or leave one class out"
        )
    if len(given) < len(names) and total >= 1:
        raise ConfigError(
            f"prevalence: {total:g} leaves nothing for the other classes; lower the frequencies"
        )
    shares = np.array([given.get(name, 0.0) for name in names])
    free = np.array([name not in given for name in names])
    if free.any():
        shares[free] = (1 - total) * priors[free] / priors[free].sum()
    return shares / shares.sum()
