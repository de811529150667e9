"""The noisy result of a released head: sensitivity, noise, and what its interval covers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.special import ndtr

from dpprobe.privacy.grid import GridSum
from dpprobe.privacy.noise_calibration import calibrate
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.releases import Releases
from dpprobe.privacy.target import Target
from dpprobe.release.parts.evaluation import measure as evaluation
from dpprobe.release.parts.evaluation.class_recalls import Estimate
from dpprobe.results import metrics
from tests.support.shown_scores import draw_of, head, of_test_rows

Metric = Literal["accuracy", "auc", "macro_accuracy"]
NULL = math.nan


def planned(
    folder: Path,
    metric: Metric,
    n: int,
    epsilon: float,
    *,
    classes: int = 2,
    multi_label: bool = False,
    unit: str = "image",
) -> Plan:
    wanted = evaluation.evaluation_mechanisms(metric, classes=classes, multi_label=multi_label)
    target = Target(n=n, unit=unit, epsilon=epsilon, delta=1e-5)
    return calibrate(wanted, target, cache=folder / "calibration")


def measure(
    scores: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    plan: Plan,
    metric: Metric,
    *,
    units: npt.NDArray[Any] | None = None,
    seed: int = 1,
) -> dict[str, Any]:
    """Evaluates a head that shows these scores, with noise from a seed."""
    return evaluation.evaluate_heads(
        draw_of(head(scores.shape[1], seed), of_test_rows(scores, labels, units)),
        plan,
        metric=metric,
        link="sigmoid" if labels.ndim == 2 else "softmax",
        composition="",
    )


def two_classes(n: int, generator: np.random.Generator, apart: float = 1.5) -> Any:
    """Margins of two normals, with the area under their ROC curve."""
    labels = generator.integers(0, 2, n)
    margins = generator.normal(labels * apart, 1)
    return np.stack([np.zeros(n), margins], 1), labels, float(ndtr(apart / math.sqrt(2)))


@pytest.mark.parametrize("units", [[0, 1, 2, 3, 4, 5], [0, 0, 0, 1, 1, 2], [0, 0, 0, 0, 0, 0]])
@pytest.mark.parametrize(
    ("metric", "multi_label"),
    [
        ("accuracy", False),
        ("accuracy", True),
        ("auc", False),
        ("auc", True),
        ("macro_accuracy", False),
    ],
)
def test_no_unit_moves_what_is_released_by_more_than_its_sensitivity(
    metric: Metric, multi_label: bool, units: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of whole evaluations: units are null rows in one, and the outputs of the other are seen."""
    generator, whose = np.random.default_rng(5), np.array(units)
    classes, n = 3 if multi_label else 2, len(set(units))
    wanted = evaluation.evaluation_mechanisms(metric, classes=classes, multi_label=multi_label)
    plan = Plan(
        mechanisms=tuple(item.scale_noise(1e-3) for item in wanted),
        n=n,
        unit="image" if n == 6 else "patient",
        epsilon=1e9,
        delta=1e-5,
        accountant="pld",
        realised_epsilon=1e8,
    )
    told: dict[str, torch.Tensor] = {}
    sums: list[dict[str, torch.Tensor]] = []
    draw = Releases.release_gaussian

    def release(self: Releases, name: str, total: GridSum) -> torch.Tensor:
        sums[-1][name] = total.values.double()
        return told.setdefault(name, draw(self, name, total))

    monkeypatch.setattr(Releases, "release_gaussian", release)
    # intervals take most of the time, and are not looked at here
    estimate = Estimate(0.5, 0.0, 1.0, 0.5)
    monkeypatch.setattr(evaluation, "accuracy_estimate", lambda *_: estimate)
    monkeypatch.setattr(evaluation, "area_estimate", lambda *_: (estimate, ""))
    worst = dict.fromkeys((item.name for item in wanted), 0.0)
    for _ in range(60):
        scores = generator.normal(size=(6, classes)) * generator.choice([0.01, 1, 1e6])
        drawn = generator.integers(0, 2, (6, classes) if multi_label else 6)
        labels: npt.NDArray[Any] = drawn.astype(np.uint8) if multi_label else drawn
        if generator.random() < 0.3:  # all rows alike: the longest that a unit's sum can be
            scores[:], labels[:] = scores[0], labels[0]
        told.clear()
        sums.clear()
        for nulled in (-1, *set(units)):
            sums.append({})
            rows = np.where((whose == nulled)[:, None], NULL, scores)
            measure(rows, labels, plan, metric, units=None if n == 6 else whose)
        for name, whole in sums[0].items():
            changes = [float((whole - less[name]).norm()) for less in sums[1:]]
            worst[name] = max(worst[name], *changes)
    for item in wanted:
        assert item.sensitivity * (1 - 1e-6) < worst[item.name] <= item.sensitivity + 1e-9


def test_without_noise_the_area_is_the_benchmarks() -> None:
    generator = np.random.default_rng(0)
    scores, labels, _ = two_classes(20_000, generator)
    bench = metrics.evaluate_scores(scores, labels)["auc"]
    plan = Plan(
        mechanisms=tuple(
            item.scale_noise(1e-3)
            for item in evaluation.evaluation_mechanisms("auc", classes=2, multi_label=False)
        ),
        n=20_000,
        epsilon=1e9,
        delta=1e-5,
        accountant="pld",
        realised_epsilon=1e8,
    )
    # a bias added to all scores, and another scale, change ranks as little as bins may
    for shift, scale in ((0, 1), (5, 1), (-3, 0.1), (0, 40)):
        moved = np.stack([scores[:, 0], scores[:, 1] * scale + shift], 1)
        result = measure(moved, labels, plan, "auc")
        assert result["value"] == pytest.approx(bench, abs=1e-3)


@pytest.fixture
def few_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the part of a spread that is noise be off by 3%: how near it comes is tested below."""
    monkeypatch.setattr(evaluation, "_SIMULATIONS", 1000)


@pytest.mark.usefixtures("few_simulations")
@pytest.mark.parametrize(
    ("n", "epsilon", "apart"),
    [(60, 8.0, 1.5), (400, 0.2, 1.5), (400, 8.0, 3.5), (2500, 0.5, 1.5), (8000, 2.0, 1.5)],
)
def test_the_interval_of_an_area_covers_sampling_and_noise(
    tmp_path: Path, n: int, epsilon: float, apart: float
) -> None:
    plan = planned(tmp_path, "auc", n, epsilon)
    generator = np.random.default_rng(4)
    inside = 0
    for repetition in range(200):
        scores, labels, area = two_classes(n, generator, apart)
        result = measure(scores, labels, plan, "auc", seed=repetition)
        low, high = result["interval"]
        assert 0 <= low < high <= 1
        inside += low <= area <= high
    assert inside >= 200 * 0.95 - 3 * math.sqrt(200 * 0.95 * 0.05)


def test_standard_errors_and_spreads_are_those_of_draws() -> None:
    generator, n, deviation = np.random.default_rng(0), 400, 9.0
    drawn = (generator.binomial(n, 0.8, 20_000) + generator.normal(0, deviation, 20_000)) / n
    estimate = evaluation.accuracy_estimate(0.8, n, deviation)
    assert estimate.standard_error == pytest.approx(drawn.std(), rel=0.03)
    counts = np.array([[np.arange(16.0), np.arange(16.0)[::-1]]]) + 20
    noise = generator.normal(0, 3, (20_000, *counts.shape))
    areas = evaluation._histogram_areas(counts + noise).mean(axis=-1)
    assert evaluation._noise_of_area(counts, 3.0) == pytest.approx(areas.std(), rel=0.05)


def test_negative_counts_give_an_area_in_range() -> None:
    generator = np.random.default_rng(0)
    for _ in range(200):
        counts = generator.normal(0, 20, (2, 2, 16)) + generator.choice([0, 5, 50])
        estimate, _ = evaluation.area_estimate(counts, 20.0)
        assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
        assert estimate.high > estimate.low


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_with_the_stated_test_units_95_percent_of_areas_have_a_result(
    tmp_path: Path, epsilon: float
) -> None:
    plan = planned(tmp_path, "auc", 1000, epsilon)
    deviation = plan.mechanisms[-1].noise_scale
    enough = evaluation.enough_of_a_class(plan, classes=2)
    bins = evaluation._count_bins(plan.n, deviation)
    generator = np.random.default_rng(3)
    noise = generator.normal(0, deviation, (3000, 1, 2, bins))
    shares = [
        np.mean(
            [
                (
                    evaluation.area_estimate(np.full((1, 2, bins), units / bins) + each, deviation)[
                        0
                    ]
                    != Estimate(0.5, 0.0, 1.0, 0.5)
                )
                for each in noise[:200]
            ]
        )
        for units in (1.25 * enough, 0.75 * enough)
    ]
    totals = enough + noise.sum(axis=-1)
    assert (totals > 4 * deviation * math.sqrt(bins)).all(axis=(1, 2)).mean() == pytest.approx(
        0.95, abs=0.015
    )
    assert shares[0] > 0.98
    assert shares[1] < 0.7
