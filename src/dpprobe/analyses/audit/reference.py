"""A second computation of a release, slow and plain, that shares no code with the first.

Written from docs/accounting.md, the docstrings of the heads and of `privacy.rounded_gaussian`: the
random words of a seed, the rounded Gaussian, Poisson batches and all sums over rows. An audit
compares each released number with these functions (`replay`).

Sums are whole numbers, so they must be equal. Only where a number lies within rounding of a whole
number, two right programs may round to neighbours. The functions count these cases, and bound how
much a sum may change (`Sum.slack`): nearly always by 0.
"""

from __future__ import annotations

import hmac
import math
from bisect import bisect_right
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

Numbers = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]
Bend = Callable[[str, int, Words], None]

# What rows and gradients are shorter than their bounds, for heads of second moments and of steps.
SHORT, SHORT_STEPS = 2.0**-22, 2.0**-30
# In steps of a grid: the rounding of float64, and of a factor that two programs may round to
# different float32 numbers.
DOUBT, _FLOAT32_DOUBT = 1e-7, 0.25
# Relative rounding of float32 numbers that PyTorch adds in an order of its own.
LOOSE = 2.0**-18


class Stream:
    """The words of AES-256 in counter mode; `bend` may change them, as in the audited fit."""

    def __init__(self, key: bytes, name: str, bend: Bend) -> None:
        self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        self._name, self._bend, self._taken = name, bend, 0

    def take_words(self, count: int) -> Words:
        words = np.frombuffer(self._cipher.update(bytes(8 * count)), dtype="<u8").astype(np.uint64)
        self._bend(self._name, self._taken, words)
        self._taken += count
        return words

    def take_word(self) -> int:
        return int(self.take_words(1)[0])


def derive_key(key: bytes | int, name: str) -> bytes:
    key = key.to_bytes(16, "big") if isinstance(key, int) else key
    return hmac.digest(key, name.encode(), "sha256")


class Pieces(NamedTuple):
    """The pieces of the area below the ceilings; see `privacy.rounded_gaussian`."""

    scale: Decimal
    shares: list[int]
    floors: list[int]
    ends: list[int]
    last_ceiling: int


@cache
def divide_area() -> Pieces:
    with localcontext() as context:
        context.prec = 80
        heights = [(-(Decimal(cell) ** 2) / 8192).exp() for cell in range(513)]
        scale = Decimal((2**64 - 640) / (sum(heights[:512]) + 128 * heights[512]))
        scale = scale.to_integral_value("ROUND_FLOOR")
        ceilings = [int((scale * each).to_integral_value("ROUND_CEILING")) for each in heights]
        shares = [int(scale * each) >> 50 for each in heights[1:]]
    floors = [share << 50 for share in shares]
    sizes = [top - floor for top, floor in zip(ceilings[:512], floors, strict=True)]
    sizes.append(128 * ceilings[512])
    ends = [sum(sizes[: piece + 1]) for piece in range(513)]
    cells = [cell for cell, share in enumerate(shares) for _ in range(share)]
    return Pieces(scale, cells, floors, ends, ceilings[512])


class RoundedNormals:
    """The whole numbers round(deviation Z) of one seed's mechanism, from its keystream."""

    def __init__(self, seed: int, use: str, bend: Bend) -> None:
        key = derive_key(seed, use)
        self._words = Stream(derive_key(key, "words"), "words", bend)
        self._more = Stream(derive_key(key, "further words"), "further words", bend)
        self._drawn = 0

    def draw_numbers(self, count: int, deviation: float, most: int) -> tuple[Any, Any]:
        """Returns the next numbers, int64 [count], and which of them are computed.

        After `most` numbers, only the numbers of one word are computed, 98 in 100.
        """
        self._drawn += count
        cells = np.array(divide_area().shares)
        words = self._words.take_words(count)
        choice = (words & np.uint64(2**14 - 1)).astype(np.int64)
        settled = choice < len(cells)
        cell = np.where(settled, cells[np.minimum(choice, len(cells) - 1)], 0)
        x = (cell + ((words >> np.uint64(15)).astype(np.float64) + 0.5) * 2.0**-49) / 64
        size = deviation * x
        middle = np.abs(size - np.floor(size) - 0.5)
        settled &= middle > (deviation + 1) * 2.0**-48
        numbers = np.rint(size).astype(np.int64)
        numbers[words >> np.uint64(14) & np.uint64(1) == 1] *= -1
        if self._drawn <= most:
            for place in np.flatnonzero(~settled):
                numbers[place] = self._draw_slowly(int(words[place]), Fraction(deviation))
            settled[:] = True
        return numbers, settled

    def _draw_slowly(self, word: int, deviation: Fraction) -> int:
        while (number := self._attempt(word, deviation)) is None:
            word = self._more.take_word()
        return number

    def _attempt(self, word: int, deviation: Fraction) -> int | None:
        pieces, more = divide_area(), self._more.take_word
        choice, sign, x, places = word % 2**14, 1 - 2 * (word >> 14 & 1), word >> 15, 55
        if choice < len(pieces.shares):
            start = Fraction(pieces.shares[choice], 64)
        else:
            value = (choice - len(pieces.shares) << 50) + (more() >> 14)
            piece = bisect_right(pieces.ends, value)
            if piece == 513:
                return None
            before = pieces.ends[piece - 1] if piece else 0
            start, y, halvings = Fraction(piece, 64), value - before, 0
            if piece == 512:
                while (drawn := more()) == 0:
                    halvings += 64
                halvings += (drawn & -drawn).bit_length() - 1
                start, y, places = Fraction(8 + halvings), y >> 7, 49
            else:
                y += pieces.floors[piece]
            while not is_below(
                Fraction(y + 1, 1 << halvings), start + Fraction(x + 1, 1 << places)
            ):
                if not is_below(Fraction(y, 1 << halvings), start + Fraction(x, 1 << places)):
                    return None
                x, places = (x << 64) + more(), places + 64
                y, halvings = (y << 64) + more(), halvings + 64
        while True:
            low, high = (start + Fraction(x + end, 1 << places) for end in (0, 1))
            number = math.floor(deviation * low + Fraction(1, 2))
            if number == math.ceil(deviation * high + Fraction(1, 2)) - 1:
                return sign * number
            x, places = (x << 64) + more(), places + 64


def is_below(y: Fraction, x: Fraction) -> bool:
    """Compares a height y with the density at x."""
    scale = divide_area().scale
    density = float(scale) * math.exp(-(float(x) ** 2) / 2)
    if abs(float(y) - density) > 1e-9 * density:
        return float(y) < density
    with localcontext() as context:
        context.prec = 60
        exponent = -(Decimal(x.numerator) ** 2) / (2 * Decimal(x.denominator) ** 2)
        return Decimal(y.numerator) < Decimal(y.denominator) * scale * exponent.exp()


class Batches:
    """The Poisson batches of one seed: row i joins if the digits of a uniform are below the rate's.

    Each word has the next binary digit of 64 rows. `drawn` rows were decided.
    """

    def __init__(self, seed: int, rows: int, rate: float) -> None:
        self._stream = Stream(derive_key(seed, "Poisson sampling"), "", lambda *_: None)
        self._words: list[int] = []
        self._rows, self.drawn = rows, 0
        top, bottom = Fraction(rate).as_integer_ratio()
        places = bottom.bit_length() - 1
        self._digits = [top >> place & 1 for place in reversed(range(places))]

    def draw_batch(self) -> list[int]:
        batch: list[int] = []
        self.drawn += self._rows
        for first in range(0, self._rows, 64):
            undecided, joined = (1 << min(64, self._rows - first)) - 1, 0
            for digit in self._digits:
                if not undecided:
                    break
                if not self._words:
                    self._words = self._stream.take_words(1 << 12).tolist()[::-1]
                word = self._words.pop()
                joined |= undecided & ~word if digit else 0
                undecided &= word if digit else ~word
            batch += [first + bit for bit in range(64) if joined >> bit & 1]
        return batch


def product_bits(n: int) -> int:
    return 52 - (max(n, 1) - 1).bit_length()


def entry_bits(n: int) -> int:
    return min(product_bits(n) // 2, 17)


def factor_bits(n: int) -> int:
    return min(product_bits(n) - entry_bits(n), 17)


def power_of_two(longest: float, bits: int) -> float:
    """Returns the power of two of which 2^bits exceed `longest`."""
    return 2.0 ** (math.frexp(longest)[1] - bits)


class Whole(NamedTuple):
    """Whole numbers, and how far another right program's may lie from each."""

    numbers: Numbers
    doubt: Numbers

    def take_rows(self, rows: Any) -> Whole:
        return Whole(self.numbers[rows], self.doubt[rows])

    def take_columns(self, stop: int) -> Whole:
        return Whole(self.numbers[:, :stop], self.doubt[:, :stop])


def round_down(values: Numbers, doubt: Any = DOUBT, loose: float = 0.0) -> Whole:
    """Rounds [rows, ...] towards zero; `doubt` is the error of values, a number or [rows, 1]."""
    numbers, error = np.trunc(values), doubt + loose * np.abs(values)
    low, high = np.trunc(values - error), np.trunc(values + error)
    return Whole(numbers, np.maximum(np.abs(low - numbers), np.abs(high - numbers)))


class Sum(NamedTuple):
    """A sum over rows in steps, the value of one step, and how much the sum may differ."""

    steps: Numbers
    step: float
    slack: Any = 0.0

    def differs(self, sums: Numbers, step: float) -> bool:
        """Returns True if released sums are not these."""
        near = math.isclose(step, self.step, rel_tol=1e-12) and sums.shape == self.steps.shape
        return not (near and bool((np.abs(sums / step - self.steps) <= self.slack + 1e-3).all()))


def add_products(left: Whole, right: Whole, step: float) -> Sum:
    """Sums the products of rows' factors [rows, K] and entries [rows, m]: [K, m]."""
    total = left.numbers.T @ right.numbers
    unsure = left.doubt.any(1) | right.doubt.any(1)
    if not unsure.any():
        return Sum(total, step)
    (a, da), (b, db) = left.take_rows(unsure), right.take_rows(unsure)
    return Sum(total, step, (np.abs(a) + da).T @ (np.abs(b) + db) - np.abs(a).T @ np.abs(b))


def add_squares(rows: Whole, factors: Numbers, step: float) -> Sum:
    """Sums f x x^T over rows x, of which the root of f multiplies each, rounded down."""
    roots = np.sqrt(factors)[:, None]
    if (roots != 1).any():
        rows = round_down(rows.numbers * roots, np.where(roots == 1, 0.0, DOUBT) + rows.doubt)
    return add_products(rows, rows, step)


def fair_weights(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Returns the largest float32 weight of each of m rows whose sum over them is at most 1."""
    weights = []
    for size in sizes.tolist():
        weight = np.float32(1) / np.float32(size)
        while Fraction(float(weight)) * size > 1:
            weight = np.nextafter(weight, np.float32(0))
        while Fraction(float(np.nextafter(weight, np.float32(2)))) * size <= 1:
            weight = np.nextafter(weight, np.float32(2))
        weights.append(weight)
    return np.array(weights, dtype=np.float32)


def norms_of(rows: npt.NDArray[Any]) -> Numbers:
    return np.asarray(np.sqrt(np.square(rows.astype(np.float64)).sum(1)))


def to_float32(values: Numbers) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Rounds to float32; returns also where another right program may round differently."""
    with np.errstate(over="ignore"):
        low, high = (np.float32(values * (1 + sign * 1e-12)) for sign in (-1, 1))
        return np.float32(values), low != high


def invert(lengths: Numbers) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Returns factors that scale rows of these norms to norm 1; 1 for norms near 0."""
    return to_float32(1 / np.where(lengths >= 1e-20, lengths, 1.0))


class Rows(NamedTuple):
    """Normalised rows: scale[i] * features[i] - shift[i] * centre.

    Attributes:
      features: float32 [rows, d]; scale, shift: float32 [rows]; centre: float32 [d].
      lengths: float64 [rows].
      usable: False for rows that count as null rows.
      doubt: [rows], how many steps another right program's entries may be away before rounding.
      loose: relative error of the features.
    """

    features: npt.NDArray[np.float32]
    scale: npt.NDArray[np.float32]
    shift: npt.NDArray[np.float32]
    centre: npt.NDArray[np.float32]
    lengths: Numbers
    usable: npt.NDArray[np.bool_]
    doubt: Numbers
    loose: float = 0.0

    def scaled(self, scale: npt.NDArray[Any], shift: npt.NDArray[Any]) -> Numbers:
        """Returns float64 [rows, d] with other scales and shifts."""
        features, centre = self.features.astype(np.float64), self.centre.astype(np.float64)
        centred: Numbers = scale.astype(np.float64)[:, None] * features
        return centred - shift.astype(np.float64)[:, None] * centre

    def multiplied(self) -> Rows:
        """Returns the rows with their scales multiplied into float32 features."""
        if self.shift.any():
            return self
        features = self.features * self.scale[:, None]
        return self._replace(features=features, scale=np.ones_like(self.scale))


def plain_rows(features: npt.NDArray[np.float32]) -> Rows:
    """Returns rows as they are; rows of NaN, infinity, huge or tiny numbers become null rows."""
    with np.errstate(invalid="ignore", over="ignore"):
        lengths = norms_of(features)
        usable = (lengths <= 1e18) & ((lengths == 0) | (lengths >= 1e-20))
    ones, zeros = np.ones(len(features), np.float32), np.zeros(len(features), np.float32)
    features = np.where(usable[:, None], features, np.float32(0))
    centre = np.zeros(features.shape[1], np.float32)
    lengths = np.where(usable, lengths, 0.0)
    return Rows(features, ones, zeros, centre, lengths, usable, np.full(len(features), DOUBT))


def unit_rows(rows: Rows) -> Rows:
    scale, unsure = invert(rows.lengths)
    doubt = rows.doubt + _FLOAT32_DOUBT * unsure
    return rows._replace(scale=scale, lengths=rows.lengths * scale, doubt=doubt)


def centred_rows(rows: Rows, centre: npt.NDArray[np.float32]) -> Rows:
    """Scales rows to norm 1, subtracts the centre, and scales them again."""
    unit, unsure = invert(rows.lengths)
    distances = norms_of(rows.features * unit[:, None] - centre)
    shift, unsure_too = invert(distances)
    shift = np.where(rows.usable, np.minimum(shift, np.float32(2.0**40)), np.float32(0))
    return rows._replace(
        scale=unit * shift, shift=shift, centre=centre, lengths=distances * shift,
        doubt=rows.doubt + _FLOAT32_DOUBT * (unsure | unsure_too),
    )  # fmt: skip


def other_rows(rows: Rows, features: Numbers, *, loose: float = 0.0) -> Rows:
    features = features.reshape(rows.features.shape)
    features = np.where(rows.usable[:, None], features, 0).astype(np.float32)
    return rows._replace(features=features, lengths=norms_of(features), loose=loose)


class Clipped(NamedTuple):
    """Rows of norm at most `longest` with a constant: see `heads.clipped_row_options`."""

    rows: Rows
    scale: npt.NDArray[np.float32]
    shift: npt.NDArray[np.float32]
    constant: npt.NDArray[np.float32]
    norms: Numbers
    doubt: Numbers

    def entries(self, step: float, *, unit: bool = False) -> Whole:
        """Returns rows and constants in steps [rows, d + 1]; `unit` divides by the rows' norms."""
        scale, shift, constant, doubt = self.scale, self.shift, self.constant, self.doubt
        if unit:
            factor = divide(1 - SHORT, self.norms, by_zero=0.0)
            (scale, one), (shift, two), (constant, three) = (
                to_float32(each * factor) for each in (scale, shift, constant)
            )
            doubt = doubt + _FLOAT32_DOUBT * (one | two | three)
        values = self.rows.scaled(scale / step, shift / step)
        entries = round_down(values, doubt[:, None], self.rows.loose)
        last = round_down(constant[:, None] / step, doubt[:, None] if unit else 0.0)
        return Whole(*(np.hstack(pair) for pair in zip(entries, last, strict=True)))


def clip_rows(rows: Rows, n: int, clip: float, intercept: float, longest: float) -> Clipped:
    step = power_of_two(longest, entry_bits(n))
    offset = math.trunc(intercept * clip * (1 - SHORT) / step) * step
    lengths = rows.lengths
    if rows.shift.any():
        lengths = lengths + 2.0**-21 * (1 + float(norms_of(rows.centre[None])[0])) * rows.shift
    factors = np.minimum(divide(clip * (1 - SHORT), lengths), 1.0)
    scale, unsure = to_float32(np.where(rows.usable, factors, 0.0))
    constant = np.where(rows.usable, np.float32(offset), np.float32(0))
    norms = np.hypot(np.where(rows.usable, lengths * factors, 0.0), constant)
    doubt = rows.doubt + _FLOAT32_DOUBT * unsure
    return Clipped(rows, scale * rows.scale, scale * rows.shift, constant, norms, doubt)


def divide(bound: float, lengths: Numbers, by_zero: float = math.inf) -> Numbers:
    """Divides a bound by lengths of 0 or more."""
    out = np.full(lengths.shape, by_zero)
    return np.divide(bound, lengths, out=out, where=lengths > 0)


def subtract_labels(logits: Numbers, hot: Any, *, sigmoid: bool) -> Numbers:
    """Returns probabilities minus labels."""
    if sigmoid:
        return np.asarray(np.exp(-np.logaddexp(0, -logits)) - hot)
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True) - hot)


def clip_factors(
    residuals: Numbers, away: Numbers, norms: Numbers, shares: Numbers, clip: float, step: float
) -> Whole:
    """Returns the factors [rows, K] of gradients clipped to `clip`, in steps.

    `away` [rows] bounds how far another program's logits may differ.
    """
    bounds = divide(clip, norms_of(residuals) * norms)
    scale = np.minimum(bounds, 1.0) * shares * norms / step
    return round_down(residuals * scale[:, None], DOUBT + 4 * (away * scale)[:, None])
