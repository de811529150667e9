"""Predicts accuracy month by month as data grow, for three ways to spend one privacy budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dpprobe.errors import ConfigError
from dpprobe.planner.accuracy_plan import Scale
from dpprobe.planner.plan_text import format_span
from dpprobe.planner.predicted_accuracy import Kept, Setting, predict
from dpprobe.privacy.limits import LONGEST_HORIZON
from dpprobe.privacy.running_sums import Factorisation

WAYS = ("train again", "add sums", "horizon")


@dataclass(frozen=True, kw_only=True)
class Month:
    """Predictions for one month's heads, trained on all units up to this month.

    Attributes:
      n: number of units up to this month.
      noise: for each of `WAYS`, the noise deviation relative to one release with the whole budget.
      kept: for each of `WAYS`, the predicted share of the non-private lead.
    """

    month: int
    n: int
    noise: tuple[float, ...]
    kept: tuple[Kept, ...]


def plan_months(setting: Setting, months: int) -> tuple[Month, ...]:
    """Predicts the accuracy of each month, with `setting.n` new units per month.

    For all months together, each unit has the setting's epsilon. If a new head is trained every
    month, the epsilon is split over the months. Running sums, without or with a horizon, spend it
    in the month in which the unit arrives.

    Example:
      >>> from dpprobe.planner.predicted_accuracy import Setting
      >>> months = plan_months(Setting(n=300, classes=2, epsilon=1.0, dimension=384), 3)
      >>> [(each.n, round(each.noise[0], 2), round(each.kept[0].expected, 2)) for each in months]
      [(300, 1.73, 0.64), (600, 1.73, 0.77), (900, 1.73, 0.83)]
    """
    if not 2 <= months <= LONGEST_HORIZON:
        raise ConfigError(f"months {months}: must be a number from 2 to {LONGEST_HORIZON}")
    added, factorised = Factorisation.make(None), Factorisation.make(months)
    rows = []
    for month in range(1, months + 1):
        noise = (math.sqrt(months), added.noise_growth(month), factorised.noise_growth(month))
        so_far = setting.with_n(month * setting.n)
        kept = tuple(predict(so_far, noise=each) for each in noise)
        rows.append(Month(month=month, n=so_far.n, noise=noise, kept=kept))
    return tuple(rows)


def months_in_words(rows: Sequence[Month], scale: Scale, *, epsilon: float, unit: str) -> str:
    lines = [
        f"{len(rows)} months with {rows[0].n:,} new {unit}s each, and a total epsilon of "
        f"{epsilon:g} for every {unit}.",
        f"Accuracy of each month's head at a non-private {100 * scale.middle:.0f}%:",
        "",
        f"{'month':>5} {f'{unit}s':>9}  " + "".join(f"{way:19}" for way in WAYS).rstrip(),
    ]
    for row in rows:
        cells = [
            format_span(kept.predict_accuracy(chance=scale.chance, ceiling=scale.middle))
            for kept in row.kept
        ]
        lines.append(
            f"{row.month:>5} {row.n:>9,}  {''.join(f'{cell:19}' for cell in cells)}".rstrip()
        )
    return "\n".join(
        [
            *lines,
            "",
            f"train again: each month trains a new head on all data, with 1/{len(rows)} of mu^2.",
            "add sums: `cohort` in a release; each month's sums are released once and added up.",
            f"horizon: `cohort` with `horizon: {len(rows)}`; month {len(rows) + 1} has no budget.",
            "The table is for heads of sums: least_squares and prototypes. feature_covariance does",
            "better than the column `add sums`, and needs no horizon (docs/cohorts.md).",
        ]
    )


def months_as_json(rows: Sequence[Month]) -> list[dict[str, Any]]:
    return [{**asdict(row), "ways": list(WAYS)} for row in rows]
