"""Comparing new images with noisy tables: bins, directions, false alarms, power, and the words."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from dpprobe.heads.normalisation import AroundCentre, LayerNorm
from dpprobe.heads.rows import Transform
from dpprobe.release.parts.monitor import compare_images as monitor

SHARES = np.array([0.01, 0.04, 0.1, 0.2, 0.3, 0.2, 0.1, 0.04, 0.01])


def counted(
    generator: np.random.Generator, *, n: int, deviation: float, shares: npt.NDArray[Any] = SHARES
) -> npt.NDArray[np.float64]:
    return np.asarray(
        generator.multinomial(n, shares) + generator.normal(0, deviation, len(shares))
    )


def compared(
    counts: npt.NDArray[Any],
    incoming: npt.NDArray[Any],
    *,
    n: int = 1000,
    deviation: float = 7.5,
    level: float = 0.01,
    classes: list[str] | None = None,
) -> monitor.Comparison:
    return monitor.compare_table(
        counts,
        incoming.astype(float),
        n=n,
        deviation=deviation,
        level=level,
        classes=classes,
        edges=[float(edge) for edge in range(len(counts) - 1)],
    )


def test_the_centre_is_a_direction_of_rows_that_are_not_centred() -> None:
    centre = np.array([0.0, 3.0, 0.0, 0.0], np.float32)
    typical = monitor.find_directions(centre, None, dimension=4)
    assert typical is not None
    transform = Transform(AroundCentre(kind="centred"), {"centre": torch.from_numpy(centre)})
    rows = np.array([[0, 5, 0, 0], [0, 0, 2, 0], [1, 1, 0, 0], [0, 0, 0, 0]], np.float32)
    for scale in (1e-30, 1, 1e30):
        unusual = monitor.measure_unusualness(np.float32(scale) * rows, transform, typical)
        np.testing.assert_allclose(unusual, [0.0, 1.0, 0.5, 1.0], atol=1e-6)
    (unusual,) = monitor.measure_unusualness(rows[:1], Transform(LayerNorm()), typical)
    assert unusual == pytest.approx(1 / 4)  # the row becomes [-1, 3, -1, -1]
    both = monitor.find_directions(centre, torch.eye(4, dtype=torch.float64), dimension=4)
    assert both is not None
    assert both.shape == (1 + monitor.count_directions(4), 4)
    assert np.linalg.norm(both @ centre) == pytest.approx(3.0)
    assert monitor.find_directions(None, None, dimension=4) is None


def test_shares_are_the_nearest_ones() -> None:
    generator = np.random.default_rng(1)
    noisy = generator.normal(0.2, 0.3, size=(50, 6))
    shares = monitor.project_shares(noisy)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert (shares >= 0).all()
    others = generator.dirichlet(np.ones(6), size=200)
    nearest = np.linalg.norm(shares - noisy, axis=1)
    assert (np.linalg.norm(others[:, None] - noisy, axis=2) >= nearest - 1e-12).all()
    np.testing.assert_allclose(monitor.project_shares(SHARES), SHARES)


@pytest.mark.parametrize(
    ("n", "units", "classes"),
    [(200, 50, None), (1000, 200, None), (1000, 2000, None), (200, 2000, list("abcdefghi"))],
)
def test_false_alarms_are_as_rare_as_said(
    monkeypatch: pytest.MonkeyPatch, n: int, units: int, classes: list[str] | None
) -> None:
    monkeypatch.setattr(monitor, "SIMULATIONS", 199)
    monkeypatch.setattr(monitor, "NUMBERS", ())
    generator, level, runs = np.random.default_rng(units + n), 0.05, 200
    alarms = 0
    for _ in range(runs):
        counts, incoming = (
            counted(generator, n=n, deviation=7.5),
            generator.multinomial(units, SHARES),
        )
        result = compared(counts, incoming, n=n, level=level, classes=classes)
        alarms += result.verdict == monitor.DIFFERENT
    assert alarms <= level * runs + 3.1 * math.sqrt(level * runs)


def test_many_classes_and_few_units_raise_no_more_alarms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rare bins that seem empty must not make simulated tables too alike."""
    monkeypatch.setattr(monitor, "SIMULATIONS", 199)
    monkeypatch.setattr(monitor, "NUMBERS", ())
    generator = np.random.default_rng(2)
    shares, alarms = generator.dirichlet(np.ones(100)), 0
    for _ in range(100):
        counts = counted(generator, n=400, deviation=7.5, shares=shares)
        incoming = generator.multinomial(50, shares)
        names = list(map(str, range(100)))
        result = compared(counts, incoming, n=400, level=0.05, classes=names)
        alarms += result.verdict == monitor.DIFFERENT
    assert alarms <= 12
