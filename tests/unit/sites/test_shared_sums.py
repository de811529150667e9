"""A site adds its share of the noise to its sums, once per release, and takes totals as given."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from dpprobe.errors import PrivacyError
from dpprobe.privacy.keystream import Keystream
from dpprobe.privacy.noise_shares import split_noise
from dpprobe.privacy.rounded_gaussian import RoundedGaussian
from dpprobe.sites.shared_sums import SharedSums, Sum, SumsMissing, add_sums

SITES, TRIALS, DEVIATION = 3, 40_000, 5_000.0
FACTS: dict[str, Any] = {"step": 0.5, "deviation": DEVIATION, "symmetric": False}


def open_noise(_place: int, _exact: Sum) -> RoundedGaussian:
    return RoundedGaussian(Keystream.from_system("test"))


def ask(
    local: np.ndarray, share: Callable[[float], float], totals: Any = (), **options: Any
) -> tuple[Sum, ...]:
    """The numbers of a site that is asked for one sum."""
    shared = SharedSums(totals, open_noise=open_noise, share=share)
    with pytest.raises(SumsMissing) as caught:
        shared.add_up("sums", local, **(FACTS | options))
    return caught.value.sums


def attack(total: np.ndarray, shift: float) -> float:
    """Balanced accuracy of the best guess, by likelihood ratio, whether a unit moved each number.

    It moved those of the second half.
    """
    guessed = total > shift / 2
    half = len(total) // 2
    return float((guessed[half:].mean() + 1 - guessed[:half].mean()) / 2)


@pytest.mark.parametrize("colluders", [1, 2])
def test_what_colluders_can_subtract_leaves_the_noise_that_is_priced(colluders: int) -> None:
    """The server and the colluders pool all: the advantage stays at that of mu; one more and it
    is above."""
    mu, half = 1.0, TRIALS // 2
    shift = mu * DEVIATION

    def share(deviation: float) -> float:
        return split_noise(deviation, SITES, colluders)

    sums = [np.zeros(TRIALS, dtype=np.int64) for _ in range(SITES)]
    sums[-1][half:] = round(shift)
    sent = [ask(each, share)[0] for each in sums]
    total = add_sums(sent).numbers.astype(float)
    rest = total - sum(each.numbers.astype(float) for each in sent[:colluders])
    allowed, tolerance = norm.cdf(mu / 2), 4 * 0.5 / math.sqrt(TRIALS)
    assert attack(total, shift) < allowed
    assert abs(attack(rest, shift) - allowed) < tolerance
    if colluders + 1 < SITES:
        less = rest - sent[colluders].numbers
        assert attack(less, shift) > allowed + 2 * tolerance


def test_an_aggregator_adds_all_noise_and_the_others_none() -> None:
    local = np.arange(TRIALS, dtype=np.int64)
    (alone,) = ask(local, lambda deviation: deviation)
    (other,) = ask(local, lambda _: 0.0)
    np.testing.assert_array_equal(other.numbers, local)
    assert abs((alone.numbers - local).std() / DEVIATION - 1) < 0.02


def test_the_noise_of_a_symmetric_sum_is_isometric_and_its_triangle_is_sent() -> None:
    size = 200
    local = np.zeros((size, size), dtype=np.int64)
    (sent,) = ask(local, lambda deviation: deviation, symmetric=True)
    assert sent.numbers.size == size * (size + 1) // 2
    matrix = np.zeros((size, size))
    matrix[np.triu_indices(size)] = sent.numbers
    above = matrix[np.triu_indices(size, 1)]
    assert abs(above.std() * math.sqrt(2) / DEVIATION - 1) < 0.03
    assert abs(np.diagonal(matrix).std() / DEVIATION - 1) < 0.25
    shared = SharedSums([sent] * 2, open_noise=open_noise, share=lambda deviation: deviation)
    total = shared.add_up("sums", local, **(FACTS | {"symmetric": True}))
    assert shared.smallest_share == DEVIATION / math.sqrt(2)
    shared.add_up("sums", local, **(FACTS | {"symmetric": True, "deviation": DEVIATION}))
    assert shared.coordinates == size * (size + 1)
    np.testing.assert_array_equal(total, total.T)
    np.testing.assert_array_equal(total[np.triu_indices(size)], sent.numbers)


def test_totals_are_taken_as_they_are_and_the_rows_do_not_matter() -> None:
    total = Sum(name="sums", numbers=np.arange(4), **FACTS)
    for local in (np.zeros(4, dtype=np.int64), np.full(4, 9)):
        shared = SharedSums([total], open_noise=open_noise, share=lambda _: 100.0)
        answer = shared.add_up("sums", local, **FACTS)
        np.testing.assert_array_equal(answer, np.arange(4))


@pytest.mark.parametrize("changes", [{"step": 0.25}, {"name": "others"}, {"numbers": np.arange(5)}])
def test_totals_of_another_fit_are_refused(changes: dict[str, Any]) -> None:
    facts = {"name": "sums", "numbers": np.arange(4), **FACTS, **changes}
    shared = SharedSums([Sum(**facts)], open_noise=open_noise, share=lambda _: 100.0)
    with pytest.raises(PrivacyError, match="total 1 of the sites is .* but this fit needs sums"):
        shared.add_up("sums", np.zeros(4, dtype=np.int64), **FACTS)


def test_sums_that_do_not_depend_on_each_other_are_asked_for_together() -> None:
    zeros = np.zeros(2, dtype=np.int64)
    names = ("mean", "gram", "targets", "gradients")

    def run(totals: list[Sum], together: set[str]) -> list[str]:
        shared = SharedSums(totals, open_noise=open_noise, share=lambda _: 100.0, together=together)
        try:
            for name in names:
                shared.add_up(name, zeros.copy(), **FACTS)
        except SumsMissing as missing:
            return [each.name for each in missing.sums]
        return []

    known = {name: Sum(name=name, numbers=zeros, **FACTS) for name in names}
    assert run([], {"gram", "targets"}) == ["mean"]
    assert run([known["mean"]], {"gram", "targets"}) == ["gram", "targets"]
    assert run([known["mean"]], set()) == ["gram"]
    assert run([known[name] for name in ("mean", "gram", "targets")], set()) == ["gradients"]
    assert run([*known.values()], set()) == []


@pytest.mark.parametrize(("share", "symmetric"), [(15.0, False), (20.0, True)])
def test_noise_too_fine_for_the_price_is_refused(share: float, symmetric: bool) -> None:
    shared = SharedSums([], open_noise=open_noise, share=lambda _: share)
    zeros, facts = np.zeros((2, 2), dtype=np.int64), {"deviation": 9.0, "symmetric": symmetric}
    with pytest.raises(PrivacyError, match="noise of sums is .* steps of the grid: at least 16"):
        shared.add_up("sums", zeros, **(FACTS | facts))
