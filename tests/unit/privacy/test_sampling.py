"""Poisson batches and their seeds."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpprobe.errors import PrivacyError
from dpprobe.privacy.keystream import Keystream
from dpprobe.privacy.randomness import cell_seed, open_stream, stream_seed
from dpprobe.privacy.sampling import ExactPoissonSampler, PoissonSampler, Sampler
from tests.support.poisson_batches import poisson_batches


def make_sampler(exact: bool, rows: int, rate: float) -> Sampler:
    if exact:
        return ExactPoissonSampler(rows, rate, Keystream.from_seed(1, "s"))
    return PoissonSampler(rows, rate, open_stream(1, "sampling"))


def indicator(exact: bool, rows: int, rate: float, steps: int) -> np.ndarray:
    """Returns how often each row joined each batch, [steps, rows]."""
    hits, sizes = make_sampler(exact, rows, rate).draw_block(steps)
    joined = np.zeros((steps, rows))
    np.add.at(joined, (np.repeat(np.arange(steps), sizes), hits), 1)
    assert joined.max() <= 1
    return joined


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(("rows", "rate"), [(50, 0.02), (70, 0.3), (20, 0.5), (64, 0.9), (7, 0.9)])
def test_every_row_joins_at_the_rate(exact: bool, rows: int, rate: float) -> None:
    steps = 20_000
    joined = indicator(exact, rows, rate, steps)
    deviation = (rate * (1 - rate) / steps) ** 0.5
    assert np.abs(joined.mean(0) - rate).max() < 5 * deviation
    # Batch sizes are binomial; with a shuffled, fixed-size loader they would not vary.
    sizes = joined.sum(1)
    wanted = rows * rate * (1 - rate)
    assert sizes.var() == pytest.approx(wanted, rel=0.06)


@pytest.mark.parametrize("exact", [False, True])
def test_rows_and_steps_are_independent(exact: bool) -> None:
    steps, rate = 40_000, 0.1
    joined = (indicator(exact, 12, rate, steps) - rate) / (rate * (1 - rate)) ** 0.5
    between_rows = joined.T @ joined / steps
    np.fill_diagonal(between_rows, 0)
    assert np.abs(between_rows).max() < 5 / steps**0.5
    flat = joined.ravel()
    for lag in (1, 2, 11, 12, 13, 24):  # the next row, the same row one and two steps later
        assert abs(np.mean(flat[:-lag] * flat[lag:])) < 5 / flat.size**0.5


THIRD = [np.nextafter(1 / 3, 0), 1 / 3, np.nextafter(1 / 3, 1)]  # NumPy's algorithm changes here


@pytest.mark.parametrize("rate", [1e-4, 0.02, *THIRD, 0.9, 1.0])
def test_distances_between_hits_are_numpys_geometric_variables(rate: float) -> None:
    hits, sizes = PoissonSampler(1000, rate, np.random.default_rng(4)).draw_block(500)
    wanted = np.cumsum(np.random.default_rng(4).geometric(rate, size=2 * len(hits) + 9)) - 1
    wanted = wanted[wanted < 500_000]
    assert len(wanted) > 20
    np.testing.assert_array_equal(hits + np.repeat(np.arange(500), sizes) * 1000, wanted)


def test_no_row_joins_a_batch_twice_whatever_is_drawn() -> None:
    """An exponential variable of 53 bits is sometimes 0."""

    class Zeros:
        def standard_exponential(self, size: int) -> np.ndarray:
            return np.zeros(size)

    sampler = PoissonSampler(5, 0.3, Zeros())  # type: ignore[arg-type]
    rows, sizes = sampler.draw_block(3)
    np.testing.assert_array_equal(rows, np.tile(np.arange(5), 3))
    np.testing.assert_array_equal(sizes, [5, 5, 5])
    assert not PoissonSampler(5, 1e-300, np.random.default_rng(4)).draw_block(3)[1].any()


def test_no_steps_draw_no_batches() -> None:
    sampler, other = (PoissonSampler(10, 0.3, np.random.default_rng(4)) for _ in range(2))
    assert [len(part) for part in sampler.draw_block(0)] == [0, 0]
    for actual, wanted in zip(sampler.draw_block(7), other.draw_block(7), strict=True):
        np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize("rate", [1e-15, 1e-300])
def test_a_tiny_sampling_rate_draws_no_rows(rate: float) -> None:
    sampler = PoissonSampler(10**6, rate, np.random.default_rng(4))
    assert sum(len(sampler.draw_block(1000)[0]) for _ in range(20)) == 0


@given(
    rows=st.integers(1, 200),
    rate=st.floats(1e-4, 1.0),
    steps=st.integers(1, 60),
    block=st.integers(1, 60),
    seed=st.integers(0, 2**128 - 1),
)
@settings(max_examples=80)
def test_batches_do_not_depend_on_blocks(
    rows: int, rate: float, steps: int, block: int, seed: int
) -> None:
    one = list(poisson_batches(rows, rate, steps, open_stream(seed, "s"), block=1))
    other = list(poisson_batches(rows, rate, steps, open_stream(seed, "s"), block=block))
    assert len(one) == len(other) == steps
    for first, second in zip(one, other, strict=True):
        np.testing.assert_array_equal(first, second)
        assert np.all(np.diff(first) > 0)
        assert first.size == 0 or 0 <= first[0] <= first[-1] < rows


def test_a_block_of_a_large_dataset_needs_no_mask() -> None:
    rows, sizes = PoissonSampler(10**12, 1e-10, open_stream(3, "s")).draw_block(50)
    assert sizes.sum() == rows.size
    assert 50 * 100 - 400 < rows.size < 50 * 100 + 400


# --- exact draws ---------------------------------------------------------------------------------


class Words(Keystream):
    """A keystream of given words, followed by zeros."""

    def __init__(self, words: list[int]) -> None:
        super().__init__(bytes(32), "given")
        self._given = words

    def fill_words(self, out: np.ndarray) -> None:
        taken, self._given = self._given[: len(out)], self._given[len(out) :]
        out[:] = np.array(taken + [0] * (len(out) - len(taken)), dtype=np.uint64)


@given(
    rate=st.one_of(st.floats(1e-3, 1 - 2**-53), st.sampled_from([0.5, 0.75, 2.0**-9, 1 - 2**-53])),
    rows=st.integers(1, 64),
    seed=st.integers(0, 2**32),
    agreeing=st.integers(0, 60),
)
@settings(max_examples=100)
def test_a_row_joins_if_its_number_is_below_the_rate(
    rate: float, rows: int, seed: int, agreeing: int
) -> None:
    """Compares as fractions, even if the first digits of all rows equal the rate's digits."""
    words = np.random.default_rng(seed).integers(0, 2**64, 80, dtype=np.uint64).tolist()
    length = Fraction(rate).denominator.bit_length() - 1
    for place in range(min(agreeing, length)):
        words[place] = (2**64 - 1) * (math.floor(Fraction(rate) * 2 ** (place + 1)) & 1)
    actual, sizes = ExactPoissonSampler(rows, rate, Words(words)).draw_block(1)
    numbers = [
        sum((Fraction(words[k] >> row & 1, 2 ** (k + 1)) for k in range(length)), Fraction(0))
        for row in range(rows)
    ]
    assert actual.tolist() == [row for row in range(rows) if numbers[row] < Fraction(rate)]
    assert sizes.tolist() == [len(actual)]


@pytest.mark.parametrize("rate", [0.5, 0.3, 32 / 50_000, 0.9999, 2.0**-60])
@pytest.mark.parametrize("rows", [63, 64, 65, 1000, 9000])
def test_64_rows_share_words_until_all_are_decided(
    rate: float, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compares digit by digit and word by word, over several batches and reads of the keystream."""
    monkeypatch.setattr("dpprobe.privacy.sampling.WORDS_AT_ONCE", 100)
    length = Fraction(rate).denominator.bit_length() - 1
    words = iter(Keystream.from_seed(3, "s").draw_words(200_000).tolist())
    sampler = ExactPoissonSampler(rows, rate, Keystream.from_seed(3, "s"))
    for _ in range(60 if rows < 9000 else 2):
        batch: list[int] = []
        for start in range(0, rows, 64):
            undecided = set(range(start, min(start + 64, rows)))
            for place in range(length):
                word, digit = next(words), math.floor(Fraction(rate) * 2 ** (place + 1)) & 1
                unlike = {row for row in undecided if (word >> (row - start) & 1) != digit}
                batch += unlike if digit else []
                undecided -= unlike
                if not undecided:
                    break
        assert sampler.draw_block(1)[0].tolist() == sorted(batch)


def test_exact_batches_do_not_depend_on_blocks() -> None:
    one, other = (ExactPoissonSampler(5000, 0.3, Keystream.from_seed(7, "s")) for _ in range(2))
    hits, sizes = one.draw_block(40)
    parts = [other.draw_block(steps) for steps in (1, 7, 32)]
    np.testing.assert_array_equal(hits, np.concatenate([part for part, _ in parts]))
    np.testing.assert_array_equal(sizes, np.concatenate([part for _, part in parts]))
    for batch in np.split(hits, np.cumsum(sizes)[:-1]):
        assert np.all(np.diff(batch) > 0)
        assert 0 <= batch[0] <= batch[-1] < 5000


def test_the_ends_of_exact_rates() -> None:
    hits, sizes = ExactPoissonSampler(70, 1.0, Keystream.from_seed(7, "s")).draw_block(2)
    assert hits.tolist() == [*range(70), *range(70)]
    assert sizes.tolist() == [70, 70]
    hits, sizes = ExactPoissonSampler(70, 2.0**-1074, Keystream.from_seed(7, "s")).draw_block(3)
    assert (hits.size, sizes.tolist()) == (0, [0, 0, 0])
    for rows, rate in ((0, 0.5), (5, 0.0), (5, 1.5), (5, math.nan)):
        for kind in (PoissonSampler, ExactPoissonSampler):
            with pytest.raises(PrivacyError, match="sampler"):
                kind(rows, rate, None)  # type: ignore[arg-type]


def test_seeds_derive_from_the_whole_identity() -> None:
    base = {"dataset": "digits", "epsilon": "1", "options": {"learning_rate": 0.1}}
    seeds = {cell_seed(base, index) for index in range(100)}
    assert len(seeds) == 100
    assert cell_seed(dict(reversed(base.items())), 3) == cell_seed(base, 3)
    assert cell_seed({**base, "epsilon": "2"}, 3) not in seeds
    assert max(seeds).bit_length() > 120


def test_streams_of_a_seed_are_apart() -> None:
    draws = [open_stream(7, name).random(4).tolist() for name in ("noise", "sampling", "init")]
    draws.append(open_stream(8, "noise").random(4).tolist())
    assert len({tuple(draw) for draw in draws}) == 4
    assert open_stream(7, "noise").random(4).tolist() == draws[0]
    # Seeds that share their low 32 bits are still different seeds.
    assert open_stream(7 + 2**32, "noise").random() != open_stream(7, "noise").random()
    assert 0 <= stream_seed(2**128 - 1, "noise") < 2**64
    with pytest.raises(PrivacyError, match="128 bits"):
        open_stream(2**128, "noise")


@pytest.mark.parametrize(("rows", "rate"), [(50, 0.02), (30, 0.3), (7, 0.9), (5, 1.0)])
@pytest.mark.parametrize("taken", [0, 1, 9])
def test_a_sampler_continues_from_a_state(rows: int, rate: float, taken: int) -> None:
    first = PoissonSampler(rows, rate, open_stream(1, "sampling"))
    for _ in range(taken):
        first.draw_block(1)
    state = json.loads(json.dumps(first.copy_state()))
    ahead = [first.draw_block(1)[0].tolist() for _ in range(40)]
    again = PoissonSampler(rows, rate, open_stream(2, "sampling"))
    again.draw_block(3)
    again.restore_state(state)
    assert [again.draw_block(1)[0].tolist() for _ in range(40)] == ahead
