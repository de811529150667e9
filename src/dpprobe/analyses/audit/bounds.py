"""Lower bounds on epsilon from the scores of an attack, each at a stated confidence.

Each run trains a head with a canary (in) or a null row instead (out), and an attack gives the run a
score, higher for "in" than for "out". An audit releases nothing private: a guarantee holds for
every data set, so runs use synthetic rows. If the mechanism's epsilon is below e at the stated
delta, a bound >= e has probability at most 1 - confidence. A lower bound on epsilon does not prove
that epsilon is small.

**Rates.** For an (epsilon, delta)-DP mechanism, the true positive rate t and the false positive
rate f of every test satisfy

    t <= exp(epsilon) f + delta    and    1 - f <= exp(epsilon) (1 - t) + delta

(Kairouz, Oh and Viswanath 2015, theorem 2.1). With Clopper-Pearson bounds on t (lower) and on f
(upper), each at half of the error probability, both inequalities give a lower bound on epsilon.

**Thresholds.** A threshold must not depend on the scores that are counted with it. Thresholds are
the j-th largest scores of the n out runs, for j = 1, 2, 4, .... At the j-th largest score, f is
distributed as Beta(j, n - j + 1), or is smaller if scores are tied. The upper
Clopper-Pearson bound for j - 1 of n runs is therefore an upper bound on f. Scores of in runs are
independent of the thresholds. The error probability is divided among thresholds (Bonferroni) and
the rates t and f. The bounds only assume that runs are independent (as Nasr et al. 2021, "Adversary
instantiation: lower bounds for differentially private machine learning").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dpprobe.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Scores = npt.NDArray[np.float64]

# The relative width at which the search for a bound ends; bounds below 0.001 count as 0.001.
_TOLERANCE = 1e-6


def epsilon_lower_bound(
    scores_in: Sequence[float] | npt.ArrayLike,
    scores_out: Sequence[float] | npt.ArrayLike,
    delta: float,
    confidence: float = 0.95,
    *,
    group: int = 1,
) -> float:
    """Computes a lower bound on the epsilon of a mechanism from an attack's scores.

    Args:
      scores_in: scores of runs with the canary; higher means "in", and only the order matters.
      scores_out: scores of runs without the canary.
      delta: the delta of the (epsilon, delta) guarantee, 0 or more and below 1.
      confidence: the probability that the bound holds, between 0 and 1.
      group: number of canaries per run, all in or all out. By group privacy over `group` steps of
        one canary each, the result is a bound on the epsilon for one canary.

    Returns:
      The bound, finite and at least 0, never rounded up.

    Raises:
      ConfigError: if delta, confidence or group is out of range.
      DataError: if scores are empty, NaN or not a one-dimensional list of numbers.
    """
    import numpy as np

    if not 0 <= delta < 1:
        raise ConfigError(f"delta {delta!r}: must be 0 or more and below 1")
    _check_confidence(confidence)
    if group < 1:
        raise ConfigError(f"group {group!r} of an audit: use 1 or more canaries")
    inside, outside = _read_scores("scores_in", scores_in), _read_scores("scores_out", scores_out)
    true, false = _bound_rates(inside, outside, 1 - confidence)
    likely = np.concatenate([true, 1 - false])
    unlikely = np.concatenate([false, 1 - true])

    def rejects_epsilon(epsilon: float) -> bool:
        links = np.exp(epsilon * np.arange(group))
        bound = math.exp(group * epsilon) * unlikely + delta * links.sum()
        return bool((likely > bound).any())

    return find_largest_rejected(rejects_epsilon)


def accuracy_lower_bound(correct: int, runs: int, confidence: float) -> float:
    """Computes the one-sided lower bound of Clopper and Pearson (1934) on a share.

    If a fair coin decides whether the canary is in a run, the bound holds for balanced accuracy.

    Args:
      correct: number of runs in which the test, chosen before the runs, guessed right.

    Raises:
      ConfigError: if confidence is not between 0 and 1.
      DataError: if the counts are impossible.
    """
    _check_confidence(confidence)
    if not 0 <= correct <= runs or runs < 1:
        raise DataError(
            f"{correct} of {runs} runs were right: pass whole numbers, with at least one run"
        )
    return _share_below(correct, runs, 1 - confidence)


def _bound_rates(scores_in: Scores, scores_out: Scores, error: float) -> tuple[Scores, Scores]:
    """Bounds the rates at all thresholds; all bounds hold together with probability 1 - `error`.

    Returns:
      Lower bounds on true positive rates, and upper bounds on false positive rates.
    """
    import numpy as np

    size = scores_out.size
    place = 2 ** np.arange(size.bit_length())
    thresholds = np.sort(scores_out)[size - place]
    true = np.array([np.count_nonzero(scores_in > least) for least in thresholds])
    false = place - 1
    each = error / (2 * true.size)
    return (
        np.array([_share_below(int(count), scores_in.size, each) for count in true]),
        np.array([1 - _share_below(size - int(count), size, each) for count in false]),
    )


def _share_below(count: int, trials: int, error: float) -> float:
    """Computes the lower bound of Clopper and Pearson on a share."""
    from scipy.special import betaincinv

    return float(betaincinv(count, trials - count + 1, error)) if count else 0.0


def find_largest_rejected(rejects: Callable[[float], bool]) -> float:
    """Searches by bisection for the largest value that a test rejects; 0 if none above 0.

    Returns the rejected end of the final interval, so that a lower bound is never rounded up.
    """
    if not rejects(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while rejects(high):
        low, high = high, 2 * high
    while high - low > _TOLERANCE * max(high, 1e-3):
        middle = (low + high) / 2
        low, high = (middle, high) if rejects(middle) else (low, middle)
    return low


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence {confidence!r}: must lie between 0 and 1, such as 0.95")


def _read_scores(name: str, values: Sequence[float] | npt.ArrayLike) -> Scores:
    """Returns scores as an array; raises DataError unless scores are a list of numbers."""
    import numpy as np

    try:
        scores = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name}: not numbers ({error}); pass one score per run") from None
    if scores.ndim != 1 or not scores.size:
        raise DataError(
            f"{name}: shape {scores.shape}; pass one score per run, and at least one run"
        )
    if missing := int(np.count_nonzero(np.isnan(scores))):
        raise DataError(f"{name}: {missing} of {scores.size} are NaN; pass a number for every run")
    return scores
