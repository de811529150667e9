"""Poisson sampling: every row joins every batch independently, with the same probability.

If units of privacy have several rows, units are sampled instead of rows.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dpprobe.errors import PrivacyError
from dpprobe.privacy.keystream import Keystream, Words
from dpprobe.privacy.machine_code import MachineCode

MACHINE_CODE = MachineCode(__file__)
jit = MACHINE_CODE.jit

RowIndices = npt.NDArray[np.int64]

_DRAWS = 1 << 20
# For rates from _SEARCHED on, NumPy draws geometric variables by another method.
_SEARCHED = 1 / 3
# Distances are cut to _FARTHEST, beyond all rows of all steps, so that sums cannot overflow.
_FARTHEST = 2.0**53
# The number of words drawn at a time, more than the digits of any float64.
WORDS_AT_ONCE = 1 << 13
_AT_ONCE = 64
# Digits to compare before checking whether rows are undecided, a branch that processors mispredict.
_TOGETHER = 12
_NONE, _FIRST, _ALL = np.uint64(0), np.uint64(1), np.uint64(2**64 - 1)


def _check_rate(rows: int, rate: float) -> None:
    if rows < 1 or not 0 < rate <= 1:
        raise PrivacyError(f"sampler: {rows} rows at rate {rate!r}; pass rows, and a rate up to 1")


class Sampler(Protocol):
    """A Poisson sampler, with any source of random bits."""

    def draw_block(self, steps: int) -> tuple[RowIndices, npt.NDArray[np.int64]]:
        """Draws the batches of the next `steps` steps.

        Returns:
          The rows of all batches in order, ascending in each batch; and each batch's size, maybe 0.
        """
        ...


class PoissonSampler:
    """Draws Bernoulli(rate) independently for each (step, row), in time proportional to the hits.

    The rows of all steps are numbered consecutively. The distances between drawn rows (hits) are
    independent geometric variables, so one geometric stream gives exactly the hits, across steps.
    The rows of a step do not depend on how steps are grouped into blocks.

    Example:
      >>> sampler = PoissonSampler(1000, 0.1, np.random.default_rng(0))
      >>> rows, sizes = sampler.draw_block(100)
      >>> bool(sizes.min() < 100 < sizes.max())  # a batch's size is binomial, not fixed
      True
      >>> PoissonSampler(1000, 0.0, np.random.default_rng(0))
      Traceback (most recent call last):
          ...
      dpprobe.errors.PrivacyError: sampler: 1000 rows at rate 0.0; pass rows, and a rate up to
      1
    """

    def __init__(self, rows: int, rate: float, generator: np.random.Generator) -> None:
        _check_rate(rows, rate)
        self.rows = rows
        self.rate = rate
        self._generator = generator
        self._hits = np.zeros(0, dtype=np.int64)  # later hits, counted from the next step
        self._last = -1

    def draw_block(self, steps: int) -> tuple[RowIndices, npt.NDArray[np.int64]]:
        length = steps * self.rows
        ahead = [self._hits]
        while self._last < length:
            expected = (length - self._last) * self.rate
            draws = min(_DRAWS, int(expected + 4 * expected**0.5) + 16)
            hits = self._draw_distances(draws).cumsum()
            hits += self._last
            ahead.append(hits)
            self._last = int(hits[-1])
        hits = np.concatenate(ahead)
        self._last -= length
        rows, sizes = np.empty_like(hits), np.zeros(steps, dtype=np.int64)
        taken = split_hits(hits, self.rows, rows, sizes)
        self._hits = hits[taken:] - length
        return rows[:taken], sizes

    def _draw_distances(self, draws: int) -> npt.NDArray[np.int64]:
        """Draws geometric variables, with values from 1.

        An exponential variable E of mean 1, divided by -log(1 - rate), exceeds k with probability
        (1 - rate)^k: rounded up it is geometric. Below a rate of 1/3 NumPy uses an equivalent
        formula, which takes three times as long.
        """
        if self.rate >= _SEARCHED:
            return self._generator.geometric(self.rate, size=draws)
        distances = self._generator.standard_exponential(size=draws)
        distances /= -math.log1p(-self.rate)
        np.ceil(distances, out=distances)
        # E is 0 once in 2^53 draws: with a distance of 0, a row would join a batch twice.
        return np.clip(distances, 1, _FARTHEST, out=distances).astype(np.int64)

    def copy_state(self) -> dict[str, Any]:
        """Returns a copy of the sampler's state, JSON-compatible."""
        return {
            "generator": _plain_state(self._generator.bit_generator.state),
            "hits": self._hits.tolist(),
            "last": self._last,
        }

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Continues from `state`, copied from another sampler of equal rows, rate and generator."""
        self._generator.bit_generator.state = state["generator"]
        self._hits = np.asarray(state["hits"], dtype=np.int64)
        self._last = int(state["last"])


def _plain_state(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain_state(part) for name, part in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


class ExactPoissonSampler:
    """Draws Bernoulli(rate) independently for each (step, row), with exactly this probability.

    A row joins a batch if a uniform real U is below the rate. Random words give U's binary digits
    one by one. A rate is a float64, so it has finitely many digits. The first digit in which U and
    the rate differ decides; if no digit differs, U is not below the rate. Each word has the next
    digit of 64 rows. On average seven words decide 64 rows, about one byte per row. Batches do not
    depend on how steps are grouped into blocks.

    Example:
      >>> sampler = ExactPoissonSampler(6, 0.5, Keystream.from_seed(1, "sampling of gradients"))
      >>> rows, sizes = sampler.draw_block(3)
      >>> rows.tolist(), sizes.tolist()
      ([1, 3, 4, 5, 1, 2, 4], [4, 2, 1])
    """

    def __init__(self, rows: int, rate: float, keystream: Keystream) -> None:
        _check_rate(rows, rate)
        self.rows = rows
        self.rate = rate
        self._keystream = keystream
        self._digits = _binary_digits(rate)
        self._words: Words = np.zeros(WORDS_AT_ONCE + len(self._digits), dtype=np.uint64)
        self._place = len(self._words)
        self._buffer = np.empty(1 << 12, dtype=np.int64)

    def draw_block(self, steps: int) -> tuple[RowIndices, npt.NDArray[np.int64]]:
        batches = [self._draw_batch() for _ in range(steps)]
        sizes = np.array([len(batch) for batch in batches], dtype=np.int64)
        return np.concatenate([np.zeros(0, dtype=np.int64), *batches]), sizes

    def _draw_batch(self) -> RowIndices:
        if self.rate == 1:
            return np.arange(self.rows)
        parts, row = [], 0
        while row < self.rows:
            if len(self._words) - self._place < len(self._digits):
                left = len(self._words) - self._place
                self._words[:left] = self._words[self._place :]
                self._keystream.fill_words(self._words[left:])
                self._place = 0
            row, self._place, count = draw_batch(
                self._words, self._place, self._digits, row, self.rows, self._buffer
            )
            parts.append(self._buffer[:count].copy())
        return np.concatenate(parts)


def _binary_digits(rate: float) -> Words:
    """Returns a rate's binary digits after the point, each repeated 64 times; none for rate 1."""
    numerator, denominator = Fraction(rate).as_integer_ratio()
    places = denominator.bit_length() - 1
    digits = [-(numerator >> place & 1) for place in reversed(range(places))]
    return np.array(digits, dtype=np.int64).view(np.uint64)


@jit("i8(i8[::1], i8, i8[::1], i8[::1])")
def split_hits(hits, rows, out, sizes):
    """Writes each hit's row to `out`, and hits per step to `sizes`; returns the number of hits.

    `hits` ascend, counted from the first row; those beyond the last step are ignored. `sizes` are
    zeros.
    """
    place, first = 0, 0
    for step in range(sizes.shape[0]):
        while place < hits.shape[0] and hits[place] - first < rows:
            out[place] = hits[place] - first
            sizes[step] += 1
            place += 1
        first += rows
    return place


@jit("Tuple((i8, i8, i8))(u8[::1], i8, u8[::1], i8, i8, i8[::1])")
def draw_batch(words, place, digits, row, rows, out):
    """Draws rows from `row` on, 64 at a time, until the words from `place` on or `out` run out.

    Returns:
      The next row, the position of the next word, and how many rows join.
    """
    count = 0
    while (
        row < rows
        and place + digits.shape[0] <= words.shape[0]
        and count + _AT_ONCE <= out.shape[0]
    ):
        undecided, joined = _ALL, _NONE
        if rows - row < _AT_ONCE:
            undecided = (_FIRST << np.uint64(rows - row)) - _FIRST
        used = 0
        for first in range(0, digits.shape[0], _TOGETHER):
            for at in range(first, min(first + _TOGETHER, digits.shape[0])):
                used += undecided != _NONE
                decided = undecided & (words[place + at] ^ digits[at])
                joined |= decided & digits[at]
                undecided ^= decided
            if undecided == _NONE:
                break
        place += used
        while joined != _NONE:
            lowest = joined & (_NONE - joined)
            # the exponent of a power of two in float64
            out[count] = row + (np.float64(lowest).view(np.int64) >> 52) - 1023
            count += 1
            joined ^= lowest
        row += _AT_ONCE
    return min(row, rows), place, count


MACHINE_CODE.keep()
