"""Lower bounds on epsilon from the scores of an attack, each at a stated confidence.

A run is trained with a canary (in) or with a null row in its place (out), and an attack gives it a
score, higher where it believes the canary in. Nothing private is released here: a guarantee holds
for every data set, so runs are on rows made for the audit. Every bound rejects guarantees: the
epsilon returned is such that, if the mechanism had a smaller one at this delta, scores like these
would come up with a probability of at most 1 - confidence. It says nothing from above.

**Rates.** (epsilon, delta)-DP and a test with true and false positive rates t and f have

    t <= exp(epsilon) f + delta    and    1 - f <= exp(epsilon) (1 - t) + delta

(Kairouz, Oh and Viswanath 2015, theorem 2.1). So a lower bound on t and an upper one on f, by
Clopper and Pearson at half the error each, give a lower bound on epsilon by both lines at once.

**Thresholds** may not be chosen by the scores that are then counted. They are the j-th largest
score of the out runs, for j = 1, 2, 4, ..., fixed by the number of out runs alone. The rate f above
the j-th largest of n is distributed as Beta(j, n - j + 1), or lies below it where scores are tied:
its upper bound is that of Clopper and Pearson for j - 1 of n. Given the out runs the threshold is a
constant to the in runs, which are counted beside it. The error is shared by all j (Bonferroni), and
by the two rates.

**Gaussian mechanisms.** Of mu-GDP, mu >= Phi^-1(1 - f) + Phi^-1(t) (Dong, Roth and Su 2022,
equation 6). Its epsilon at delta is the Gaussian mechanism's. These bounds reject Gaussian
mechanisms of a smaller mu; they are about epsilon where the mechanism is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from dpprobe.errors import ConfigError, DataError
from dpprobe.privacy.accountants import gaussian_epsilon

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Scores = npt.NDArray[np.float64]

# The guesses that `order_statistics` looks at: near the best for epsilons from 0.5 to 10.
_MOST_EXTREME = 0.75
# Fewer guesses than this cannot support a bound worth its share of the error.
_FEWEST_GUESSES = 8
# Cells in the law of an order statistic, of equal probability but for the last.
_CELLS = 1000
# Bounds are searched to this width, relative and below 0.001 absolute; the rejected end returns.
_TOLERANCE = 1e-6
# `gaussian_epsilon` rounds up by at most 1e-12.
_BELOW = 1 - 2e-12

FAMILIES = ("approximate_dp", "gaussian")


def epsilon_lower_bound(
    scores_in: Sequence[float] | npt.ArrayLike,
    scores_out: Sequence[float] | npt.ArrayLike,
    delta: float,
    confidence: float = 0.95,
    method: str = "clopper_pearson",
    *,
    threshold: float | None = None,
    group: int = 1,
) -> float:
    """Computes a lower bound on the epsilon of a mechanism from an attack's scores.

    Methods, with what each assumes beside independent runs:

    - `clopper_pearson`: nothing. Exact intervals of both rates at several thresholds (as Nasr et
      al. 2021, "Adversary instantiation: lower bounds for differentially private machine learning",
      arXiv 2101.04535).
    - `gdp`: the mechanism is a Gaussian one. mu by exact intervals, then epsilon (Nasr et al. 2023,
      "Tight auditing of differentially private machine learning", arXiv 2302.07956).
    - `order_statistics`: it is a Gaussian one, and a fair coin made each run in or out. mu from the
      errors among the most extreme three quarters of the scores (after Xiang et al. 2025, "Tight
      privacy audit in one run", arXiv 2509.08704, with the exact law of these errors).
    - `normal`: parametric. Scores are normal, in and out with the same unknown deviation, as the
      log likelihood ratio of a Gaussian mechanism is. mu by the noncentral t distribution, exact.
    - `one_run`, `one_run_gaussian`: scores may be those of many canaries in one run, each in or out
      by a fair coin: `one_run_lower_bound` of the most extreme guesses, families `approximate_dp`
      and `gaussian`; several numbers of guesses, multiplicity corrected.

    Args:
      scores_in: of runs with the canary; higher says in. Infinite ones are ordered like others,
        and refused by `normal`.
      scores_out: of runs without it.
      delta: of the (epsilon, delta) promise, below 1; 0 only for `clopper_pearson` and `one_run`.
      confidence: the probability that the bound holds, between 0 and 1.
      method: one of the above.
      threshold: fixed beforehand, never by these scores: a score of at least that says in. Takes
        the place of the several thresholds of `clopper_pearson` and `gdp`, and of their correction.
      group: canaries of a run, all in or all out. The bound is on the epsilon of one canary: a
        mechanism of mu is one of `group` mu to them (Dong, Roth and Su 2022, theorem 2.14), an
        (epsilon, delta) one adds up `group` links of a chain of data sets. `clopper_pearson`, `gdp`
        and `normal` alone.

    Returns:
      The bound, finite and at least 0, never rounded up. All but `normal` depend on the scores'
      order alone.

    Raises:
      ConfigError: for a method, a delta, a confidence or a threshold that cannot be.
      DataError: for scores that are empty, NaN or not numbers in a row, or not normal for `normal`.
    """
    if method not in _METHODS:
        raise ConfigError(f"audit method {method!r}: write one of {', '.join(_METHODS)}")
    _check_inputs(delta, confidence, zero=method in ("clopper_pearson", "one_run"))
    if threshold is not None and (
        method not in ("clopper_pearson", "gdp") or threshold != threshold
    ):
        raise ConfigError(
            f"threshold {threshold!r} of audit method {method!r}: write a number, for "
            "'clopper_pearson' or 'gdp' alone"
        )
    if group < 1 or (group > 1 and method not in ("clopper_pearson", "gdp", "normal")):
        raise ConfigError(
            f"group {group!r} of audit method {method!r}: write 1, or a larger number for "
            "'clopper_pearson', 'gdp' or 'normal'"
        )
    pair = _read_scores("scores_in", scores_in), _read_scores("scores_out", scores_out)
    if group > 1 and method == "clopper_pearson":
        return _clopper_pearson_of_group(*pair, delta, 1 - confidence, threshold, group)
    bound = max(0.0, _METHODS[method](*pair, delta, 1 - confidence, threshold))
    return bound if group == 1 else _of_one(bound, delta, group)


def accuracy_lower_bound(correct: int, runs: int, confidence: float) -> float:
    """Computes the one-sided lower bound of Clopper and Pearson (1934) on a share.

    For runs that a fair coin made in or out it bounds the balanced accuracy of the test.

    Args:
      correct: runs that the test, fixed beforehand, was right about.
      runs: all of them, at least one.
      confidence: the probability that the bound holds.

    Raises:
      ConfigError: for a confidence that does not lie between 0 and 1.
      DataError: for counts that cannot be.
    """
    _check_inputs(0.0, confidence, zero=True)
    _check_counts(correct, runs, runs)
    return _share_below(correct, runs, 1 - confidence)


def one_run_lower_bound(
    correct: int,
    guesses: int,
    canaries: int,
    delta: float,
    confidence: float,
    family: str = "approximate_dp",
) -> float:
    """Computes a lower bound on epsilon from guesses about the canaries of a single run.

    Each canary is in or out by a fair coin of its own; the attack guesses about some of them, as
    many as it likes if that number is fixed beforehand, and is silent about the others.

    - `approximate_dp`: of any (epsilon, delta)-DP mechanism (Steinke, Nasr and Jagielski 2023,
      "Privacy auditing with one (1) training run", arXiv 2305.08846, main theorem; its
      `p_value_DP_audit`).
    - `gaussian`: of a Gaussian mechanism, for delta above 0 (Mahloujifar, Melis and Chaudhuri 2024,
      "Auditing f-differential privacy in one run", arXiv 2410.22235, `audit_rh_with_cap`, with the
      trade-off curve of mu-GDP).

    Args:
      correct: guesses that were right.
      guesses: all guesses.
      canaries: all canaries, guessed about or not.
      delta: of the (epsilon, delta) promise.
      confidence: the probability that the bound holds.
      family: one of `FAMILIES`.

    Raises:
      ConfigError: for a family, a delta or a confidence that cannot be.
      DataError: for counts that cannot be.
    """
    if family not in FAMILIES:
        raise ConfigError(f"family {family!r}: write one of {', '.join(FAMILIES)}")
    _check_inputs(delta, confidence, zero=family == "approximate_dp")
    _check_counts(correct, guesses, canaries)
    bound = _one_run(correct, guesses, canaries, delta, 1 - confidence, family)
    return bound if family == "approximate_dp" else _epsilon_of_mu(bound, delta)


# Rates at thresholds.


class _Rates(NamedTuple):
    """Bounds that hold together: true positive rates from below, false ones from above."""

    true: npt.NDArray[np.float64]
    false: npt.NDArray[np.float64]


def _bound_rates(
    scores_in: Scores, scores_out: Scores, error: float, threshold: float | None
) -> _Rates:
    """Bounds the rates at every threshold, all of them together at the given error."""
    import numpy as np

    size = scores_out.size
    if threshold is not None:
        true = np.array([np.count_nonzero(scores_in >= threshold)])
        false = np.array([np.count_nonzero(scores_out >= threshold)])
    else:
        place = 2 ** np.arange(size.bit_length())
        thresholds = np.sort(scores_out)[size - place]
        true = np.array([np.count_nonzero(scores_in > least) for least in thresholds])
        false = place - 1
    each = error / (2 * true.size)
    return _Rates(
        np.array([_share_below(int(count), scores_in.size, each) for count in true]),
        np.array([1 - _share_below(size - int(count), size, each) for count in false]),
    )


def _clopper_pearson(
    scores_in: Scores, scores_out: Scores, delta: float, error: float, threshold: float | None
) -> float:
    rates = _bound_rates(scores_in, scores_out, error, threshold)
    return max(
        max(_solve_ratio(true, false, delta), _solve_ratio(1 - false, 1 - true, delta))
        for true, false in zip(*rates, strict=True)
    )


def _clopper_pearson_of_group(
    scores_in: Scores,
    scores_out: Scores,
    delta: float,
    error: float,
    threshold: float | None,
    group: int,
) -> float:
    """Searches the largest epsilon of one canary whose chain of `group` is rejected."""
    import numpy as np

    true, false = _bound_rates(scores_in, scores_out, error, threshold)
    likely = np.concatenate([true, 1 - false])
    unlikely = np.concatenate([false, 1 - true])

    def rejects_epsilon(epsilon: float) -> bool:
        links = np.exp(epsilon * np.arange(group))
        bound = math.exp(group * epsilon) * unlikely + delta * links.sum()
        return bool((likely > bound).any())

    return _largest_rejected(rejects_epsilon)


def _of_one(epsilon: float, delta: float, group: int) -> float:
    """Computes the epsilon of one canary, from below, of a Gaussian mechanism's to a group."""
    mu = _largest_rejected(lambda mu: gaussian_epsilon(mu, delta) < epsilon) if epsilon > 0 else 0.0
    return _epsilon_of_mu(mu / group, delta)


def _solve_ratio(likely: float, unlikely: float, delta: float) -> float:
    """Computes the smallest epsilon with likely <= exp(epsilon) unlikely + delta."""
    return math.log((likely - delta) / unlikely) if likely - delta > unlikely else 0.0


def _bound_by_gdp(
    scores_in: Scores, scores_out: Scores, delta: float, error: float, threshold: float | None
) -> float:
    from scipy.special import ndtri

    rates = _bound_rates(scores_in, scores_out, error, threshold)
    return _epsilon_of_mu(float((ndtri(rates.true) - ndtri(rates.false)).max()), delta)


# Errors of guesses.


def _right_first_to_last(scores_in: Scores, scores_out: Scores) -> npt.NDArray[np.bool_]:
    """Returns if each guess is right, from the most extreme score to the one nearest the middle.

    The guess is in for scores above the middle of all ranks, out below it: it takes the scores
    alone, not which were in. Among tied scores the wrong guesses come first; in the middle all are
    wrong.
    """
    import numpy as np
    from scipy.stats import rankdata

    ranks = rankdata(np.concatenate([scores_in, scores_out]))
    side = ranks - (ranks.size + 1) / 2
    member = np.arange(ranks.size) < scores_in.size
    right = np.where(member, side > 0, side < 0)
    return right[np.lexsort((right, -np.abs(side)))]


def _order_statistics(
    scores_in: Scores, scores_out: Scores, delta: float, error: float, _: float | None
) -> float:
    """Bounds mu by the number of errors among the most extreme guesses.

    For a Gaussian mechanism, each run's output has a log likelihood ratio L, and |L| does not
    depend on the coin: |L| = mu x with Pr(|L| <= mu x) = 1 - Phi(-mu/2 - x) - Phi(mu/2 - x), and
    given x the best guess errs with probability 1 / (1 + exp(mu x)), less for a larger x. So any r
    of m guesses have at least as many errors, in law, as those of the r largest |L|. Beyond the (m
    - r)-th smallest of them, T, these are independent draws from the law of |L| above T:

        errors ~ Binomial(r, a / (a + b)),  a = Phi(-mu/2 - T/mu),  b = Phi(mu/2 - T/mu),

    and Pr(|L| <= T) ~ Beta(m - r, r + 1). Errors that are drawn independently of each other, each
    with its mean probability, would vary less: they lack what T has in common.
    """
    import numpy as np
    from scipy.special import betaincinv

    right = _right_first_to_last(scores_in, scores_out)
    guesses = max(1, int(_MOST_EXTREME * right.size))
    wrong = guesses - int(np.count_nonzero(right[:guesses]))
    ends = _halve_cells()
    if guesses < right.size:
        places = betaincinv(right.size - guesses, guesses + 1, ends)
    else:
        places = np.zeros_like(ends)  # nothing lies below T
    mu = _largest_rejected(lambda mu: _few_errors(wrong, guesses, mu, places) < error)
    return _epsilon_of_mu(mu, delta)


def _halve_cells() -> npt.NDArray[np.float64]:
    """Returns the upper ends of cells of [0, 1], halved over and over towards 1."""
    import numpy as np

    cells = np.arange(1, _CELLS) / _CELLS
    return np.concatenate([cells, 1 - 0.5 ** np.arange(1, 31) / _CELLS, [1.0]])


def _few_errors(wrong: int, guesses: int, mu: float, places: npt.NDArray[np.float64]) -> float:
    """Bounds the probability of so few errors from above, by the upper end of every cell of T."""
    import numpy as np
    from scipy.special import bdtr, ndtr

    if mu == 0:
        return float(bdtr(wrong, guesses, 0.5))
    grid = np.linspace(0.0, mu / 2 + 9, 4_000)  # of T / mu
    bad, good = ndtr(-mu / 2 - grid), ndtr(mu / 2 - grid)
    at = np.minimum(np.searchsorted(1 - bad - good, places), grid.size - 1)
    chances = bdtr(wrong, guesses, bad[at] / (bad[at] + good[at]))
    chances = np.where(places < 1, chances, 1.0)
    return float(np.diff(_halve_cells(), prepend=0.0) @ chances)


def _one_run_guesses(family: str) -> Callable[..., float]:
    """Returns the method that bounds by `_one_run` of halves, quarters, ... of all guesses."""

    def bound_epsilon(
        scores_in: Scores, scores_out: Scores, delta: float, error: float, _: float | None
    ) -> float:
        import numpy as np

        right = _right_first_to_last(scores_in, scores_out)
        sizes = [right.size]
        while sizes[-1] // 2 >= _FEWEST_GUESSES:
            sizes.append(sizes[-1] // 2)
        correct = [int(np.count_nonzero(right[:size])) for size in sizes]
        each = error / len(sizes)
        best = 0.0
        for count, size in zip(correct, sizes, strict=True):
            best = _one_run(count, size, right.size, delta, each, family, least=best)
        return best if family == "approximate_dp" else _epsilon_of_mu(best, delta)

    return bound_epsilon


def _one_run(
    correct: int,
    guesses: int,
    canaries: int,
    delta: float,
    error: float,
    family: str,
    least: float = 0.0,
) -> float:
    """Computes the largest epsilon, of the family `gaussian` mu, that is rejected, or `least`."""

    def rejects_value(value: float) -> bool:
        if family == "gaussian":
            return _curve_rejects(correct, guesses, canaries, value, error)
        if _one_run_chance(correct, guesses, canaries, value, 0.0) >= error:
            return False  # not even without delta, which is quick to say
        return _one_run_chance(correct, guesses, canaries, value, delta) < error

    return _largest_rejected(rejects_value, least)


def _one_run_chance(
    correct: int, guesses: int, canaries: int, epsilon: float, delta: float
) -> float:
    """Bounds the probability of so many right guesses about an (epsilon, delta)-DP mechanism.

    Without delta they are at most Binomial(guesses, q), q = exp(epsilon) / (1 + exp(epsilon)). With
    it, 2 canaries delta times the steepest mean slope of that law's upper tail is added.
    """
    import numpy as np
    from scipy.special import bdtrc, expit

    if correct == 0:
        return 1.0
    rate = expit(epsilon)
    tail = float(bdtrc(correct - 1, guesses, rate))
    if delta == 0:
        return tail
    fewer = np.arange(1, correct + 1)
    slopes = (bdtrc(correct - 1 - fewer, guesses, rate) - tail) / fewer
    return min(1.0, tail + 2 * canaries * delta * max(0.0, float(slopes.max())))


def _curve_rejects(correct: int, guesses: int, canaries: int, mu: float, error: float) -> bool:
    """Returns True if mu-GDP does not allow so many right guesses but with probability `error`.

    A recursion from the observed number of right guesses down to none. `right` and `wrong` bound,
    if that many came up with probability `error`, the shares of canaries guessed rightly and
    wrongly in such runs; the trade-off curve bounds the one by the other.
    """
    from scipy.special import ndtr, ndtri

    right, wrong = error * correct / canaries, error * (guesses - correct) / canaries
    for count in range(correct - 1, -1, -1):
        least = float(ndtr(ndtri(right) - mu))
        if least <= wrong:
            break  # neither changes any more
        right = min(1.0, right + count / (guesses - count) * (least - wrong))
        wrong = least
    return right + wrong > guesses / canaries


# Parametric.


def _bound_by_normal(
    scores_in: Scores, scores_out: Scores, delta: float, error: float, _: float | None
) -> float:
    """Bounds mu = (mean in - mean out) / deviation by the two-sample t statistic, inverted."""
    import numpy as np
    from scipy.special import nctdtr

    freedom = scores_in.size + scores_out.size - 2
    squares = math.nan
    if np.isfinite(scores_in).all() and np.isfinite(scores_out).all():
        squares = float(scores_in.var() * scores_in.size + scores_out.var() * scores_out.size)
    if freedom < 1 or not 0 < squares < math.inf:
        raise DataError(
            "audit method 'normal': scores are too few, constant or infinite; "
            "write 'clopper_pearson'"
        )
    spread = math.sqrt(1 / scores_in.size + 1 / scores_out.size)
    gap = float(np.mean(scores_in) - np.mean(scores_out))
    statistic = gap / (spread * math.sqrt(squares / freedom))

    def rejects_mu(mu: float) -> bool:
        return 1 - float(nctdtr(freedom, mu / spread, statistic)) < error

    return _epsilon_of_mu(_largest_rejected(rejects_mu), delta)


# Numbers.


def _share_below(count: int, trials: int, error: float) -> float:
    """Computes the lower bound of Clopper and Pearson on a share."""
    from scipy.special import betaincinv

    return float(betaincinv(count, trials - count + 1, error)) if count else 0.0


def _epsilon_of_mu(mu: float, delta: float) -> float:
    return gaussian_epsilon(mu, delta) * _BELOW if mu > 0 else 0.0


def _largest_rejected(rejects: Callable[[float], bool], least: float = 0.0) -> float:
    """Searches the largest value that a test rejects, from `least` where it rejects nothing above.

    Returns the rejected end of the last interval, so that a bound is never rounded up.
    """
    if not rejects(least):
        return least
    low, high = least, max(1.0, 2 * least)
    while rejects(high):
        low, high = high, 2 * high
    while high - low > _TOLERANCE * max(high, 1e-3):
        middle = (low + high) / 2
        low, high = (middle, high) if rejects(middle) else (low, middle)
    return low


def _check_inputs(delta: float, confidence: float, *, zero: bool) -> None:
    if not (0 < delta < 1 or (zero and delta == 0)):
        least = "0 or more" if zero else "above 0"
        raise ConfigError(f"delta {delta!r}: must be {least} and below 1")
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence {confidence!r}: must lie between 0 and 1, such as 0.95")


def _check_counts(correct: int, guesses: int, canaries: int) -> None:
    if not 0 <= correct <= guesses <= canaries or guesses < 1:
        raise DataError(
            f"{correct} right of {guesses} guesses about {canaries}: must be counts in this order, "
            "with at least one guess"
        )


def _read_scores(name: str, values: Sequence[float] | npt.ArrayLike) -> Scores:
    """Returns scores as an array.

    Raises:
      DataError: for none, several dimensions, or what is not a number.
    """
    import numpy as np

    try:
        scores = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name}: not numbers ({error}); give one score a run") from None
    if scores.ndim != 1 or not scores.size:
        raise DataError(f"{name}: shape {scores.shape}; give one score a run, at least one")
    if missing := int(np.count_nonzero(np.isnan(scores))):
        raise DataError(f"{name}: {missing} of {scores.size} are NaN; give every run a number")
    return scores


_METHODS: dict[str, Callable[[Scores, Scores, float, float, float | None], float]] = {
    "clopper_pearson": _clopper_pearson,
    "gdp": _bound_by_gdp,
    "order_statistics": _order_statistics,
    "normal": _bound_by_normal,
    "one_run": _one_run_guesses("approximate_dp"),
    "one_run_gaussian": _one_run_guesses("gaussian"),
}
METHODS = tuple(_METHODS)
