"""bench/learning_law.py: the law of learning curves and its range, without training."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dpprobe.planner.learning_curves import read_curves
from dpprobe.privacy.gaussian_mu import gaussian_mu

Load = Callable[[str], ModuleType]
EXPONENTS = (1.0, 0.5, 0.75)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, repository: Path) -> Load:
    """Imports a module of bench/, whose modules import each other by their plain names."""
    monkeypatch.syspath_prepend(repository / "bench")
    return importlib.import_module


def _curves() -> list[dict[str, Any]]:
    """Curves that follow a law, each source a little easier or harder than the others."""
    generator = np.random.default_rng(0)
    curves = []
    sources = {"easy": 0.3, "hard": -0.5, "plain": 0.0, "other": -0.2}
    for (source, ease), dimension, classes in (
        (item, dimension, classes)
        for item in sources.items()
        for dimension in (64, 1024)
        for classes in (2, 10)
    ):
        points = []
        for n in (100, 400, 1600, 6400):
            accuracy = {}
            for epsilon in ("0.1", "1", "10"):
                mu = gaussian_mu(float(epsilon), 1e-5)
                signal = math.log(n * mu / dimension**0.5 / classes**0.75) + ease
                kept = 1 / (1 + math.exp(-1.8 * (signal + 0.5)))
                mean = 1 / classes + kept * (0.9 - 1 / classes)
                accuracy[epsilon] = [mean + generator.normal() * 0.01 for _ in range(2)]
            points.append({"n": n, "ceiling": 0.9, "accuracy": accuracy})
        curves.append(
            {
                "source": source,
                "dimension": dimension,
                "classes": classes,
                "chance": 1 / classes,
                "points": points,
            }
        )
    return curves


def test_the_law_that_made_the_curves_has_the_least_error(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    law = load("learning_law")
    choices = {"mu": (0.7, 1.0), "dimension": (0.0, 0.5), "classes": (0.25, 0.75, 1.25)}
    monkeypatch.setattr(law, "EXPONENTS", choices)
    fitted = law.law_of(_curves(), 1e-5)
    assert tuple(fitted[name] for name in choices) == EXPONENTS
    for values in (fitted["low"], fitted["expected"], fitted["high"]):
        assert values == sorted(values)
    assert set(fitted["coverage"]) == {"easy", "hard", "plain", "other"}
    assert fitted["smallest"] == 64
    assert sum(fitted["coverage"].values()) / 4 >= 0.8
    assert fitted["widening"] >= 1


def test_the_range_holds_what_sets_found_that_took_no_part_in_it(load: Load) -> None:
    """Makes a range of all stored sources but one, and counts that one's fits within it.

    With the exponents of all: the stored coverage, 80%, is with those of the others.
    """
    law = load("learning_law")
    stored = read_curves().law
    exponents = (stored.mu, stored.dimension, stored.classes)
    parts = law.split(law.points_of(read_curves().curves, 1e-5))
    fits = {source: law.fit(others, exponents) for source, (others, _) in parts.items()}

    def coverage(widening: float) -> float:
        inside = [law.covered(fits[name].law(widening), mine) for name, (_, mine) in parts.items()]
        return sum(inside) / len(inside)

    assert set(parts) == set(stored.coverage)
    assert 0.76 < coverage(stored.widening) < 0.97
    assert coverage(0.3 * stored.widening) < 0.6, "a narrower one would not do"
