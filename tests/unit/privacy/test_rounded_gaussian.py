"""The rounded Gaussian: its probabilities, bits and samples against proofs and references."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, cast

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath.calculus.quadrature import GaussLegendre  # type: ignore[import-untyped]

from dpprobe.errors import PrivacyError
from dpprobe.privacy import rounded_gaussian
from dpprobe.privacy.keystream import Keystream, Words
from dpprobe.privacy.rounded_gaussian import (
    BLOCK,
    CHOICE_BITS,
    FLOOR_CELLS,
    LARGEST_DEVIATION,
    POSITION_BITS,
    SHARE_BITS,
    STRIP_BITS,
    STRIPS,
    RoundedGaussian,
    compute_density,
    compute_table,
    exp_bounds,
    further_piece,
    round_product,
)

TABLE = compute_table()
DIGITS = 50
TAIL, NOTHING = STRIPS, STRIPS + 1
DEVIATIONS = [0.01, 0.3, 1.0, 7.5, 1e3, 2.0**20, 1.7 * 2.0**35, 2.0**40]
ENDS = [5e-324, 1e-300, 2.0**-6, 2.0**47.5, LARGEST_DEVIATION]


def drawn(size: int, deviation: float, seed: int = 1, name: str = "noise") -> Any:
    return RoundedGaussian(Keystream.from_seed(seed, name)).draw_numbers(size, deviation)


def exact_density(x: Any) -> Any:
    """Returns f(x), computed by mpmath."""
    return TABLE.scale * mpmath.exp(-(mpmath.mpf(x) ** 2) / 2)


# Parts of the proof.


def test_floors_and_ceilings_enclose_the_density() -> None:
    """The density falls, so a strip's ends suffice; the comparison has 50 digits."""
    with mpmath.workdps(DIGITS):
        edges = [exact_density(mpmath.mpf(strip) / 2**STRIP_BITS) for strip in range(STRIPS + 1)]
        for strip in range(STRIPS):
            assert 0 <= TABLE.floors[strip] <= edges[strip + 1]
            assert edges[strip] <= TABLE.ceilings[strip] < edges[strip] + 1
            assert TABLE.floors[strip] > edges[strip + 1] - 2**SHARE_BITS
        assert edges[STRIPS] <= TABLE.ceilings[STRIPS]


def test_cells_of_the_tail_are_enclosed() -> None:
    """From each strip to the next the density is multiplied by at most exp(-8.5)."""
    with mpmath.workdps(DIGITS):
        for strip in range(60):
            assert exact_density(8 + strip) <= mpmath.mpf(TABLE.ceilings[STRIPS]) / 2**strip
    assert math.exp(-8.5) < 0.5


def test_pieces_fill_two_to_the_64_exactly() -> None:
    rests = [TABLE.ceilings[strip] - TABLE.floors[strip] for strip in range(STRIPS)]
    tail = 2 * TABLE.ceilings[STRIPS] << STRIP_BITS  # strips of width 1 under E, E / 2, E / 4, ...
    assert sum(TABLE.floors) + sum(rests) + tail + TABLE.nothing == 2**64
    assert 0 <= TABLE.nothing < 2**10
    assert all(size > 0 for size in rests)


def test_the_first_bits_choose_each_floor_in_exact_proportion_to_its_weight() -> None:
    chosen = np.bincount(TABLE.shares[: TABLE.settled], minlength=STRIPS).tolist()
    assert [count << SHARE_BITS for count in chosen] == list(TABLE.floors)
    assert len(TABLE.shares) == 2**CHOICE_BITS
    assert not any(TABLE.floors[FLOOR_CELLS:])


def test_further_words_choose_each_rest_exactly_as_often_as_it_weighs() -> None:
    """Tests the values next to every boundary that the first bits leave open."""
    sizes = [TABLE.ceilings[strip] - TABLE.floors[strip] for strip in range(STRIPS)]
    sizes += [2 * TABLE.ceilings[STRIPS] << STRIP_BITS, TABLE.nothing]
    ends = list(itertools.accumulate(sizes))
    assert ends[-1] == (2**CHOICE_BITS - TABLE.settled) << SHARE_BITS
    marks = [mark << 47 for mark in range(len(TABLE.guide))]
    assert len(TABLE.guide) << 47 == ends[-1]
    assert SHARE_BITS - 3 == 47
    for value in {mark + step for mark in (*ends, *marks) for step in (-1, 0, 1)}:
        if not 0 <= value < ends[-1]:
            continue
        piece = further_piece(np.uint64(value), TABLE.guide, TABLE.ends)
        assert piece == bisect.bisect_right(ends, value)
        if piece < STRIPS:
            height = (value + int(TABLE.offsets[piece])) % 2**64
            start = ends[piece] - sizes[piece]
            assert height == TABLE.floors[piece] + value - start
            assert TABLE.floors[piece] <= height < TABLE.ceilings[piece]


def test_probabilities_equal_those_of_a_rounded_normal() -> None:
    """The accepted area between half integers has its share of the whole, to 40 digits.

    In strip j, the area is floor_j times the width, plus the integral of f - floor_j.
    """
    with mpmath.workdps(DIGITS):
        for deviation in (0.3, 1.0, 7.5):
            last = 4 if deviation < 1 else 9
            halves = [(k + mpmath.mpf(1) / 2) / mpmath.mpf(deviation) for k in range(last)]
            area = accepted_area(halves)
            total = 2 * area[-1]
            for k in range(last):
                mass = 2 * area[0] if k == 0 else area[k] - area[k - 1]
                wanted = mpmath.ncdf(halves[k]) - mpmath.ncdf(halves[k - 1] if k else -halves[0])
                assert abs(mass / total - wanted) < mpmath.mpf(10) ** -40


def above(floor: Any, x: Any) -> Any:
    return exact_density(x) - floor


def accepted_area(ends: Sequence[Any]) -> list[Any]:
    """Returns the accepted areas from 0 to each of the sorted ends, and to infinity."""
    cuts = sorted({mpmath.mpf(strip) / 2**STRIP_BITS for strip in range(STRIPS + 1)} | set(ends))
    sums, total = {}, mpmath.mpf(0)
    for left, right in itertools.pairwise(cuts):
        if right <= 8:
            strip = int(mpmath.floor(left * 2**STRIP_BITS))
            floor = mpmath.mpf(TABLE.floors[strip])
            rest = gauss_legendre(partial(above, floor), left, right)
            total += floor * (right - left) + rest
        else:
            total += gauss_legendre(exact_density, left, right)
        sums[right] = total
    tail = [
        gauss_legendre(exact_density, mpmath.mpf(k) / 4, mpmath.mpf(k + 1) / 4)
        for k in range(4 * math.ceil(cuts[-1]), 4 * 20)
    ]
    if cuts[-1] != math.ceil(cuts[-1]):
        tail.append(gauss_legendre(exact_density, cuts[-1], mpmath.mpf(math.ceil(cuts[-1]))))
    return [*(sums[end] for end in ends), total + sum(tail)]


@functools.cache
def nodes() -> list[tuple[Any, Any]]:
    """Returns 48 points of Gauss-Legendre quadrature on [-1, 1]."""
    nodes: list[tuple[Any, Any]] = GaussLegendre(mpmath.mp).calc_nodes(5, 200)
    return nodes


def gauss_legendre(function: Callable[[Any], Any], left: Any, right: Any) -> Any:
    middle, half = (left + right) / 2, (right - left) / 2
    return half * sum(weight * function(middle + half * x) for x, weight in nodes())


@pytest.mark.parametrize("bits", [10, 128, 500])
@pytest.mark.parametrize(
    "exponent",
    [Fraction(0), Fraction(1, 2**100), Fraction(1, 8192), Fraction(32), Fraction(5001, 7)],
)
def test_exponentials_are_enclosed(exponent: Fraction, bits: int) -> None:
    low, high = exp_bounds(exponent, bits)
    with mpmath.workdps(400):
        exact = 2**bits * mpmath.exp(-mpmath.mpf(exponent.numerator) / exponent.denominator)
        assert low <= exact <= high
    assert high - low <= 2


def test_the_density_s_series_is_far_within_its_margin() -> None:
    generator = np.random.default_rng(1)
    last = 2**POSITION_BITS - 1
    with mpmath.workdps(DIGITS):
        for strip in (0, 1, *generator.integers(2, STRIPS, 300).tolist(), STRIPS - 1):
            for position in (0, int(generator.integers(last)), last):
                x = (strip + mpmath.mpf(position) / 2**POSITION_BITS) / 2**STRIP_BITS
                value = compute_density(np.uint64(strip), np.uint64(position), TABLE.tops)
                assert abs(value / exact_density(x) - 1) < 2.0**-48


@given(
    st.integers(2**52, 2**53 - 1),
    st.integers(66, 190) | st.sampled_from([127, 128, 129]),
    st.integers(0, 2**58 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
)
def test_192_bit_integers_are_exact(
    factor: int, shift: int, upper: int, lower: int, further: int
) -> None:
    exact = (factor * ((upper << 64) + lower) + further + (1 << shift - 1)) >> shift
    words = (np.uint64(word) for word in (factor, shift, upper, lower, further))
    assert int(round_product(*words)) == exact % 2**64


# Single draws, compared only with whole numbers and mpmath.


class Reference:
    """Computes numbers slowly: finds a word's piece in one list, takes a point, and rounds it."""

    def __init__(self, further: Iterator[int], deviation: float) -> None:
        self._further = further
        self._over, self._under = deviation.as_integer_ratio()
        self.anew = 0

    def number(self, word: int) -> int:
        while (number := self._attempt(word)) is None:
            self.anew += 1
            word = next(self._further)
        return number

    def _attempt(self, word: int) -> int | None:
        value = word % 2**CHOICE_BITS << SHARE_BITS
        if value >= PIECES[STRIPS - 1]:
            value += next(self._further) >> CHOICE_BITS
        piece = bisect.bisect_right(PIECES, value)
        x, places = word >> CHOICE_BITS + 1, POSITION_BITS
        if piece < 2 * STRIPS:
            x += piece % STRIPS << POSITION_BITS
            places += STRIP_BITS
        if piece >= STRIPS:
            if piece == 2 * STRIPS + 1:
                return None
            if piece == 2 * STRIPS:
                halvings, zeros = 0, next(self._further)
                while zeros % 2 == 0:
                    halvings += 64 if zeros == 0 else 1
                    zeros = zeros // 2 or next(self._further)
                x += 8 + halvings << places
                y, below = value - PIECES[piece - 1] >> STRIP_BITS + 1, halvings
            else:
                strip = piece - STRIPS
                y, below = TABLE.floors[strip] + value - PIECES[piece - 1], 0
            while not under(y + 1, below, x + 1, places):
                if not under(y, below, x, places):
                    return None
                x, places = (x << 64) + next(self._further), places + 64
                y, below = (y << 64) + next(self._further), below + 64
        while (least := self._rounded(x, places, 0)) != self._rounded(x + 1, places, 1):
            x, places = (x << 64) + next(self._further), places + 64
        return -least if word >> CHOICE_BITS & 1 else least

    def _rounded(self, x: int, places: int, excluded: int) -> int:
        """Returns the integer nearest to deviation x, or to values just below if x is excluded."""
        doubled = 2 * self._over * x + (self._under << places) - excluded
        return doubled // (2 * self._under << places)


# Ends of the floors, the rests, the tail and the remainder that gives no number.
RESTS = [ceiling - floor for ceiling, floor in zip(TABLE.ceilings, TABLE.floors, strict=False)]
PIECES = [
    *itertools.accumulate(
        [*TABLE.floors, *RESTS, 2 * TABLE.ceilings[STRIPS] << STRIP_BITS, TABLE.nothing]
    )
]


@functools.cache
def under(y: int, below: int, x: int, places: int) -> bool:
    """Decides if y / 2^below < f(x / 2^places), to 120 digits, which is enough in all tests."""
    with mpmath.workdps(120):
        height = exact_density(mpmath.mpf(x) / 2**places)
        difference = height - mpmath.mpf(y) / mpmath.mpf(2) ** below
        assert x == 0 or abs(difference) > height * mpmath.mpf(10) ** -110
        return bool(difference > 0)


@pytest.mark.parametrize(
    ("deviation", "count"),
    [*((deviation, 200_000) for deviation in DEVIATIONS), *((end, 20_000) for end in ENDS)],
)
def test_every_number_equals_exact_arithmetic_on_its_words(deviation: float, count: int) -> None:
    words, further = (
        Keystream.from_seed(17, "noise").make_part(name).draw_words(count).tolist()
        for name in ("words", "further words")
    )
    reference = Reference(iter(further), deviation)
    wanted = [reference.number(word) for word in words]
    assert reference.anew > count / 200
    np.testing.assert_array_equal(drawn(count, deviation, seed=17), wanted)


# Chosen words, for cases that are too rare to occur by chance.


class Script:
    """A keystream of chosen words, followed by random ones."""

    def __init__(self, words: Sequence[int], further: Sequence[int]) -> None:
        rest = Keystream.from_seed(99, "the rest").draw_words(4096).tolist()
        self.lists = {"words": [*words, *rest], "further words": [*further, *rest]}

    def make_part(self, name: str) -> Part:
        return Part(self.lists[name])


class Part:
    def __init__(self, words: list[int]) -> None:
        self._words = iter(words)

    def draw_words(self, count: int) -> Words:
        return np.array(list(itertools.islice(self._words, count)), dtype=np.uint64)

    def fill_words(self, out: Words) -> None:
        out[:] = self.draw_words(out.size)


def scripted(word: int, further: Sequence[int], deviation: float) -> int:
    """Checks that sampler and reference agree on a word, at first and after a rejection."""
    nothing = PIECES[2 * STRIPS]
    anew = main_word(nothing, 7), [further_word(nothing), word, *further]
    numbers = set()
    for first, ahead in ((word, further), anew):
        script = Script([first], ahead)
        numbers.add(RoundedGaussian(cast(Keystream, script)).draw_numbers(1, deviation).item())
        reference = Reference(iter(script.lists["further words"]), deviation)
        numbers.add(reference.number(first))
    (number,) = numbers
    return int(number)


def main_word(value: int, position: int, negative: bool = False) -> int:
    """Returns the first word for a value among the pieces."""
    return position << CHOICE_BITS + 1 | negative << CHOICE_BITS | value >> SHARE_BITS


def further_word(value: int) -> int:
    """Returns the second word for a value that the first word's bits leave open."""
    return (value % 2**SHARE_BITS) << CHOICE_BITS


def start_of_floor(strip: int) -> int:
    return PIECES[strip - 1] if strip else 0


def expansion(x: Fraction, count: int) -> tuple[int, int, list[int]]:
    """Returns the digits of x: a strip, a position within it, and further words."""
    digits = math.floor(x * 2 ** (STRIP_BITS + POSITION_BITS + 64 * count))
    words = [digits >> 64 * k & 2**64 - 1 for k in reversed(range(count))]
    strip, position = divmod(digits >> 64 * count, 2**POSITION_BITS)
    return strip, position, words


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("levels", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("deviation", "tie"),
    [(3.0, 1), (1.7, 2), (1e3, 357), (1.3 * 2.0**40, 2**39 + 1), (2.0**48 / 3, 7)],
)
def test_positions_near_a_tie_use_words_until_they_are_decided(
    deviation: float, tie: int, levels: int, negative: bool
) -> None:
    """x agrees with (tie - 1/2) / deviation in all words except the last."""
    middle = (tie - Fraction(1, 2)) / Fraction(deviation)
    strip, position, words = expansion(middle, levels + 1)
    for last, wanted in ((0, tie - 1), (2**64 - 1, tie)):
        further = [*words[:levels], last]
        assert words[levels] not in (0, 2**64 - 1)
        word = main_word(start_of_floor(strip), position, negative)
        number = scripted(word, further, deviation)
        assert number == (-wanted if negative else wanted)


@pytest.mark.parametrize("strip", [0, 1, 64, 200, 300, 450, STRIPS - 1])
@pytest.mark.parametrize("deviation", [0.3, 7.5, 2.0**40])
def test_rests_are_accepted_under_the_density_only(strip: int, deviation: float) -> None:
    """Tests the ends of rests, and heights slightly and far below and above the density."""
    start = PIECES[STRIPS + strip - 1]
    size = PIECES[STRIPS + strip] - start
    for position in (0, 2**POSITION_BITS // 3, 2**POSITION_BITS - 1):
        with mpmath.workdps(DIGITS):
            x = (strip + mpmath.mpf(position) / 2**POSITION_BITS) / 2**STRIP_BITS
            height = int(mpmath.floor(exact_density(x))) - TABLE.floors[strip]
        near = {height + step for step in (-(2**30), -9, -8, -2, -1, 0, 1, 2**30)}
        for offset in {0, size // 2, size - 1, *near}:
            if 0 <= offset < size:
                value = start + offset
                word = main_word(value, position)
                further = [further_word(value), 0, 2**64 - 1, 2**63, 2**62]
                number = scripted(word, further, deviation)
                least = math.floor(deviation * strip / 2**STRIP_BITS)
                if offset < height - 10:
                    assert least <= number <= least + deviation / 2**STRIP_BITS + 1


@pytest.mark.parametrize("strip", [3, 64, 230, 400])
@pytest.mark.parametrize("levels", [0, 1, 2])
def test_heights_near_the_density_use_words_until_they_are_decided(strip: int, levels: int) -> None:
    """The height agrees with the density at x in all words except the last."""
    start, position = PIECES[STRIPS + strip - 1], 123_456_789_012_345
    xs = [0x0123456789ABCDEF, 0xFEDCBA9876543210, 0x5555555555555555][: levels + 1]
    digits = functools.reduce(
        lambda x, word: (x << 64) + word, xs, strip << POSITION_BITS | position
    )
    with mpmath.workdps(120):
        x = mpmath.mpf(digits) / 2 ** (STRIP_BITS + POSITION_BITS + 64 * len(xs))
        height = int(mpmath.floor(exact_density(x) * mpmath.mpf(2) ** (64 * len(xs))))
    ys = [height >> 64 * k & 2**64 - 1 for k in reversed(range(len(xs)))]
    value = start + (height >> 64 * len(xs)) - TABLE.floors[strip]
    for last in (0, 2**64 - 1):
        pairs = list(zip(xs, [*ys[:-1], last], strict=True))
        further = [further_word(value), *itertools.chain.from_iterable(pairs)]
        reference = Reference(iter([*further, *[2**62 + 1] * 9]), 1e6)
        reference.number(main_word(value, position))
        assert reference.anew == (last > 0)
        scripted(main_word(value, position), further, 1e6)


@pytest.mark.parametrize("strip", [0, 1, 2, 5, 20, 64])
def test_the_tail_s_cells(strip: int) -> None:
    """The lowest heights are accepted near a cell's beginning; the highest are always rejected."""
    start, size = PIECES[2 * STRIPS - 1], PIECES[2 * STRIPS] - PIECES[2 * STRIPS - 1]
    geometric = [0] * (strip // 64) + [1 << strip % 64]
    high = [further_word(start + size - 1), *geometric, main_word(0, 0)]
    number = scripted(main_word(start, 2**POSITION_BITS - 1), high, 1000.0)
    assert number == 0
    if strip < 64:  # the density there begins with 58 zero words
        low = [further_word(start), *geometric, *[0] * 150]
        number = scripted(main_word(start, 0, strip % 2 == 1), low, 1000.0)
        assert 1000 * (8 + strip) <= abs(number) <= 1000 * (8 + strip) + 1
        assert (number < 0) == (strip % 2 == 1)


def test_a_restarted_number_uses_no_further_word() -> None:
    for value in (PIECES[2 * STRIPS], 2**64 - 1):
        anew = main_word(start_of_floor(70), 0, True)
        further = [further_word(value), main_word(value, 5), further_word(value), anew]
        assert scripted(main_word(value, 7), further, 64.0) == -70


def test_hard_numbers_among_others_leave_the_others_as_they_are() -> None:
    """Rare numbers are at the edges of passes and blocks; the buffered further words run out."""
    value = PIECES[2 * STRIPS - 1]
    count = 2 * BLOCK + 5
    words = Keystream.from_seed(4, "words").draw_words(count).tolist()
    for index in (0, 1023, 1024, BLOCK - 1, BLOCK, 2 * BLOCK, count - 1):
        words[index] = main_word(value, 0)
    further = Keystream.from_seed(4, "further").draw_words(count).tolist()
    script = Script(words, further)
    numbers = RoundedGaussian(cast(Keystream, script)).draw_numbers(count, 50.0)
    reference = Reference(iter(further), 50.0)
    np.testing.assert_array_equal(numbers, [reference.number(word) for word in words])


# Properties that callers rely on.


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (3, 7), (4, 0)])
@pytest.mark.parametrize("wrong", [None, 0.5, 2.0**53 + 2, -(2.0**53) - 2, math.nan, -math.inf])
def test_integers_are_released_as_multiples_of_a_step(
    shape: tuple[int, int], wrong: float | None
) -> None:
    """Sums may have any layout and size up to the limit; larger or fractional sums are reported."""
    generator = np.random.default_rng(0)
    sums = generator.integers(-(2**20), 2**20, shape[::-1]).astype(float).T
    sums[:1, :1] = -(2.0**53)
    sums[-1:, -1:] = 2.0**53 if wrong is None else wrong
    numbers, out = generator.integers(-99, 99, sums.size), np.empty(sums.size)
    fits = rounded_gaussian.release_integers(sums, numbers, 2.0**53, 0.25, out)
    assert fits == (wrong is None or not sums.size)
    np.testing.assert_array_equal(out, (sums.ravel() + numbers) * 0.25)


@pytest.mark.parametrize("deviation", [7.5, 2.0**40])
def test_numbers_do_not_depend_on_how_many_are_drawn_at_a_time(deviation: float) -> None:
    whole = drawn(70_000, deviation)
    sampler = RoundedGaussian(Keystream.from_seed(1, "noise"))
    sizes = (1, 0, 999, 1024, BLOCK, BLOCK + 1, 3, 2 * BLOCK, 2436)
    parts = [sampler.draw_numbers(size, deviation) for size in sizes]
    np.testing.assert_array_equal(np.concatenate(parts), whole[: sum(sizes)])


@pytest.mark.parametrize("deviation", [0.2, 1e4])
@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_added_noise_equals_drawn_noise(dtype: type, deviation: float) -> None:
    sums: Any = np.arange(300 * 200, dtype=dtype).reshape(300, 200) - 1000
    noise = drawn(sums.size, deviation).reshape(sums.shape)
    assert noise.any()
    wanted = sums + noise
    RoundedGaussian(Keystream.from_seed(1, "noise")).add_to(sums, deviation)
    np.testing.assert_array_equal(sums, wanted)
    RoundedGaussian(Keystream.from_seed(1, "noise")).add_to(sums[:0], 1e4)


def test_streams_are_different_and_each_serves_one_sampler() -> None:
    streams = [("noise", 1), ("noise", 2), ("other", 1)]
    found = [drawn(1000, 1e9, seed, name) for name, seed in streams]
    found += [RoundedGaussian(Keystream.from_system("noise")).draw_numbers(1000, 1e9) for _ in "ab"]
    assert len(np.unique(np.concatenate(found))) == 5000
    np.testing.assert_array_equal(found[0], drawn(1000, 1e9))
    keystream = Keystream.from_seed(1, "noise")
    RoundedGaussian(keystream)
    with pytest.raises(PrivacyError, match="already used"):
        RoundedGaussian(keystream)


def test_invalid_noise_or_sums_are_refused_and_zero_noise_changes_no_sums() -> None:
    sampler, sums = RoundedGaussian(Keystream.from_seed(1, "noise")), np.arange(5.0)
    for wrong in (sums.astype(np.float32), sums.astype(np.int32), np.zeros((4, 4)).T[1:]):
        with pytest.raises(PrivacyError, match="contiguous int64 or float64"):
            sampler.add_to(cast(Any, wrong), 1.0)
    for deviation in (-1.0, math.nan, math.inf, math.nextafter(LARGEST_DEVIATION, math.inf)):
        for call in (partial(sampler.draw_numbers, 1), partial(sampler.add_to, sums)):
            with pytest.raises(PrivacyError, match="between 0 and 2\\^48; use a coarser grid"):
                call(deviation)
    assert not sampler.draw_numbers(100, 0.0).any()
    sampler.add_to(sums, 0.0)
    np.testing.assert_array_equal(sums, np.arange(5.0))
    np.testing.assert_array_equal(sampler.draw_numbers(100, 5.0), drawn(100, 5.0))


def test_a_wrong_gaussian_table_raises_a_privacy_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounded_gaussian, "FLOOR_CELLS", 100)
    with pytest.raises(PrivacyError, match="its table fails its own check"):
        compute_table.__wrapped__()
