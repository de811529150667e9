"""The verdict on the best private head, and the reasons to doubt it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dpprobe.planner.plan_text import round_count
from dpprobe.privacy.risk import RiskEpsilon
from dpprobe.reporting import headline
from dpprobe.reporting.headline import (
    baseline_doubt,
    choice_words,
    majority_doubt,
    verdict,
)
from dpprobe.results.best_private import Best, best_private
from dpprobe.results.cell_record import ACCURACY, Measure
from dpprobe.results.summary import Entry
from tests.support.made_grids import made_entry, made_grid

AUC = Measure(headline="auc", num_classes=2, labels=1)


def _best(
    entry: Entry, *, free: Entry | None = None, epsilon: float = 0.5, measure: Measure = ACCURACY
) -> Best:
    """Returns the best of one private head, with or without a non-private baseline."""
    entries = {("d", epsilon, "x", "m"): entry}
    if free is not None:
        entries["d", math.inf, "x", "free"] = free
    (best,) = best_private(made_grid(entries, measures={"d": measure}), {})
    return best


def _private(mean: float = 61.0, **changes: Any) -> Entry:
    return made_entry(mean, **{"both_low": 57.0, "both_high": 64.0, "constant": 25.0} | changes)


def _free(mean: float = 85.0, **changes: Any) -> Entry:
    ends = {"both_low": mean - 3, "both_high": mean + 4}
    return made_entry(mean, private=False, ceiling=True, **ends | changes)


@pytest.mark.parametrize(
    ("entry", "free", "words"),
    [
        (
            _private(),
            _free(),
            "At ε = 0.5 the best private head reaches 61.0% accuracy (95% CI 57.0 to 64.0), "
            "24.0 points below the non-private baseline (85.0%) and 36.0 points above the "
            "majority-class baseline (25.0%).",
        ),
        (
            _private(both_low=None),
            None,
            "At ε = 0.5 the best private head reaches 61.0% accuracy, 36.0 points above the "
            "majority-class baseline (25.0%).",
        ),
        (
            _private(constant=None),
            _free(60.0),
            "At ε = 0.5 the best private head reaches 61.0% accuracy (95% CI 57.0 to 64.0), "
            "1.0 points above the non-private baseline (60.0%).",
        ),
        (
            _private(constant=None, both_high=None),
            None,
            "At ε = 0.5 the best private head reaches 61.0% accuracy.",
        ),
    ],
)
def test_the_verdict_states_the_result_next_to_both_baselines(
    entry: Entry, free: Entry | None, words: str
) -> None:
    assert verdict(_best(entry, free=free)) == words


def test_a_better_baseline_on_another_backbone_is_reported() -> None:
    entries = {
        ("d", 1.0, "x", "m"): _private(),
        ("d", math.inf, "x", "free"): _free(),
        ("d", math.inf, "y", "free"): _free(95.0),
    }
    (best,) = best_private(made_grid(entries), {})
    said = "24.0 points below the non-private baseline (85.0%; 95.0% on the best backbone) and"
    assert said in verdict(best)


def test_another_metric_is_followed_by_accuracies_with_one_label_per_image() -> None:
    entry = _private(accuracy=90.0, constant=50.0, constant_accuracy=92.0)
    words = verdict(_best(entry, free=_free(accuracy=95.0), measure=AUC))
    assert "reaches 61.0% AUC" in words
    assert words.endswith(
        " Its accuracy is 90.0% (the non-private baseline: 95.0%; the majority-class baseline: "
        "92.0%)."
    )
    alone = verdict(_best(entry, measure=AUC))
    assert alone.endswith(" Its accuracy is 90.0% (the majority-class baseline: 92.0%).")
    labels = Measure(headline="auc", multi_label=True, labels=3, num_classes=3)
    assert "Its accuracy" not in verdict(_best(entry, measure=labels))
    assert "Its accuracy" not in verdict(_best(_private(accuracy=61.0)))


def test_a_result_above_its_baseline_is_a_sign_of_an_unequal_comparison() -> None:
    doubt = baseline_doubt(_best(_private(95.0, both_low=92.0, both_high=97.0), free=_free(85.0)))
    assert doubt == headline.UNEQUAL
    assert "so the comparison may be unequal" in doubt
    assert baseline_doubt(_best(_private(61.0), free=_free(85.0))) == ""


def test_the_lines_on_a_dataset_are_its_own_by_epsilon() -> None:
    told: dict[str, Any] = {"constant": 60.0, "constant_accuracy": 92.0, "patients": True}
    least: dict[str, Any] = {"least_class": "ill", "least_title": "worst-class recall"}
    entries = {
        ("other", 0.5, "x", "m"): made_entry(90.0, constant=33.0, least=1.0, **least),
        ("d", 0.5, "x", "n"): made_entry(40.0),
        ("d", 0.5, "x", "m"): _private(least=8.0, **told, **least),
        ("d", 2.0, "x", "m"): _private(least=9.5, **told, **least),
    }
    grid = made_grid(entries, measures={"d": AUC})
    assert headline.headline_lines(grid, best_private(grid, {}), "d") == [
        "Metric of d.",
        "Majority-class baseline: 60.0% AUC, 92.0% accuracy (mean over test patients).",
        "Worst-class recall of the best private head: 8.0% (class ill) at ε = 0.5, 9.5% (class "
        "ill) at ε = 2.",
        "The best private head is selected by test results, so its result tends to be too high "
        "(selection bias): best of 2 at ε = 0.5.",
        "ε = 0.5, 2: Its interval includes the majority-class baseline.",
    ]


def test_a_permitted_risk_is_reported_next_to_its_epsilon() -> None:
    own = RiskEpsilon(1.2, "advantage-0.1", 1e-5)
    best = _best(_private(epsilon=own), epsilon=RiskEpsilon(1.4, "advantage-0.1", 1e-5))
    assert verdict(best).startswith("At ε = 1.2 (advantage 0.1")


@pytest.mark.parametrize(
    ("low", "high", "constant", "doubt"),
    [
        (57.0, 64.0, 56.9, ""),
        (57.0, 64.0, 57.0, "Its interval includes the majority-class baseline."),
        (57.0, 64.0, 64.0, "Its interval includes the majority-class baseline."),
        (57.0, 64.0, 64.1, "It is worse than the majority-class baseline."),
        (None, 64.0, 70.0, ""),
        (57.0, None, 70.0, ""),
        (57.0, 64.0, None, ""),
    ],
)
def test_a_result_may_be_no_better_than_one_answer_for_all(
    low: float | None, high: float | None, constant: float | None, doubt: str
) -> None:
    entry = _private(both_low=low, both_high=high, constant=constant)
    assert majority_doubt(_best(entry)) == doubt


def test_a_result_that_differs_from_the_baseline_has_no_doubt() -> None:
    assert baseline_doubt(_best(_private(), free=_free())) == ""
    assert baseline_doubt(_best(_private())) == ""
    unknown = baseline_doubt(_best(_private(both_low=None), free=_free()))
    assert unknown == "No interval shows whether it differs from the non-private baseline."


def test_a_small_difference_is_within_noise_and_a_wide_one_needs_more_images() -> None:
    """Half-widths 1.2 and 1.6 combine with 0.9 and 1.2 to 1.5 and 2.0, around a difference of 0."""
    near = _private(84.0, both_low=82.8, both_high=85.6)
    same = _best(near, free=_free(84.0, both_low=82.8, both_high=84.9))
    assert baseline_doubt(same).startswith(
        "The difference from the non-private baseline is within noise (95% CI of the difference "
        "-1.5 to +2.0 points)."
    )
    exactly = _free(84.0, both_low=84.0, both_high=84.0)
    low = _best(_private(84.0, both_low=81.9, both_high=85.0), free=exactly)
    assert baseline_doubt(low).startswith("Too few test examples"), "the side below is wide"
    exact = _best(_private(84.0, both_low=82.0, both_high=86.0), free=exactly)
    assert "within noise (95% CI of the difference -2.0 to +2.0" in baseline_doubt(exact)
    wide = _private(80.0, both_low=70.0, both_high=88.0, test_units=50)
    far = _best(wide, free=_free(86.0, both_low=80.0, both_high=92.0))
    doubt = baseline_doubt(far)  # -6, with 11.7 below and 10 above: 50 * (10 / 6)^2 = 139 images
    needed = f"{round_count(139):,} test examples needed."
    assert doubt == (
        "Too few test examples to distinguish it from the non-private baseline (95% CI of the "
        f"difference -17.7 to +4.0 points): at least {needed}"
    )


def test_the_best_of_several_heads_tends_to_be_too_high() -> None:
    entries = {("d", 0.5, "x", name): made_entry(60.0) for name in ("a", "b")}
    (best,) = best_private(made_grid(entries), {})
    words = choice_words(best)
    assert words.startswith("Selected from 2 private heads by test results, so 60.0% tends to")
    assert choice_words(_best(_private())) == ""
