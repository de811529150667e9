"""A second, slow and simple implementation of releases, which shares no code with the first.

The functions follow docs/accounting.md and the docstrings of the heads and of
`privacy.rounded_gaussian`. They compute the random words of a seed, its noise, Poisson batches, and
the sums over rows. An audit compares each released number with the reference (`replay`).

Sums are whole numbers of steps. If a row's number is halfway between two steps up to rounding, two
correct programs may round it differently. So sums may differ by one step for each row and number,
about 2^-17 of a bound (`Sum.slack`). Sums are nearly always equal.
"""

from __future__ import annotations

import hashlib
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

# Rows and gradients are shorter than their bounds by these shares: in heads of second moments, and
# in heads of gradient steps.
SHORT, SHORT_STEPS = 2.0**-22, 2.0**-30
# Relative rounding error of float32 sums, because PyTorch may add in another order.
LOOSE = 2.0**-18


class Stream:
    """The words of AES-256 in counter mode; `bend` changes some words, as in the audited fit."""

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
    """The noise numbers round(deviation * Z) of one seed and mechanism, from the keystream."""

    def __init__(self, seed: int, use: str, bend: Bend) -> None:
        key = derive_key(seed, use)
        self._words = Stream(derive_key(key, "words"), "words", bend)
        self._more = Stream(derive_key(key, "further words"), "further words", bend)
        self._drawn = 0

    def draw_numbers(self, count: int, deviation: float, most: int) -> tuple[Any, Any]:
        """Returns the next numbers, int64 [count], and flags of those that are computed.

        After `most` numbers, only numbers that take a single word are computed, 98 in 100.
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
    """Returns True if the height y is below the normal density at x."""
    scale = divide_area().scale
    density = float(scale) * math.exp(-(float(x) ** 2) / 2)
    if abs(float(y) - density) > 1e-9 * density:
        return float(y) < density
    with localcontext() as context:
        context.prec = 60
        exponent = -(Decimal(x.numerator) ** 2) / (2 * Decimal(x.denominator) ** 2)
        return Decimal(y.numerator) < Decimal(y.denominator) * scale * exponent.exp()


def open_bits(seed: int, name: str) -> np.random.SFC64:
    """Returns a seed's random stream of a given name, for uses that need no cipher."""
    digest = hashlib.sha256(seed.to_bytes(16, "big") + name.encode()).digest()
    return np.random.SFC64(np.random.SeedSequence(int.from_bytes(digest[:16], "big")))


class FloatNormals:
    """The float32 normals of `engine: closed_form`: see `privacy.float32_noise`.

    They are the Box-Muller transform of words from 32 SFC64 generators. One more generator refines
    small radii.
    """

    def __init__(self, seed: int) -> None:
        self._lanes, self._tail = (
            self._start(seed, *each) for each in (("noise", 32), ("noise tail", 1))
        )

    @staticmethod
    def _start(seed: int, name: str, lanes: int) -> list[Words]:
        state = open_bits(seed, name).random_raw(3 * lanes).reshape(3, lanes)
        made = [*state, np.ones(lanes, dtype=np.uint64)]
        for _ in range(18):
            FloatNormals._next(made)
        return made

    @staticmethod
    def _next(state: list[Words]) -> Words:
        (a, b, c, counter), u = state, np.uint64
        word = a + b + counter
        turned = (c << u(24) | c >> u(40)) + word
        state[:] = [b ^ (b >> u(11)), c + (c << u(3)), turned, counter + u(1)]
        return word

    def draw_numbers(self, count: int) -> Numbers:
        """Draws the standard normal numbers of one step."""
        pairs = -(-count // 64) * 32
        words = np.concatenate([self._next(self._lanes) for _ in range(pairs // 32)])
        radii, angles = (
            (words & np.uint64(2**32 - 1)).astype(np.uint32).view(np.int32),
            words >> np.uint64(32),
        )
        units = np.where(radii >= 0, radii, -1 - radii.astype(np.int64)) + 0.5
        for place in np.flatnonzero(units < 2**18):
            units[place] += (float(self._next(self._tail)[0]) + 0.5) * 2.0**-64 - 0.5
        radius = np.sqrt(-2 * np.log(units * 2.0**-31 * (1 - 2.0**-24)))
        angle = (angles.astype(np.uint32).view(np.int32) + 0.5) * (math.pi / 2**31)
        parts = []
        for start in range(0, pairs, 1024):
            part = slice(start, start + 1024)
            parts += [radius[part] * np.cos(angle[part]), radius[part] * np.sin(angle[part])]
        return np.concatenate(parts)[:count]


class Batches:
    """The Poisson batches of one seed: row i joins if a uniform number is below the rate.

    Numbers are compared by digits; a word has the next binary digit of 64 rows. `drawn` counts
    decided rows.
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


class FloatBatches:
    """The Poisson batches of `engine: closed_form`, from geometric gaps between joining rows."""

    def __init__(self, seed: int, rows: int, rate: float) -> None:
        self._generator = np.random.Generator(open_bits(seed, "sampling"))
        self._rows, self._rate, self.drawn = rows, rate, 0
        self._hit = self._draw_distance() - 1

    def _draw_distance(self) -> int:
        if self._rate >= 1 / 3:
            return int(self._generator.geometric(self._rate))
        distance = self._generator.standard_exponential() / -math.log1p(-self._rate)
        return max(1, math.ceil(distance))

    def draw_batch(self) -> list[int]:
        batch, first = [], self.drawn
        self.drawn += self._rows
        while self._hit < self.drawn:
            batch.append(self._hit - first)
            self._hit += self._draw_distance()
        return batch


def product_bits(n: int) -> int:
    return 52 - (max(n, 1) - 1).bit_length()


def entry_bits(n: int) -> int:
    return min(product_bits(n) // 2, 17)


def factor_bits(n: int) -> int:
    return min(product_bits(n) - entry_bits(n), 17)


def power_of_two(longest: float, bits: int) -> float:
    """Returns the smallest power of two that exceeds `longest` when multiplied by 2^bits."""
    return 2.0 ** (math.frexp(longest)[1] - bits)


class Sum(NamedTuple):
    """A sum over rows in steps, the value of one step, and the sum's tolerance in steps."""

    steps: Numbers
    step: float
    slack: Any

    def differs(self, sums: Numbers, step: float) -> bool:
        """Returns True if released sums differ by more than rounding."""
        near = math.isclose(step, self.step, rel_tol=1e-12) and sums.shape == self.steps.shape
        return not (near and bool((np.abs(sums / step - self.steps) <= self.slack).all()))


def add_products(left: Numbers, right: Numbers, step: float) -> Sum:
    """Sums, over rows, the outer products of factors [rows, K] and entries [rows, m]: [K, m]."""
    slack = np.abs(left).sum(0)[:, None] + np.abs(right).sum(0) + len(left)
    return Sum(left.T @ right, step, slack)


def add_squares(rows: Numbers, factors: Numbers, step: float) -> Sum:
    """Sums f x x^T over rows x, by multiplying each row by the square root of its factor f."""
    rows = np.trunc(rows * np.sqrt(factors)[:, None])
    return add_products(rows, rows, step)


def fair_weights(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Returns, for each m in `sizes`, the largest float32 weight w such that m w is at most 1."""
    weights = (1 / sizes).astype(np.float32)
    over = [
        Fraction(float(one)) * size > 1 for one, size in zip(weights, sizes.tolist(), strict=True)
    ]
    return np.where(over, np.nextafter(weights, np.float32(0)), weights)


def norms_of(rows: npt.NDArray[Any]) -> Numbers:
    return np.asarray(np.sqrt(np.square(rows.astype(np.float64)).sum(1)))


def divide(bound: float, lengths: Numbers, by_zero: float = math.inf) -> Numbers:
    """Divides a bound by non-negative lengths; the result for length 0 is `by_zero`."""
    return np.divide(bound, lengths, out=np.full(lengths.shape, by_zero), where=lengths > 0)


def invert(lengths: Numbers) -> npt.NDArray[np.float32]:
    """Returns factors that scale rows of these norms to norm 1; 1 for norms near 0."""
    return np.asarray(1 / np.where(lengths >= 1e-20, lengths, 1.0), dtype=np.float32)


class Rows(NamedTuple):
    """Normalised rows: scale[i] * features[i] - shift[i] * centre, all float32.

    `lengths` are float64; rows that are not `usable` count as null rows.
    """

    features: npt.NDArray[np.float32]
    scale: npt.NDArray[np.float32]
    shift: npt.NDArray[np.float32]
    centre: npt.NDArray[np.float32]
    lengths: Numbers
    usable: npt.NDArray[np.bool_]

    def scaled(self, scale: npt.NDArray[Any], shift: npt.NDArray[Any]) -> Numbers:
        """Returns the rows, float64 [rows, d], normalised with other scales and shifts."""
        features, centre = self.features.astype(np.float64), self.centre.astype(np.float64)
        moved = shift.astype(np.float64)[:, None] * centre
        return np.asarray(scale.astype(np.float64)[:, None] * features - moved)

    def multiplied(self) -> Rows:
        """Returns the rows with their scales multiplied into float32 features."""
        if self.shift.any():
            return self
        return self._replace(
            features=self.features * self.scale[:, None], scale=np.ones_like(self.scale)
        )

    def with_features(self, features: Numbers) -> Rows:
        features = np.where(self.usable[:, None], features.reshape(self.features.shape), 0)
        return self._replace(features=features.astype(np.float32), lengths=norms_of(features))


def plain_rows(features: npt.NDArray[np.float32]) -> Rows:
    """Returns unnormalised rows; rows with NaN, infinite, huge or tiny numbers become null rows."""
    with np.errstate(invalid="ignore", over="ignore"):
        lengths = norms_of(features)
        usable = (lengths <= 1e18) & ((lengths == 0) | (lengths >= 1e-20))
    ones, zeros = np.ones(len(features), np.float32), np.zeros(len(features), np.float32)
    centre = np.zeros(features.shape[1], np.float32)
    rows = Rows(features, ones, zeros, centre, lengths, usable)
    return rows.with_features(np.where(usable[:, None], features, np.float32(0)))


def unit_rows(rows: Rows) -> Rows:
    scale = invert(rows.lengths)
    return rows._replace(scale=scale, lengths=rows.lengths * scale)


def centred_rows(rows: Rows, centre: npt.NDArray[np.float32]) -> Rows:
    """Scales rows to norm 1, subtracts the centre, and scales them again."""
    unit = invert(rows.lengths)
    distances = norms_of(rows.features * unit[:, None] - centre)
    shift = np.where(rows.usable, np.minimum(invert(distances), np.float32(2.0**40)), np.float32(0))
    lengths = distances * shift
    return rows._replace(scale=unit * shift, shift=shift, centre=centre, lengths=lengths)


class Clipped(NamedTuple):
    """Clipped rows with a constant, of norm at most `longest`: see `heads.clipped_row_options`."""

    rows: Rows
    scale: npt.NDArray[np.float32]
    shift: npt.NDArray[np.float32]
    constant: npt.NDArray[np.float32]
    norms: Numbers

    def entries(self, step: float, *, unit: bool = False) -> Numbers:
        """Returns rows and constants in steps [rows, d + 1]; `unit` divides by the rows' norms."""
        factor = divide(1 - SHORT, self.norms, by_zero=0.0) if unit else np.float32(1)
        scale, shift, constant = (
            np.asarray(each * factor, dtype=np.float32)
            for each in (self.scale, self.shift, self.constant)
        )
        values = self.rows.scaled(scale / step, shift / step)
        return np.trunc(np.hstack([values, constant[:, None] / step]))


def clip_rows(rows: Rows, n: int, clip: float, intercept: float, longest: float) -> Clipped:
    step = power_of_two(longest, entry_bits(n))
    offset = math.trunc(intercept * clip * (1 - SHORT) / step) * step
    lengths = rows.lengths
    if rows.shift.any():
        lengths = lengths + 2.0**-21 * (1 + float(norms_of(rows.centre[None])[0])) * rows.shift
    factors = np.minimum(divide(clip * (1 - SHORT), lengths), 1.0) * rows.usable
    scale, constant = factors.astype(np.float32), np.float32(offset) * rows.usable
    norms = np.hypot(lengths * factors, constant)
    return Clipped(rows, scale * rows.scale, scale * rows.shift, constant, norms)


def subtract_labels(logits: Numbers, hot: Any, *, sigmoid: bool) -> Numbers:
    """Returns probabilities minus labels."""
    if sigmoid:
        return np.asarray(np.exp(-np.logaddexp(0, -logits)) - hot)
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True) - hot)


def clip_factors(
    residuals: Numbers, norms: Numbers, shares: Numbers, clip: float, step: float
) -> Numbers:
    """Returns the factors [rows, K] of gradients clipped to `clip`, in steps."""
    bounds = divide(clip, norms_of(residuals) * norms)
    return np.trunc(residuals * (np.minimum(bounds, 1.0) * shares * norms / step)[:, None])
