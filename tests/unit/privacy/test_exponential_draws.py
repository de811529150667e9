"""Draws of the exponential mechanism: their law on small cases, and every bit of a decision."""

from __future__ import annotations

import itertools
from fractions import Fraction

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
from scipy import stats

from dpprobe.errors import PrivacyError
from dpprobe.privacy import exponential_draws
from dpprobe.privacy.exponential_draws import Chooser, choose_largest, rate_of
from dpprobe.privacy.keystream import Keystream


class Words:
    """A keystream that gives out these words."""

    def __init__(self, *words: int) -> None:
        self.left = list(words)

    def draw_words(self, count: int) -> np.ndarray:
        taken, self.left = self.left[:count], self.left[count:]
        return np.array(taken, dtype=np.uint64)


def chooser(*words: int) -> Chooser:
    return Chooser(Words(*words))  # type: ignore[arg-type]


@pytest.mark.parametrize("rate", [Fraction(1, 3), Fraction(7, 2), Fraction(0.123456789)])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_draws_have_the_law_of_the_exponential_mechanism(rate: Fraction, count: int) -> None:
    """Sequences without repetition: each draw among what is left."""
    scores = np.array([4, 0, 3, 3, -2])
    draw = Chooser(Keystream.from_seed(3, "draws"))
    sequences = list(itertools.permutations(range(5), count))
    law = []
    for sequence in sequences:
        left, chance = list(range(5)), 1.0
        for place in sequence:
            weights = np.exp(float(rate) * (scores[left] - scores.max()))
            chance *= weights[left.index(place)] / weights.sum()
            left.remove(place)
        law.append(chance)
    runs = 6000
    drawn = [tuple(draw.choose_candidates(scores, count, rate).tolist()) for _ in range(runs)]
    observed = np.array([drawn.count(sequence) for sequence in sequences])
    expected = runs * np.asarray(law)
    rare = expected < 8
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    kept = expected > 0
    assert observed[~kept].sum() == 0
    assert stats.chisquare(observed[kept], expected[kept]).pvalue > 1e-4


def test_a_proposal_and_its_acceptance_multiply_to_the_exact_weight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever float64 makes of exp, g(r) times the chance of acceptance is exp(-x), to 100 digits.

    Every candidate is proposed once, by the number that stands for it; its factor is caught.
    """
    scores, rate = np.array([90, 60, 0, 89, 90]), Fraction(37, 100)
    weights = {}
    ends = []

    def below(_: Chooser, end: int) -> int:
        ends.append(end)
        return place_of[len(ends) - 1]

    def accepts(_: Chooser, exponent: Fraction, factor: Fraction) -> bool:
        low, high = exponential_draws._exp_bounds(exponent, 4)
        weights[len(ends) - 1] = (exponent, factor, low, high)
        return True

    monkeypatch.setattr(Chooser, "_draw_below", below)
    monkeypatch.setattr(Chooser, "_accepts_candidate", accepts)
    gaps = scores.max() - scores
    envelopes = (np.exp(-0.37 * gaps) * 2.0**40 * (1 + 2.0**-30)).astype(np.int64) + 1
    place_of = (np.cumsum(envelopes) - 1).tolist()
    for place in range(5):
        assert Chooser(None)._draw_candidate(scores, rate) == place  # type: ignore[arg-type]
        exponent, factor, low, high = weights[place]
        assert exponent == rate * int(gaps[place])
        with mpmath.workdps(150):
            exact = mpmath.exp(-mpmath.mpf(exponent.numerator) / exponent.denominator)
            assert mpmath.mpf(low.numerator) / low.denominator <= exact
            assert exact <= mpmath.mpf(high.numerator) / high.denominator
        share = Fraction(int(envelopes[place])) * factor
        assert share == 2**40, "a proposal's share times its factor is the same for all"
        assert factor * high <= 1, "no chance is above 1"
    assert ends == [int(envelopes.sum())] * 5


def test_uniform_integers_are_exact_by_rejection() -> None:
    end = 3 * 2**62
    assert chooser(2**64 - 1, 5)._draw_below(end) == 5, (
        "a word of the incomplete last round is redrawn"
    )
    assert chooser(end)._draw_below(2**64) == end
    small = chooser(2**64 - 1, 7)
    assert small._draw_below(10) == 7, "2^64 is no multiple of 10"
    assert chooser(23)._draw_below(10) == 3


def test_a_decision_takes_as_many_bits_as_it_needs() -> None:
    """A number whose first word is that of exp(-1) itself is told apart by the next."""
    with mpmath.workdps(60):
        word = int(mpmath.floor(mpmath.exp(-1) * 2**64))
        second = int(mpmath.floor(mpmath.exp(-1) * 2**128)) - word * 2**64
    one = Fraction(1)
    assert chooser(word - 1)._accepts_candidate(one, one)
    assert not chooser(word + 1)._accepts_candidate(one, one)
    assert chooser(word, second - 1)._accepts_candidate(one, one)
    assert not chooser(word, second + 1)._accepts_candidate(one, one)
    assert chooser(2**64 - 1)._accepts_candidate(Fraction(0), one), "a chance of 1"


def test_far_candidates_are_decided_without_their_digits() -> None:
    far = Fraction(10**9)
    assert not chooser(1)._accepts_candidate(far, Fraction(1))
    low, high = exponential_draws._exp_bounds(far, 3)
    assert (low, high) == (Fraction(0), Fraction(1, 2**192))
    draw = Chooser(Keystream.from_seed(1, "draws"))
    scores = np.array([0, 2**50, 2**50 - 2**49])
    assert draw.choose_candidates(scores, 1, Fraction(1, 2)).tolist() == [1]
    assert draw.choose_candidates(scores, 3, Fraction(1, 2)).tolist() == [1, 2, 0]


def test_equal_scores_are_equally_likely_and_without_noise_the_first() -> None:
    scores = np.zeros(7, dtype=np.int64)
    draw = Chooser(Keystream.from_seed(2, "draws"))
    drawn = [int(draw.choose_candidates(scores, 1, Fraction(5))[0]) for _ in range(3500)]
    assert stats.chisquare(np.bincount(drawn, minlength=7)).pvalue > 1e-4
    assert choose_largest(scores, 3).tolist() == [0, 1, 2]
    assert choose_largest(np.array([1, 5, 5, 2]), 3).tolist() == [1, 2, 3]


def test_what_cannot_be_drawn_is_refused() -> None:
    draw = Chooser(Keystream.from_seed(2, "draws"))
    scores = np.zeros(3, dtype=np.int64)
    for count in (0, 4):
        with pytest.raises(PrivacyError, match=f"{count} selections from 3 candidates"):
            draw.choose_candidates(scores, count, Fraction(1))
    with pytest.raises(PrivacyError, match="2\\^53"):
        draw.choose_candidates(np.array([0, 2**53 + 1]), 1, Fraction(1))
    with pytest.raises(PrivacyError, match="temperature 0"):
        rate_of(step=1.0, noise_multiplier=0.0, sensitivity=1.0)
    assert rate_of(step=2.0**-16, noise_multiplier=0.3, sensitivity=2.0) == Fraction(1, 2**16) / (
        Fraction(0.3) * 2
    )
