"""Comparing new images with noisy tables: cells, directions, false alarms, power, and the words."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from dpprobe.errors import ConfigError
from dpprobe.heads.normalisation import L2, AroundCentre, LayerNorm
from dpprobe.heads.rows import Transform
from dpprobe.release.parts.monitor import compare_images as monitor
from dpprobe.release.parts.monitor.compare_images import (
    DIFFERENT,
    SIMILAR,
    TOO_FEW,
    UNUSUAL,
    Comparison,
    Report,
    compare_table,
    count_directions,
    find_directions,
    list_edges,
    measure_norms,
    measure_unusualness,
    place_rows,
    project_shares,
    read_groups,
)

SHARES = np.array([0.01, 0.04, 0.1, 0.2, 0.3, 0.2, 0.1, 0.04, 0.01])


def counted(
    generator: np.random.Generator, *, n: int, deviation: float, shares: npt.NDArray[Any] = SHARES
) -> npt.NDArray[np.float64]:
    return np.asarray(
        generator.multinomial(n, shares) + generator.normal(0, deviation, len(shares))
    )


def compared(
    counts: npt.NDArray[Any], incoming: npt.NDArray[Any], *, n: int = 1000, deviation: float = 7.5,
    level: float = 0.01, classes: list[str] | None = None,
) -> Comparison:  # fmt: skip
    return compare_table(
        counts, incoming.astype(float), n=n, deviation=deviation, level=level, classes=classes,
        edges=[float(edge) for edge in range(len(counts) - 1)],
    )  # fmt: skip


# cells


def test_each_row_lies_in_one_cell_of_each_table() -> None:
    edges = list_edges(2.0, unusual=True)
    features = np.array([[0.0, 0.0], [2.0, 0.0], [1e30, 1e30], [1e-30, 0.0]], np.float32)
    values = np.array([[0.5, 0.5], [0.1, 0.9], [math.inf, -5.0], [-3.0, -2.0]])
    cells = place_rows(values, measure_norms(features), np.array([0.0, 1.0, 0.3, 0.2]), edges)
    assert cells[monitor.CLASSES].tolist() == [0, 1, 0, 1]
    assert cells[monitor.VALUES].tolist() == [4, 8, 10, 0]
    norms = cells[monitor.NORMS]
    assert norms[0] == norms[3] == 0
    assert norms[2] == len(edges[monitor.NORMS])
    limits = edges[monitor.NORMS]
    assert limits[norms[1] - 1] < 2.0 < limits[norms[1]], "the probe's norm is inside a range"
    assert cells[UNUSUAL].tolist() == [0, 18, 10, 8]
    for name, each in edges.items():
        assert each == sorted(each)
        assert cells[name].max() <= len(each)
    assert UNUSUAL not in list_edges(2.0, unusual=False)


@pytest.mark.parametrize("norm", [0.0, 0.01, 1.0, 500.0])
def test_ranges_are_around_the_probe_s_norm_or_1_without_a_probe(norm: float) -> None:
    limits = [value / (norm or 1.0) for value in list_edges(norm, unusual=False)[monitor.NORMS]]
    assert limits[0] < 0.1 < 10 < limits[-1]
    assert limits == pytest.approx(list_edges(1.0, unusual=True)[monitor.NORMS])


# directions


def test_unusual_rows_lie_outside_of_the_leading_directions() -> None:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(500, 16)).astype(np.float32)
    rows[:, :4] *= 10
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    moment = np.zeros((17, 17))
    moment[:16, :16] = units.T @ units
    moment[16, :] = moment[:, 16] = 1e6  # of the constant, which is left out
    typical = find_directions(None, torch.from_numpy(moment), dimension=16)
    assert typical is not None
    assert typical.shape == (4, 16)
    np.testing.assert_allclose(typical @ typical.T, np.eye(4), atol=1e-5)
    other = np.roll(rows, 8, axis=1)
    for spec in (L2(), LayerNorm()):
        usual = measure_unusualness(rows, Transform(spec), typical)
        unusual = measure_unusualness(other, Transform(spec), typical)
        assert usual.max() < 0.4 < 0.8 < np.quantile(unusual, 0.05)
    scaled = measure_unusualness(7 * rows, Transform(L2()), typical)
    np.testing.assert_allclose(
        scaled, measure_unusualness(rows, Transform(L2()), typical), atol=1e-5
    )


def test_the_centre_is_a_direction_of_rows_that_are_not_centred() -> None:
    centre = np.array([0.0, 3.0, 0.0, 0.0], np.float32)
    typical = find_directions(centre, None, dimension=4)
    assert typical is not None
    transform = Transform(AroundCentre(kind="centred"), {"centre": torch.from_numpy(centre)})
    rows = np.array([[0, 5, 0, 0], [0, 0, 2, 0], [1, 1, 0, 0], [0, 0, 0, 0]], np.float32)
    for scale in (1e-30, 1, 1e30):
        unusual = measure_unusualness(np.float32(scale) * rows, transform, typical)
        np.testing.assert_allclose(unusual, [0.0, 1.0, 0.5, 1.0], atol=1e-6)
    both = find_directions(centre, torch.eye(4, dtype=torch.float64), dimension=4)
    assert both is not None
    assert both.shape == (1 + count_directions(4), 4)
    assert np.linalg.norm(both @ centre) == pytest.approx(3.0)
    assert find_directions(None, None, dimension=4) is None


# distances


def test_shares_are_the_nearest_ones() -> None:
    generator = np.random.default_rng(1)
    noisy = generator.normal(0.2, 0.3, size=(50, 6))
    shares = project_shares(noisy)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert (shares >= 0).all()
    others = generator.dirichlet(np.ones(6), size=200)
    nearest = np.linalg.norm(shares - noisy, axis=1)
    assert (np.linalg.norm(others[:, None] - noisy, axis=2) >= nearest - 1e-12).all()
    np.testing.assert_allclose(project_shares(SHARES), SHARES)


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
        alarms += result.verdict == DIFFERENT
    assert alarms <= level * runs + 3.1 * math.sqrt(level * runs)


def test_many_classes_and_few_units_raise_no_more_alarms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rare cells that seem empty must not make simulated tables too alike."""
    monkeypatch.setattr(monitor, "SIMULATIONS", 199)
    monkeypatch.setattr(monitor, "NUMBERS", ())
    generator = np.random.default_rng(2)
    shares, alarms = generator.dirichlet(np.ones(100)), 0
    for _ in range(100):
        counts = counted(generator, n=400, deviation=7.5, shares=shares)
        incoming = generator.multinomial(50, shares)
        names = list(map(str, range(100)))
        result = compared(counts, incoming, n=400, level=0.05, classes=names)
        alarms += result.verdict == DIFFERENT
    assert alarms <= 12


def test_a_shift_is_noticed_and_named() -> None:
    generator = np.random.default_rng(3)
    counts = counted(generator, n=1000, deviation=7.5)
    moved = generator.multinomial(200, np.roll(SHARES, 2))
    result = compared(counts, moved)
    assert result.verdict == DIFFERENT
    assert result.distance > result.by_chance
    assert result.change.startswith("up to ")
    more = generator.multinomial(300, [0.6, 0.4])
    named = compared(counted(generator, n=1000, deviation=7.5, shares=np.array([0.3, 0.7])), more,
                     classes=["normal", "ill"])  # fmt: skip
    assert named.verdict == DIFFERENT
    assert named.change.startswith(("normal: 6", "ill: ")), named.change


def test_too_few_images_are_said_to_be_too_few() -> None:
    generator = np.random.default_rng(4)
    counts = counted(generator, n=1000, deviation=7.5)
    result = compared(counts, generator.multinomial(8, SHARES))
    assert result.verdict == TOO_FEW
    assert result.needed in (20, 50)
    assert result.needed
    enough = compared(counts, generator.multinomial(2 * result.needed, SHARES))
    assert enough.verdict == SIMILAR
    none = compared(counts, np.zeros(len(SHARES)))
    assert none.verdict == TOO_FEW
    hopeless = compared(counted(generator, n=50, deviation=20.0), np.full(9, 5), n=50, deviation=20)
    assert (hopeless.verdict, hopeless.needed) == (TOO_FEW, None)


def test_equal_tables_are_similar() -> None:
    """The plug-in distance of two noisy tables is never 0; chance must explain it."""
    result = compared(1000 * SHARES, 300 * SHARES)
    assert result.verdict == SIMILAR
    assert result.distance < 1e-9 < result.by_chance


# the report


def report_of(*verdicts: str) -> Report:
    names = [monitor.CLASSES, monitor.VALUES, monitor.NORMS]
    tables = {
        name: Comparison(
            verdict=verdict, distance=0.3, by_chance=0.1,
            needed=need if verdict == TOO_FEW else None,
            change="up to 3: 80% here, 50% of test units",
        )
        for name, verdict, need in zip(names, verdicts, (90, 60, 70), strict=False)
    }  # fmt: skip
    return Report(images=40, units=30, test_units=900, tables=tables, most_unusual=())


@pytest.mark.parametrize(
    ("verdicts", "words"),
    [
        ((SIMILAR, DIFFERENT, TOO_FEW), "WARNING: differs from the test images: largest prob"),
        ((SIMILAR, TOO_FEW, SIMILAR), "looks like the test images: predicted class, feature norm"),
        ((TOO_FEW, TOO_FEW), r"too few images to tell \(30; needs about 60\)"),
    ],
)
def test_the_verdict_names_the_tables(verdicts: tuple[str, ...], words: str) -> None:
    report = report_of(*verdicts)
    lines = report.list_lines()
    assert lines[0] == "monitor: 30 new units against 900 test units"
    assert len(lines) == 2 + len(verdicts)
    assert re.match(words, lines[-1])
    assert report.to_dict()["verdict"] == report.verdict


def test_groups_are_read_from_a_table(tmp_path: Path) -> None:
    path = tmp_path / "groups.csv"
    path.write_text("id,group\na.png,p1\nb.png,p1\n")
    assert read_groups(path) == {"a.png": "p1", "b.png": "p1"}
    assert read_groups(None) == {}
    path.write_text("sep=;\nid; group\na.png;p1\nb.png;p1\n")
    assert read_groups(path) == {"a.png": "p1", "b.png": "p1"}
    path.write_text(f"id,group\na.png,{'p' * 200_000}\n")
    assert len(read_groups(path)["a.png"]) == 200_000
    for text in (
        "id,patient\na.png,p1\n", "id,group\na.png\n", "id,group\na.png,p1\na.png,p2\n",
        'id,group\n"a.png,p1\n', "id,group,group\na.png,1,2\n", "id,group\na.png,1,2\n",
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(ConfigError, match="columns id and group|groups.csv line 3: cannot"):
            read_groups(path)
