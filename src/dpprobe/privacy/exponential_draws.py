"""Draws among candidates with probabilities in proportion to exp(score / temperature), exactly.

A float64 exp, a sum of such numbers and a uniform float64 each have an error that depends on the
scores, and what is drawn with them does not have the law that was priced: a candidate may be out of
reach on one side of a neighbouring pair alone. Here scores are integers, the temperature a rational
number, and every comparison of a random number with a probability takes as many bits as needed:

1. A proposal: candidate r with probability in proportion to a whole number g(r), at least
   2^40 exp(-x) with x the distance of its score from the best one's over the temperature. That is
   exact, by uniform integers.
2. It is accepted with probability 2^40 exp(-x) / g(r): a uniform number's bits are drawn until they
   fall on one side of this real number, which is enclosed by rational numbers as closely as it
   takes. Else another candidate is proposed.

Accepted proposals have probabilities in proportion to exp(-x): rejection sampling. g is from a
float64 exp, whose error, far below 1e-9, is covered by a factor; it decides how often a proposal is
rejected, which nearly never happens, and nothing else.
"""

from __future__ import annotations

import math
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpprobe.errors import PrivacyError
from dpprobe.privacy.keystream import Keystream

Scores = npt.NDArray[np.int64]
Places = npt.NDArray[np.int64]

# Envelopes are whole numbers of 2^-40; so many of them sum up to less than 2^63.
_BITS = 40
MOST_CANDIDATES = 2**21
# Scores are distances of integers that float64 holds.
LARGEST_SCORE = 2**53
_WORD, _SLACK = 64, 1 + 2.0**-30
# exp(-45) is below 2^-64: of numbers so far away no digits are needed.
_EXPONENT_OF_WORD, _DIGITS_OF_WORD = 45, 22


class _Bounds(NamedTuple):
    low: Fraction
    high: Fraction


class Chooser:
    """Selects candidates at random, with the random words of one use of a seed."""

    def __init__(self, keystream: Keystream) -> None:
        self._keystream = keystream

    def choose_candidates(self, scores: Scores, count: int, rate: Fraction) -> Places:
        """Selects `count` different candidates, one after the other; returns their positions.

        Args:
          scores: [candidates].
          rate: the inverse of the temperature; positive.

        Raises:
          PrivacyError: for too few or too many candidates, and for scores above 2^53.
        """
        _check_scores(scores, count)
        left, chosen = np.arange(len(scores)), []
        for _ in range(count):
            place = self._draw_candidate(scores[left], rate)
            chosen.append(left[place])
            left = np.delete(left, place)
        return np.asarray(chosen, dtype=np.int64)

    def _draw_candidate(self, scores: Scores, rate: Fraction) -> int:
        gaps = scores.max() - scores
        shares = np.exp(-float(rate) * gaps.astype(np.float64)) * (2.0**_BITS * _SLACK)
        envelopes = shares.astype(np.int64) + 1
        ends = np.cumsum(envelopes)
        while True:
            place = int(np.searchsorted(ends, self._draw_below(int(ends[-1])), side="right"))
            if self._accepts_candidate(
                rate * int(gaps[place]), Fraction(2**_BITS, int(envelopes[place]))
            ):
                return place

    def _draw_below(self, end: int) -> int:
        """Draws a whole number from 0 to end - 1, each as likely as the others; end <= 2^64."""
        last = 2**_WORD - 2**_WORD % end
        while True:
            word = self._draw_word()
            if word < last:
                return word % end

    def _accepts_candidate(self, exponent: Fraction, factor: Fraction) -> bool:
        """Returns True with probability factor exp(-exponent), exactly."""
        number, words = 0, 0
        while True:
            number, words = (number << _WORD) + self._draw_word(), words + 1
            bounds = _exp_bounds(exponent, words)
            if Fraction(number + 1, 2 ** (_WORD * words)) <= factor * bounds.low:
                return True
            if Fraction(number, 2 ** (_WORD * words)) >= factor * bounds.high:
                return False

    def _draw_word(self) -> int:
        return int(self._keystream.draw_words(1)[0])


def choose_largest(scores: Scores, count: int) -> Places:
    """Returns the candidates with the largest scores, without noise; the first of equal scores."""
    _check_scores(scores, count)
    return np.argsort(-scores, kind="stable")[:count]


def _check_scores(scores: Scores, count: int) -> None:
    if not 0 < count <= len(scores) <= MOST_CANDIDATES:
        raise PrivacyError(
            f"{count} selections from {len(scores)} candidates: there must be at least as many "
            f"candidates as selections, and at most {MOST_CANDIDATES}"
        )
    if int(np.abs(scores).max()) > LARGEST_SCORE:
        raise PrivacyError(f"scores up to {int(np.abs(scores).max())}: they must not exceed 2^53")


def _exp_bounds(exponent: Fraction, words: int) -> _Bounds:
    """Encloses exp(-exponent), closer with each word: far closer than its 64 bits.

    Python's decimal exp is rounded correctly, so it is off by less than a unit of its last digit.
    """
    if exponent == 0:
        return _Bounds(Fraction(1), Fraction(1))
    if exponent > _EXPONENT_OF_WORD * words:
        return _Bounds(Fraction(0), Fraction(1, 2 ** (_WORD * words)))
    digits = _DIGITS_OF_WORD * words + 18
    unit = Fraction(1, 10 ** (digits - 1))
    ends = []
    for rounding, error in ((ROUND_FLOOR, 1 - unit), (ROUND_CEILING, 1 + unit)):
        context = Context(prec=digits, rounding=rounding, Emin=MIN_EMIN, Emax=MAX_EMAX)
        power = context.divide(Decimal(-exponent.numerator), Decimal(exponent.denominator))
        ends.append(Fraction(context.exp(power)) * error)
    return _Bounds(*ends)


def rate_of(*, step: float, noise_multiplier: float, sensitivity: float) -> Fraction:
    """Returns the inverse temperature of scores in whole steps, exactly equal to these floats."""
    temperature = Fraction(noise_multiplier) * Fraction(sensitivity)
    if not (temperature > 0 and math.isfinite(step)):
        raise PrivacyError(f"temperature {float(temperature):g}: it must be positive")
    return Fraction(step) / temperature
