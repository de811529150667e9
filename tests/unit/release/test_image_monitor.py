"""New images against noisy tables: bins, directions, false alarms, power, and words."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax

from dpprobe.errors import ConfigError, DataError
from dpprobe.heads.normalisation import L2, AroundCentre, LayerNorm, NoNormalisation
from dpprobe.heads.transform import Transform
from dpprobe.release import image_monitor as monitor
from dpprobe.release.parts.monitor import measure as watching
from tests.support.mechanisms import made_plan
from tests.support.refusals import check_tokens, refuses
from tests.support.shown_scores import draw_of, head, of_test_rows

SHARES = np.array([0.01, 0.05, 0.12, 0.24, 0.28, 0.16, 0.08, 0.05, 0.01])


def counted(
    generator: np.random.Generator, *, n: int, deviation: float, shares: npt.NDArray[Any] = SHARES
) -> npt.NDArray[np.float64]:
    return np.asarray(
        generator.multinomial(n, shares) + generator.normal(0, deviation, len(shares))
    )


def compare(
    counts: Any,
    new: Any,
    *,
    n: int = 2000,
    deviation: float = 2.0,
    level: float = 0.01,
    classes: list[str] | None = None,
) -> monitor.Comparison:
    return monitor.compare_table(
        counts,
        np.asarray(new, float),
        n=n,
        deviation=deviation,
        level=level,
        classes=classes,
        edges=[float(edge) for edge in range(len(counts) - 1)],
    )


def test_the_centre_counts_as_a_direction_of_uncentred_rows() -> None:
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


def test_shares_minimise_the_distance() -> None:
    generator = np.random.default_rng(1)
    noisy = generator.normal(0.2, 0.3, size=(50, 6))
    shares = monitor.project_shares(noisy)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert (shares >= 0).all()
    others = generator.dirichlet(np.ones(6), size=200)
    nearest = np.linalg.norm(shares - noisy, axis=1)
    assert (np.linalg.norm(others[:, None] - noisy, axis=2) >= nearest - 1e-12).all()
    np.testing.assert_allclose(monitor.project_shares(SHARES), SHARES)


# Rare bins whose noisy count is near 0 must not make simulated tables too similar.
MANY = np.random.default_rng(2).dirichlet(np.ones(100))


@pytest.mark.parametrize(
    ("n", "units", "shares", "named", "runs"),
    [
        (200, 50, SHARES, False, 200),
        (1000, 200, SHARES, False, 200),
        (1000, 2000, SHARES, False, 200),
        (200, 2000, SHARES, True, 200),
        (400, 50, MANY, True, 100),
    ],
)
def test_false_alarms_are_as_rare_as_said(
    monkeypatch: pytest.MonkeyPatch, n: int, units: int, shares: Any, named: bool, runs: int
) -> None:
    monkeypatch.setattr(monitor, "SIMULATIONS", 199)
    monkeypatch.setattr(monitor, "NUMBERS", ())
    generator, level, alarms = np.random.default_rng(units + n), 0.05, 0
    classes = [str(place) for place in range(len(shares))] if named else None
    for _ in range(runs):
        counts = counted(generator, n=n, deviation=7.5, shares=shares)
        incoming = generator.multinomial(units, shares)
        result = compare(counts, incoming, n=n, deviation=7.5, level=level, classes=classes)
        alarms += result.verdict == monitor.DIFFERENT
    assert alarms <= level * runs + 3.1 * math.sqrt(level * runs)


# Tables of new images: bins and distances compared with plain loops; groups, files and words.


NAMES = [*"abcdefghi"]


def test_a_distance_is_the_largest_difference_over_sets_or_limits() -> None:
    counts, new = np.array([50.0, 30, 20]), np.array([2.0, 2, 6])
    gaps = new / 10 - counts / 100  # -0.3, -0.1, 0.4
    by_sets = max(abs(gaps[list(which)].sum()) for which in ([0], [1], [2], [0, 1], [0, 2], [1, 2]))
    assert monitor.measure_distance(counts, new, 100, ordered=False) == pytest.approx(by_sets)
    by_limits = max(abs(gaps[:end].sum()) for end in (1, 2))
    assert monitor.measure_distance(counts, new, 100, ordered=True) == pytest.approx(by_limits)


@given(seed=st.integers(0, 10**6), ordered=st.booleans())
def test_tables_of_equal_shares_have_no_distance(seed: int, ordered: bool) -> None:
    shares = np.random.default_rng(seed).dirichlet(np.ones(6))
    for first, second in ((7, 3), (1, 1000)):
        found = monitor.measure_distance(
            100 * first * shares, second * shares, 100 * first, ordered=ordered
        )
        assert found == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("classes", [None, NAMES])
def test_equal_tables_are_similar_and_moved_ones_differ(classes: Any) -> None:
    counts = 2000 * SHARES
    same, moved = (
        compare(counts, 300 * SHARES, classes=classes),
        compare(counts, np.roll(300 * SHARES, 3), classes=classes),
    )
    assert same.verdict == monitor.SIMILAR
    assert same.distance == pytest.approx(0, abs=1e-9)
    assert moved.verdict == monitor.DIFFERENT
    gaps = np.roll(SHARES, 3) - SHARES
    if classes is None:
        place = int(np.abs(gaps.cumsum()).argmax())
        here, there = np.roll(SHARES, 3)[: place + 1].sum(), SHARES[: place + 1].sum()
        assert moved.distance == pytest.approx(np.abs(gaps.cumsum()).max())
        said = f"up to {place}"
    else:
        place = int(np.abs(gaps).argmax())
        here, there = np.roll(SHARES, 3)[place], SHARES[place]
        assert moved.distance == pytest.approx(np.abs(gaps).sum() / 2)
        said = NAMES[place]
    check_tokens(moved.change, said, f"{100 * here:.0f}%", f"{100 * there:.0f}%")


def test_limits_of_norms_are_multiples_of_the_test_image_s() -> None:
    edges = monitor.list_edges(2.0, unusual=True)
    assert edges["feature_norm"] == pytest.approx([2 * each for each in monitor.NORM_FACTORS])
    inner = np.searchsorted(edges["feature_norm"], 2.0)
    assert inner == len(edges["feature_norm"]) // 2, "the test image is in the middle"
    assert edges["unusualness"] == list(monitor.UNUSUAL_EDGES[1:-1])
    bare = monitor.list_edges(0.0, unusual=False)  # a test image of norm 0 has limits, too
    assert bare["feature_norm"] == pytest.approx(monitor.NORM_FACTORS)
    assert set(bare) == {"largest_value", "feature_norm"}


def test_typical_directions_span_the_centre_and_the_leading_eigenvectors() -> None:
    generator = np.random.default_rng(4)
    rows = generator.normal(size=(40, 9)) * np.arange(1, 10)
    centre, moment = rows[5].astype(np.float32), torch.from_numpy(np.cov(rows.T))
    values, vectors = np.linalg.eigh(np.cov(rows.T))
    leading = vectors[:, np.argsort(values)[-2:]]  # a quarter of nine dimensions
    for released, columns in (
        ((None, moment), leading),
        ((centre, None), centre[:, None]),
        ((centre, moment), np.hstack([centre[:, None], leading])),
    ):
        typical = monitor.find_directions(*released, dimension=9)
        assert typical is not None
        projector = columns @ np.linalg.pinv(columns)
        np.testing.assert_allclose(typical.T @ typical, projector, atol=1e-4)
    assert monitor.count_directions(9) == 2
    assert [monitor.count_directions(d) for d in (1, 3, 4, 256, 1000)] == [1, 1, 1, 64, 64]


def report(*verdicts: str, needed: int | None = None) -> monitor.Report:
    tables = {
        name: monitor.Comparison(
            verdict=verdict,
            distance=0.3 + place / 5,
            by_chance=0.1 + place / 20,
            needed=needed if verdict == monitor.TOO_FEW else None,
            change=f"up to {3 + place}",
        )
        for place, (name, verdict) in enumerate(zip(monitor.WORDS, verdicts, strict=False))
    }
    return monitor.Report(images=40, units=1030, test_units=9000, tables=tables, most_unusual=())


@pytest.mark.parametrize(
    ("verdicts", "verdict", "last"),
    [
        (("differs", "similar"), "differs", ("WARNING", "predicted class", monitor.ADVICE)),
        (("too few", "differs"), "differs", ("WARNING", "largest probability", monitor.ADVICE)),
        (("similar", "too few"), "similar", ("predicted class",)),
        (("similar", "similar"), "similar", ("predicted class, largest probability",)),
        (("too few", "too few"), "too few", ("1,030", 60)),
    ],
)
def test_the_verdict_is_the_worst_of_all_tables(
    verdicts: tuple[str, ...], verdict: str, last: tuple[object, ...]
) -> None:
    made = report(*verdicts, needed=60)
    first, one, other, end = made.list_lines()
    assert made.verdict == made.to_dict()["verdict"] == verdict
    check_tokens(first, "1,030", "9,000")
    check_tokens(one, "predicted class", verdicts[0], "30 points", 10, "up to 3")
    check_tokens(other, "largest probability", verdicts[1], "50 points", 15, "up to 4")
    check_tokens(end, *last)
    assert ("WARNING" in end) == (verdict == "differs")


# New rows in the tables of a bundle

CLASSES = ("a", "b", "c")
TYPICAL = np.eye(1, 3, dtype=np.float32)


def bundle_of(unusual: bool = True, change: Any = None) -> Any:
    scores = 2 * np.random.default_rng(6).normal(size=(300, 3))
    plan = made_plan(watching.monitor_mechanisms(unusual=unusual), 300, 2.0)
    block = watching.monitor_head(
        draw_of(
            replace(head(3), typical=TYPICAL[None] if unusual else None),
            of_test_rows(scores, np.zeros(300, np.int64)),
        ),
        plan,
        probe_norm=2.0,
        calibration=None,
        link="softmax",
        together=None,
    )
    if change is not None:
        change(block)
    facts = SimpleNamespace(class_names=CLASSES, name="v1", dimension=3)
    arrays = {"typical_directions": TYPICAL} if unusual else {}
    return SimpleNamespace(statement={"monitor": block}, facts=facts, arrays=arrays)


def watch_rows(rows: Any, groups: Any = None, *, unusual: bool = True, step: int = 7) -> Any:
    watch = monitor.Watch(bundle_of(unusual), Transform(NoNormalisation()), groups or {})
    names = [f"{number}.png" for number in range(len(rows))]
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        watch.add_rows(names[part], softmax(rows[part], axis=1), rows[part])
    return watch.compare()


def draw(count: int = 60, moved: float = 0.0) -> Any:
    rows = 2 * np.random.default_rng(1).normal(size=(count, 3)) + [moved, 0, 0]
    return rows.astype(np.float32)


@pytest.mark.parametrize("unusual", [False, True])
def test_rows_like_the_test_units_look_alike_and_moved_ones_do_not(unusual: bool) -> None:
    alike, moved = (watch_rows(draw(moved=each), unusual=unusual) for each in (0.0, 9.0))
    assert (alike.images, alike.units, alike.test_units) == (60, 60, 300)
    assert alike.verdict == monitor.SIMILAR
    assert moved.verdict == monitor.DIFFERENT
    assert moved.tables["predicted_class"].change.startswith("a: 100% here")
    assert ("unusualness" in alike.tables) == unusual


def test_images_of_a_group_count_as_one() -> None:
    """Forty images in pairs and twenty others are forty units; one group of all is one unit."""
    pairs = {f"{row}.png": f"g{row // 2}" for row in range(40)}
    found = watch_rows(draw(), pairs)
    assert (found.images, found.units) == (60, 40)
    one = watch_rows(draw(), {f"{row}.png": "g" for row in range(60)})
    assert one.units == 1
    assert one.verdict == monitor.TOO_FEW
    rows = np.repeat(draw(20), 3, axis=0)
    thrice = watch_rows(rows, {f"{row}.png": f"g{row // 3}" for row in range(60)})
    once = watch_rows(draw(20))
    for name, table in thrice.tables.items():
        other = once.tables[name]
        assert (table.verdict, table.change) == (other.verdict, other.change)
        assert table.distance == pytest.approx(other.distance)


CHANGES: dict[str, Any] = {
    "n of 0": lambda block: block.update(n=0),
    "a table less": lambda block: block["tables"].pop("unusualness"),
    "a class less": lambda block: block["tables"]["predicted_class"].pop(),
    "a bin more": lambda block: block["tables"]["feature_norm"].append(1.0),
    "an edge less": lambda block: block["edges"]["largest_value"].pop(),
    "no edges of a table": lambda block: block["edges"].pop("unusualness"),
    "no edges": lambda block: block.update(edges=None),
    "a list of tables": lambda block: block.update(tables=[]),
    "no n": lambda block: block.pop("n"),
    "n as text": lambda block: block.update(n="x"),
    "two mechanisms": lambda block: block.update(mechanisms=block["mechanisms"] * 2),
    "texts as counts": lambda block: block["tables"].update(feature_norm=["x"] * 21),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_tables_that_do_not_fit_the_head_are_refused(change: Any) -> None:
    with refuses(DataError, "monitor"):
        monitor.Watch(bundle_of(change=change), Transform(L2()), {})


def test_tables_of_another_dimension_or_without_directions_are_refused() -> None:
    monitor.Watch(bundle_of(change=lambda block: block.update(n=1)), Transform(L2()), {})
    made = bundle_of()
    for arrays in ({}, {"typical_directions": np.eye(1, 4)}):
        made.arrays = arrays
        with refuses(DataError, "monitor"):
            monitor.Watch(made, Transform(L2()), {})
    made.statement = {}
    with refuses(ConfigError, "--monitor", "v1", "`monitor: {epsilon: 1}`"):
        monitor.Watch(made, Transform(L2()), {})
