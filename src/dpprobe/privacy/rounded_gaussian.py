"""Draws rounded Gaussians: integers with exactly the right probabilities, for sums on a grid.

**What is released.** The sum S has L2 sensitivity C, and its entries are whole multiples of a
public grid g. The release is S + g K, with independent K = round(s Z) for a real standard normal Z.
Before rounding, the noise has standard deviation s = sigma C / g in units of the grid. s may be any
positive float64, and is rounded up when computed, because less noise than was priced would cost
more. S / g is an integer, so S / g + round(s Z) = round(S / g + s Z). The released value is the
real-valued Gaussian mechanism, rounded to the grid: post-processing. Every accountant's epsilon of
the real-valued mechanism holds unchanged, and the bits of the released value reveal nothing more.
Addition in int64 (modulo 2^64) or in float64 (exact below 2^53, correctly rounded above) are
functions of S / g + K as well.

**Why the probabilities are exact.** Let f(x) = A exp(-x^2 / 2) for an integer A near 2^57.7.
Intervals (*strips*) of width 1/64 divide [0, 8). Strip j, from x_j to x_(j+1), has integers floor_j
<= f(x_(j+1)) and ceiling_j >= f(x_j), found by interval arithmetic on integers. The area under the
ceilings has integer pieces, in units of one strip's width times 1:

- floor_j, a multiple of 2^50: x uniform in the strip, accepted without evaluating f;
- ceiling_j - floor_j, the rest of the strip: x uniform in the strip, y uniform between floor and
  ceiling, accepted where y < f(x);
- the tail: beyond 8, strips of width 1 under 2^-k E with E >= f(8), in strip k with probability
  2^-(k + 1), accepted where y < f(x). f(8 + k) <= 2^-12k f(8), so E 2^-k is above f;
- nothing: the rest up to 2^64, less than 2^10 by the choice of A.

So a piece is chosen with its exact probability by 64 uniform bits. After the piece "nothing", or a
point that is not accepted, the sampler starts the number again. So points are uniform on the area
under the ceilings, and accepted points are uniform on the area under f: x is the absolute value of
a standard normal, and a further bit is the sign. The first 14 bits of a word suffice to choose
among the floors, which have 16,384 equal shares; one number in fifty needs a second word.

**Why the rounding is exact.** The word's other 49 bits begin the binary expansion of the position
in the strip. A number is accepted if s x rounds to one integer for all continuations of its digits;
otherwise as many further words are drawn as needed (also for y). A float64 product, with an error
of at most s 2^-49 + 2^-50 with or without fused multiplication, decides nearly all numbers: all
whose distance to the next half-integer exceeds this error. Other numbers are computed in 192-bit
integers, then in integers of any length. So results depend only on the random words, on any
machine.

If the words are random, nothing is approximated: pieces have exact probabilities, and the tail is
not cut off.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpprobe.errors import PrivacyError
from dpprobe.privacy.keystream import Keystream, Words
from dpprobe.privacy.machine_code import MachineCode

MACHINE_CODE = MachineCode(__file__)
jit = MACHINE_CODE.jit

# A word's first bits choose a floor, the next is the sign, the rest the position in a strip.
CHOICE_BITS = 14
POSITION_BITS = 64 - CHOICE_BITS - 1
SHARE_BITS = 64 - CHOICE_BITS
# Strips have width 2^-STRIP_BITS and cover 0 to END.
STRIP_BITS = 6
END = 8
STRIPS = END << STRIP_BITS
# Floors reach no further than 4, so that positions there fit into 52 bits, in units of 2^-50.
FLOOR_CELLS = 256
# With a deviation of 2^48, only normals beyond 32 deviations (probability 1e-224) exceed 2^53.
LARGEST_DEVIATION = 2.0**48
# Words per block, so that words and numbers stay in the second-level cache.
BLOCK = 1 << 14

_TAIL, _NOTHING = STRIPS, STRIPS + 1
_GUIDE_BITS = 3
_MORE = 1024
_FEWEST = 3  # the most further words that `draw_rest` uses for one attempt
_EXP_BITS = 160

_f8, _u8, _i8 = np.float64, np.uint64, np.int64
_0, _1, _32, _64, _128 = _u8(0), _u8(1), _u8(32), _u8(64), _u8(128)
_LOW_HALF, _ONES = _u8(2**32 - 1), _u8(2**64 - 1)
_CHOICE, _CHOICES = _u8(CHOICE_BITS), _u8(2**CHOICE_BITS - 1)
_SHARE, _GUIDE = _u8(SHARE_BITS), _u8(SHARE_BITS - _GUIDE_BITS)
_PLACE, _POSITIONS = _u8(CHOICE_BITS + 1), _u8(POSITION_BITS)
_COARSE, _COARSE_BITS = _u8(20), _u8(44)
# An integer below 2^52 in the low bits of 2^52 is that float64; 1.5 x 2^52 rounds to an integer.
_BITS_OF_2_52, _2_52 = _u8(0x4330000000000000), 2.0**52
_BITS_OF_ROUNDER, _ROUNDER = _u8(0x4338000000000000), 1.5 * 2.0**52
_POSITION_UNIT, _WIDTH = 2.0 ** -(STRIP_BITS + POSITION_BITS), 2.0**-STRIP_BITS
_BELOW, _ABOVE = 1 - 2.0**-40, 1 + 2.0**-40
_E = tuple((-1.0) ** k / math.factorial(k) for k in range(11))
_E0, _E1, _E2, _E3, _E4, _E5, _E6, _E7, _E8, _E9, _E10 = _E


class Table(NamedTuple):
    """The pieces of the area under the ceilings, as parts of 2^64 units.

    Attributes:
      scale: the density's value at 0.
      floors: the floor of each strip.
      ceilings: the ceiling of each strip, and of the tail's first strip.
      nothing: 2^64 minus the sum of all pieces.
      tops: the density at each strip's left end, rounded.
      shares: [2^14], the strip that each value of a word's first bits chooses.
      settled: values below this one choose a strip's floor; larger values require a further word.
      ends: cumulative sums of the further pieces: the strips' rests, the tail, nothing.
      offsets: numbers to add, modulo 2^64, to turn a number in a strip's rest into a height.
      guide: the first piece that ends beyond each multiple of 2^47.
    """

    scale: int
    floors: tuple[int, ...]
    ceilings: tuple[int, ...]
    nothing: int
    tops: npt.NDArray[np.float64]
    shares: npt.NDArray[np.uint8]
    settled: int
    ends: npt.NDArray[np.uint64]
    offsets: npt.NDArray[np.uint64]
    guide: npt.NDArray[np.uint16]


def exp_bounds(exponent: Fraction, bits: int) -> tuple[int, int]:
    """Returns integer bounds on 2^bits exp(-exponent), for an exponent of at least 0."""
    if exponent == 0:
        return 1 << bits, 1 << bits
    halvings = max(0, math.ceil(2 * exponent).bit_length())
    precision = bits + 2 * halvings + 16
    numerator, denominator = exponent.numerator << precision, exponent.denominator << halvings
    least, most = numerator // denominator, -(-numerator // denominator)  # at most 1/2
    low = high = low_term = high_term = 1 << precision
    count = 0
    while high_term > 1:
        count += 1
        low_term = low_term * least // (count << precision)
        high_term = -(-high_term * most // (count << precision))
        low, high = low + low_term, high + high_term
    high += high_term  # each further term is at most half the term before
    for _ in range(halvings):
        low, high = low * low >> precision, -(-high * high >> precision)
    shift = 2 * precision - (precision - bits)
    return (1 << shift) // high, -(-(1 << shift) // low)


@functools.cache
def compute_table() -> Table:
    """Computes the pieces of the area under the ceilings, once in a process."""
    bounds = [
        exp_bounds(Fraction(strip**2, 2 << 2 * STRIP_BITS), _EXP_BITS)
        for strip in range(STRIPS + 1)
    ]
    highs = [high for _, high in bounds]
    tail = 2 << STRIP_BITS  # the tail in strip widths: 1 + 1/2 + 1/4 + ...
    # Each ceiling is less than 1 above the density's bound.
    scale = ((2**64 - STRIPS - tail) << _EXP_BITS) // (sum(highs[:-1]) + tail * highs[-1])
    ceilings = tuple(-(-scale * high >> _EXP_BITS) for high in highs)
    shares = [(scale * low >> _EXP_BITS) >> SHARE_BITS for low, _ in bounds[1:]]
    floors = tuple(share << SHARE_BITS for share in shares)
    nothing = 2**64 - sum(ceilings[:-1]) - tail * ceilings[-1]
    settled = sum(shares)
    if nothing < 0 or any(shares[FLOOR_CELLS:]):
        raise PrivacyError(
            "rounded Gaussian: its table fails its own check, so no noise is drawn; report this bug"
        )
    chosen = np.zeros(1 << CHOICE_BITS, dtype=np.uint8)
    chosen[:settled] = np.repeat(np.arange(STRIPS), shares)
    sizes = [ceiling - floor for ceiling, floor in zip(ceilings, floors, strict=False)]
    sizes += [tail * ceilings[-1], nothing]
    ends = [sum(sizes[: piece + 1]) for piece in range(len(sizes))]
    starts = [0, *ends[:-1]]
    offsets = [
        (floor - start) % 2**64 for floor, start in zip((*floors, 0, 0), starts, strict=True)
    ]
    marks = range(0, ends[-1], 1 << (SHARE_BITS - _GUIDE_BITS))
    guide = [next(piece for piece, end in enumerate(ends) if end > mark) for mark in marks]
    return Table(
        scale=scale,
        floors=floors,
        ceilings=ceilings,
        nothing=nothing,
        tops=np.array([scale * low / 2**_EXP_BITS for low, _ in bounds[:-1]]),
        shares=chosen,
        settled=settled,
        ends=np.array(ends, dtype=np.uint64),
        offsets=np.array(offsets, dtype=np.uint64),
        guide=np.array(guide, dtype=np.uint16),
    )


class _Scale(NamedTuple):
    """A standard deviation, converted for each step of the sampler.

    Attributes:
      coarse: the deviation times 2^-50, the unit of a position of 44 bits.
      limit: the largest distance from an integer at which a position of 44 bits decides.
      factor: the deviation's 53 leading bits, as an integer.
      shift: the power of 2 that divides factor x position, for a position of 2^-119.
    """

    exact: Fraction
    coarse: float
    limit: float
    factor: np.uint64
    shift: np.uint64

    @classmethod
    def make_scale(cls, deviation: float) -> _Scale:
        mantissa, exponent = math.frexp(deviation)
        shift = STRIP_BITS + POSITION_BITS + 64 + 53 - exponent
        return cls(
            exact=Fraction(deviation),
            coarse=deviation * 2.0**-50,
            limit=0.5 - (deviation * 2.0**-49 + 2.0**-50),
            factor=np.uint64(int(mantissa * 2.0**53)),
            # Above 190, adding 1/2 would overflow 192 bits; at 190, all numbers are 0.
            shift=np.uint64(min(shift, 190)),
        )


class RoundedGaussian:
    """Draws round(deviation Z) for real standard normals Z: int64 with exact probabilities.

    Each number uses the next word of one stream; one number in fifty also uses words of a second
    stream. So numbers do not depend on how many are drawn per call.
    """

    def __init__(self, keystream: Keystream) -> None:
        self._words = keystream.make_part("words")
        self._more = keystream.make_part("further words")
        self._left = np.empty(BLOCK, dtype=np.int64)
        self._ahead: Words = np.empty(0, dtype=np.uint64)
        self._place = 0

    def draw_numbers(self, size: int, deviation: float) -> npt.NDArray[np.int64]:
        """Draws the next numbers; raises PrivacyError for a deviation outside 0 to 2^48."""
        scale, out = _find_scale(deviation), np.zeros(size, dtype=np.int64)
        if scale is not None:
            for start in range(0, size, BLOCK):
                self._fill_numbers(out[start : start + BLOCK], scale)
        return out

    def add_to(
        self, sums: npt.NDArray[np.int64] | npt.NDArray[np.float64], deviation: float
    ) -> None:
        """Adds the next numbers to integers in place, with memory for one block only.

        The sums must be contiguous int64, or float64 with integer values below 2^53. Raises
        PrivacyError as `draw_numbers` does, and for sums of another type or layout.
        """
        if sums.dtype not in (np.int64, np.float64) or not sums.flags.c_contiguous:
            raise PrivacyError(
                f"sums of type {sums.dtype}, strides {sums.strides}: noise needs contiguous int64 "
                "or float64 sums"
            )
        scale = _find_scale(deviation)
        if scale is None:
            return
        flat = sums.reshape(-1)
        numbers = np.empty(min(BLOCK, flat.size), dtype=np.int64)
        for start in range(0, flat.size, BLOCK):
            block = flat[start : start + BLOCK]
            self._fill_numbers(numbers[: block.size], scale)
            block += numbers[: block.size]

    def _fill_numbers(self, out: npt.NDArray[np.int64], scale: _Scale) -> None:
        pieces = compute_table()
        settled = np.uint64(pieces.settled)
        words = out.view(np.uint64)
        self._words.fill_words(words)
        count = draw_most(words, pieces.shares, settled, scale.coarse, scale.limit, self._left)
        left = self._left[:count]
        index, again = 0, False
        while True:
            index, self._place, again, hard = draw_rest(
                words,
                left,
                self._ahead,
                pieces.shares,
                settled,
                pieces.guide,
                pieces.ends,
                pieces.offsets,
                pieces.tops,
                scale.factor,
                scale.shift,
                index,
                self._place,
                again,
            )
            if index == left.size:
                return
            if hard:
                word = self._draw_next() if again else int(words[left[index]])
                number = attempt_number(word, self._draw_next, scale.exact)
                again = number is None
                if number is not None:
                    out[left[index]] = number
                    index += 1
            else:
                self._look_ahead()

    def _look_ahead(self) -> None:
        self._ahead = np.concatenate([self._ahead[self._place :], self._more.draw_words(_MORE)])
        self._place = 0

    def _draw_next(self) -> int:
        if self._place == self._ahead.size:
            self._look_ahead()
        self._place += 1
        return int(self._ahead[self._place - 1])


@functools.lru_cache(maxsize=64)
def _find_scale(deviation: float) -> _Scale | None:
    if not 0 <= deviation <= LARGEST_DEVIATION:
        raise PrivacyError(
            f"deviation {deviation!r} in units of the grid: must lie between 0 and 2^48; use a "
            "coarser grid"
        )
    return None if deviation == 0 else _Scale.make_scale(float(deviation))


def attempt_number(word: int, more: Callable[[], int], deviation: Fraction) -> int | None:
    """Computes a number in integers of any length; returns None if it must be started again.

    `word` is the number's first word, and `more` draws a further word.
    """
    pieces = compute_table()
    choice = word % 2**CHOICE_BITS
    negative = word >> CHOICE_BITS & 1
    x = _Digits(word >> (CHOICE_BITS + 1), POSITION_BITS)
    if choice < pieces.settled:
        x = x.shrink_to(Fraction(int(pieces.shares[choice]), 1 << STRIP_BITS), STRIP_BITS)
    else:
        value = (choice - pieces.settled << SHARE_BITS) + (more() >> CHOICE_BITS)
        piece = int(np.searchsorted(pieces.ends, np.uint64(value), side="right"))
        if piece == _NOTHING:
            return None
        if piece == _TAIL:
            halvings = _trailing_zeros(more)
            x = x.shrink_to(Fraction(END + halvings), 0)
            share = value - int(pieces.ends[_TAIL - 1]) >> (STRIP_BITS + 1)
            y = _Digits(share, 0).shrink_to(Fraction(0), halvings)
        else:
            x = x.shrink_to(Fraction(piece, 1 << STRIP_BITS), STRIP_BITS)
            y = _Digits((value + int(pieces.offsets[piece])) % 2**64, 0)
        while not _is_below(y.upper_end, x.upper_end):
            if not _is_below(y.lower_end, x.lower_end):
                return None
            x, y = x.extend_digits(more()), y.extend_digits(more())
    while (number := math.floor(deviation * x.lower_end + Fraction(1, 2))) != (
        math.ceil(deviation * x.upper_end + Fraction(1, 2)) - 1
    ):
        x = x.extend_digits(more())
    return -number if negative else number


class _Digits(NamedTuple):
    """A real number known to `places` binary digits: start + (value + u) / 2^places, 0 <= u < 1."""

    value: int
    places: int
    start: Fraction = Fraction(0)

    @property
    def lower_end(self) -> Fraction:
        return self.start + Fraction(self.value, 1 << self.places)

    @property
    def upper_end(self) -> Fraction:
        return self.start + Fraction(self.value + 1, 1 << self.places)

    def shrink_to(self, start: Fraction, bits: int) -> _Digits:
        return _Digits(self.value, self.places + bits, start)

    def extend_digits(self, word: int) -> _Digits:
        return _Digits((self.value << 64) + word, self.places + 64, self.start)


def _trailing_zeros(more: Callable[[], int]) -> int:
    """Draws a geometric number: k with probability 2^-(k + 1)."""
    zeros = 0
    while (word := more()) == 0:
        zeros += 64
    return zeros + (word & -word).bit_length() - 1


def _is_below(y: Fraction, x: Fraction) -> bool:
    """Returns True if height y is below the density at x; they are equal only at x = 0."""
    scale, bits = compute_table().scale, 128
    while True:
        low, high = (Fraction(scale * bound, 1 << bits) for bound in exp_bounds(x * x / 2, bits))
        if y < low:
            return True
        if y >= high:
            return False
        bits *= 2


@jit("b1(f8[:, :], i8[::1], f8, f8, f8[::1])")
def release_integers(sums, numbers, largest, step, out):
    """Fills `out` with (sums [m, k] + numbers) * step; returns False if sums are not whole."""
    wrong, columns = 0, sums.shape[1]
    for i in range(sums.shape[0]):
        line, drawn = out[i * columns : (i + 1) * columns], numbers[i * columns : (i + 1) * columns]
        for j in range(columns):
            value = sums[i, j]
            wrong += (not abs(value) <= largest) | (value != np.trunc(value))
            line[j] = (value + drawn[j]) * step
    return wrong == 0


@jit("i8(u8[::1], u1[::1], u8, f8, f8, i8[::1])")
def draw_most(words, shares, settled, coarse, limit, left):
    """Draws the numbers that a floor and 44 position bits decide; lists all others in `left`.

    Args:
      words: [n]; numbers overwrite their words.
      shares, settled: as in the table.
      coarse, limit: as in `_Scale`.
      left: receives the indices of undecided numbers, in order; [n
        or more].

    Returns:
      The number of undecided numbers.
    """
    count = 0
    strips = np.empty(1024, dtype=np.uint8)
    for start in range(0, words.shape[0], 1024):
        part = words[start : start + 1024]
        for i in range(part.shape[0]):
            strips[i] = shares[part[i] & _CHOICES]
        # A separate loop without table look-up, which compilers can vectorise.
        for i in range(part.shape[0]):
            word = part[i]
            position = _u8(strips[i]) << _COARSE_BITS | word >> _COARSE
            scaled = (_u8(position | _BITS_OF_2_52).view(_f8) - _2_52) * coarse
            moved = _f8(scaled + _ROUNDER)
            distance = abs(scaled - (moved - _ROUNDER))
            number = moved.view(_u8) - _BITS_OF_ROUNDER
            sign = _0 - (word >> _CHOICE & _1)
            number = (number ^ sign) - sign
            decided = (distance <= limit) & ((word & _CHOICES) < settled)
            part[i] = number if decided else word
            strips[i] = not decided
        for i in range(part.shape[0]):
            left[count] = start + i  # overwritten by the next index unless this number is undecided
            count += strips[i]
    return count


@jit()
def _multiply_words(a, b):
    """Returns the upper and the lower word of a 128-bit product."""
    a0, a1, b0, b1 = a & _LOW_HALF, a >> _32, b & _LOW_HALF, b >> _32
    low, middle = a0 * b0, a1 * b0
    middle += low >> _32
    other = a0 * b1 + (middle & _LOW_HALF)
    return a1 * b1 + (middle >> _32) + (other >> _32), other << _32 | low & _LOW_HALF


@jit("u8(u8, u8, u8, u8, u8)")
def round_product(factor, shift, upper, lower, further):
    """Computes floor((factor (2^64 upper + lower) + further) / 2^shift + 1/2) in 192 bits.

    For factors below 2^53, shifts from 66 to 190, and `upper` below 2^63.
    """
    carried, w0 = _multiply_words(factor, lower)
    w2, w1 = _multiply_words(factor, upper)
    w1 += carried
    w2 += _u8(w1 < carried)
    w0 += further
    carry = _u8(w0 < further)
    w1 += carry
    w2 += _u8(w1 < carry)
    if shift > _128:
        return (w2 + (_1 << (shift - _128 - _1))) >> (shift - _128)
    half = _1 << (shift - _64 - _1)
    w1 += half
    w2 += _u8(w1 < half)
    if shift == _128:
        return w2
    return w2 << (_128 - shift) | w1 >> (shift - _64)


@jit("u2(u8, u2[::1], u8[::1])")
def further_piece(value, guide, ends):
    """Finds the piece that contains `value`, which must be below the last end."""
    piece = guide[value >> _GUIDE]
    while value >= ends[piece]:
        piece += 1
    return piece


@jit("f8(u8, u8, f8[::1])")
def compute_density(strip, position, tops):
    """Computes the density at a strip's left end plus a position, to a relative error of 2^-48."""
    step = _f8(position) * _POSITION_UNIT
    t = step * (_f8(strip) * _WIDTH + 0.5 * step)  # at most 1/8
    series = (
        (
            (((((((_E10 * t + _E9) * t + _E8) * t + _E7) * t + _E6) * t + _E5) * t + _E4) * t + _E3)
            * t
            + _E2
        )
        * t
        + _E1
    ) * t + _E0
    return tops[strip] * series


@jit(
    "Tuple((i8, i8, b1, b1))(u8[::1], i8[::1], u8[::1], u1[::1], u8, u2[::1], u8[::1], u8[::1], "
    "f8[::1], u8, u8, i8, i8, b1)"
)
def draw_rest(
    words,
    left,
    more,
    shares,
    settled,
    guide,
    ends,
    offsets,
    tops,
    factor,
    shift,
    index,
    place,
    again,
):
    """Draws the numbers listed in `left`, until further words run out or a number is undecided.

    Args:
      words: [n], which the numbers overwrite; `more` are further words.
      left: the indices of the numbers to draw.
      shares, settled, guide, ends, offsets, tops: as in the table.
      factor, shift: as in the scale of the deviation.
      index: index in `left` of the first number; `again` if that number is being drawn again.
      place: index of the first further word to use.

    Returns:
      `index`, `place` and `again` for the next call; True if `attempt_number` is next.
    """
    while index < left.shape[0]:
        if place + _FEWEST > more.shape[0]:
            return index, place, again, False
        at = place
        word = words[left[index]]
        if again:
            word = more[at]
            at += 1
        choice = word & _CHOICES
        position = word >> _PLACE
        strip = _u8(0)
        if choice < settled:
            strip = _u8(shares[choice])
        else:
            value = (choice - settled) << _SHARE | more[at] >> _CHOICE
            at += 1
            strip = _u8(further_piece(value, guide, ends))
            if strip == _NOTHING:
                place, again = at, True
                continue
            if strip == _TAIL:
                return index, place, again, True
            height = value + offsets[strip]
            wanted = compute_density(strip, position, tops)
            if _f8(height) >= wanted * _ABOVE:
                place, again = at, True
                continue
            if _f8(height + _1) > wanted * _BELOW:
                return index, place, again, True
        position |= strip << _POSITIONS
        number = round_product(factor, shift, position, _0, _0)
        if number != round_product(factor, shift, position, _ONES, factor - _1):
            lower = more[at]
            at += 1
            number = round_product(factor, shift, position, lower, _0)
            if number != round_product(factor, shift, position, lower, factor - _1):
                return index, place, again, True
        words[left[index]] = _0 - number if word >> _CHOICE & _1 else number
        place, again = at, False
        index += 1
    return index, place, again, False


MACHINE_CODE.keep()
