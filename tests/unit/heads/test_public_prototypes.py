"""Prototypes from public rows: what a unit moves, the law of the draws, candidates, the head."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpprobe.errors import ConfigError, DataError, PrivacyError
from dpprobe.heads.fit import check_plan, fit_heads
from dpprobe.heads.normalisation import L2, NoNormalisation
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.public_prototypes import (
    CHOICES,
    Candidates,
    Options,
    class_scores,
    on_grid,
    read_candidates,
)
from dpprobe.heads.registry import method_options
from dpprobe.heads.rows import Rows, Transform
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.calibration import calibrate
from dpprobe.privacy.grid import GridSum
from dpprobe.privacy.plan import GAUSSIAN, Plan
from dpprobe.privacy.releases import Releases
from dpprobe.privacy.statement import kind_of, mechanism_values, mechanisms_of
from tests.support.feature_stores import public_store, write_split, write_store
from tests.support.second_order_data import Stream

DIMENSION, CLASSES = 5, 3


def options(**values: Any) -> Options:
    return Options(public_features="unused", **values)


def store_of(folder: Path, features: np.ndarray) -> str:
    """The manifest of public rows."""
    manifest = write_split(
        folder, features, np.zeros(len(features), dtype=np.int64), split="train",
        class_names=("a",), dataset_fingerprint="public", backbone_fingerprint="none",
        ids=[str(row) for row in range(len(features))],
    )  # fmt: skip
    return str(manifest)


def candidates_of(vectors: torch.Tensor) -> Candidates:
    centre = vectors.mean(0)
    directions = torch.nn.functional.normalize(vectors - centre, dim=1)
    return Candidates(centre, directions, on_grid(vectors, centre))


def rows_of(data: TrainingSet) -> Rows:
    return Rows(data, Transform(L2()))


def random_rows(
    seed: int, rows: int = 40, *, several: bool = False, units: int | None = None
) -> tuple[torch.Tensor, torch.Tensor, Units | None]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, DIMENSION, generator=generator)
    labels = torch.randint(CLASSES, (rows,), generator=generator)
    if several:
        labels = (torch.rand(rows, CLASSES, generator=generator) < 0.5).to(torch.uint8)
    of = torch.randint(units, (rows,), generator=generator) if units else None
    return (
        features,
        labels,
        None if of is None else Units.number_units([f"{unit}" for unit in of.tolist()]),
    )


def change(
    scored: Options,
    features: torch.Tensor,
    labels: torch.Tensor,
    units: Units | None,
    members: list[int],
    candidates: Candidates,
) -> tuple[GridSum, torch.Tensor]:
    """Scores, and by how much null rows in the place of these rows lower them."""
    scores = []
    for null in (False, True):
        kept = features.clone()
        if null:
            kept[members] = math.nan
        data = TrainingSet(kept, labels, CLASSES, units=units)
        scores.append(class_scores(scored, rows_of(data), candidates))
    assert scores[0].step == scores[1].step
    return scores[0], scores[0].values - scores[1].values


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    several=st.booleans(),
    units=st.sampled_from([None, 1, 3, 11]),
    max_labels=st.integers(1, 3),
    scale=st.sampled_from([1e-12, 1.0, 1e12]),
)
def test_a_unit_lowers_all_scores_by_no_more_than_the_sensitivity(
    seed: int, several: bool, units: int | None, max_labels: int, scale: float
) -> None:
    """Summed over classes, for whatever candidates are drawn: range and monotonicity."""
    features, labels, of = random_rows(seed, several=several, units=units)
    public = torch.randn(20, DIMENSION, generator=torch.Generator().manual_seed(seed + 1))
    scored = options(max_labels=max_labels, similarity=(-0.5, 0.5))
    members = [7] if of is None else of.members[of.starts[0] : of.starts[1]].tolist()
    scores, moved = change(scored, features * scale, labels, of, members, candidates_of(public))
    units_of = scores.units
    assert torch.equal(units_of, units_of.trunc())
    assert (units_of >= 0).all()
    assert units_of.max() <= 2**52
    assert (moved >= 0).all()
    (mechanism,) = scored.list_releases(40)
    assert float(moved.amax(1).sum()) <= mechanism.sensitivity
    assert float((moved.amax(1) - moved.amin(1)).sum()) <= mechanism.sensitivity


def test_the_sensitivity_is_reached() -> None:
    """A row in a candidate's direction, opposite to another's, adds 1 to one of them alone."""
    public = torch.eye(DIMENSION)
    features = torch.randn(30, DIMENSION, generator=torch.Generator().manual_seed(0))
    centre = public.mean(0)
    features[4] = centre + 5 * (public[0] - centre)
    labels = torch.zeros(30, dtype=torch.int64)
    candidates = candidates_of(public)
    rows = Rows(TrainingSet(features, labels, CLASSES), Transform(NoNormalisation()))
    assert candidates.entries.norm(dim=1).max() <= 2**12
    full = class_scores(options(), rows, candidates).values
    features[4] = math.nan
    rows = Rows(TrainingSet(features, labels, CLASSES), Transform(NoNormalisation()))
    moved = full - class_scores(options(), rows, candidates).values
    assert moved[0, 0] == 1.0
    assert moved[0, 1:].max() == 0.0
    assert not moved[1:].any()


def law(scores: torch.Tensor, rate: float, draws: int) -> dict[tuple[int, ...], float]:
    """The probability of each sequence of a group's draws."""
    weights = torch.exp(rate * (scores - scores.max())).double()
    chances = {}
    for sequence in itertools.permutations(range(len(scores)), draws):
        chance, left = 1.0, float(weights.sum())
        for place in sequence:
            chance *= float(weights[place]) / left
            left -= float(weights[place])
        chances[sequence] = chance
    return chances


def joint(scores: torch.Tensor, rate: float, draws: int) -> np.ndarray:
    """The law of all classes' draws."""
    each = [list(law(group, rate, draws).values()) for group in scores]
    return np.asarray([math.prod(chances) for chances in itertools.product(*each)])


@pytest.mark.parametrize("draws", [1, 2])
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("units", [None, 6])
def test_the_released_tuple_has_the_range_and_the_epsilon_that_are_priced(
    draws: int, several: bool, units: int | None
) -> None:
    """Exact laws of the real scores of neighbours, whose unit has rows in several classes."""
    public = torch.randn(4, DIMENSION, generator=torch.Generator().manual_seed(9))
    eta = 1.3
    for seed in range(6):
        features, labels, of = random_rows(seed, 24, several=several, units=units)
        members = [3] if of is None else of.members[of.starts[2] : of.starts[3]].tolist()
        scored = options(max_labels=2 if several else 1)
        scores, moved = change(scored, features, labels, of, members, candidates_of(public))
        rate = eta / scored.max_labels
        with_unit = joint(scores.values, rate, draws)
        without = joint(scores.values - moved, rate, draws)
        assert with_unit.sum() == pytest.approx(1)
        ratios = np.log(with_unit / without)
        assert np.abs(ratios).max() <= draws * eta + 1e-9
        if draws == 1:
            assert np.ptp(ratios) <= eta + 1e-9


def test_scores_are_sums_of_clipped_cosines() -> None:
    features, labels, units = random_rows(3, 60, units=25)
    assert units is not None
    public = torch.randn(30, DIMENSION, generator=torch.Generator().manual_seed(4))
    scored = options(similarity=(-0.2, 0.6))
    rows = rows_of(TrainingSet(features.clone(), labels, CLASSES, units=units))
    scores = class_scores(scored, rows, candidates_of(public)).values
    centre = public.mean(0)
    unit = torch.nn.functional.normalize(features, dim=1) - centre
    cosines = (
        torch.nn.functional.normalize(unit, dim=1)
        @ torch.nn.functional.normalize(public - centre, dim=1).T
    )
    shares = ((cosines + 0.2) / 0.8).clamp(0, 1).double()
    weights = (
        torch.nn.functional.one_hot(labels, CLASSES) * torch.from_numpy(units.weights)[:, None]
    )
    torch.testing.assert_close(scores, weights.double().T @ shares, atol=2e-2, rtol=2e-3)


def test_scores_are_the_same_bits_in_any_order_and_from_a_stream() -> None:
    features, labels, units = random_rows(5, 3000, units=700)
    public = candidates_of(torch.randn(50, DIMENSION, generator=torch.Generator().manual_seed(4)))
    expected = class_scores(
        options(), rows_of(TrainingSet(features.clone(), labels, CLASSES, units=units)), public
    ).units
    order = torch.randperm(3000, generator=torch.Generator().manual_seed(6))
    codes = np.empty(3000, dtype=np.int64)
    assert units is not None
    codes[units.members] = np.repeat(np.arange(units.count), np.diff(units.starts))
    mixed = Units.number_units([f"{code:05d}" for code in codes[order].tolist()])
    other = TrainingSet(features[order], labels[order], CLASSES, units=mixed)
    assert torch.equal(class_scores(options(), rows_of(other), public).units, expected)
    stream = TrainingSet(Stream(features), labels, CLASSES, units=units)
    assert torch.equal(class_scores(options(), rows_of(stream), public).units, expected)


def test_candidates_are_evenly_spaced_rows_of_use(tmp_path: Path) -> None:
    public = np.random.default_rng(0).normal(size=(11, DIMENSION)).astype(np.float32)
    public[2], public[5, 1] = 0.0, math.nan
    manifest = store_of(tmp_path, public)
    rows = rows_of(TrainingSet(*random_rows(1)[:2], CLASSES))
    every = read_candidates(Options(public_features=manifest), rows)
    usable = np.delete(public, [2, 5], 0)
    unit = usable / np.linalg.norm(usable, axis=1, keepdims=True)
    np.testing.assert_allclose(every.centre, unit.mean(0), atol=1e-6)
    offsets = unit - unit.mean(0)
    offsets /= np.linalg.norm(offsets, axis=1, keepdims=True)
    np.testing.assert_allclose(every.directions, offsets, atol=1e-5)
    few = read_candidates(Options(public_features=manifest, candidates=3, top=1), rows)
    np.testing.assert_allclose(few.centre, unit[[0, 3, 6]].mean(0), atol=1e-6)


def test_a_head_is_the_mean_of_its_draws(tmp_path: Path) -> None:
    public = np.random.default_rng(0).normal(size=(30, DIMENSION)).astype(np.float32)
    method = Options(public_features=store_of(tmp_path, public), top=4)
    features, labels, _ = random_rows(2, 400)
    features[torch.arange(400), labels] += 2
    data = TrainingSet(features, labels, CLASSES)
    heads = fit_heads(method, data, plan_of(method, data.n, 0.0), [1, 2])
    rows = rows_of(data)
    candidates = read_candidates(method, rows)
    scores = class_scores(method, rows, candidates).units
    best = scores.argsort(dim=1, descending=True, stable=True)[:, :4]
    means = torch.nn.functional.normalize(candidates.directions[best].mean(1), dim=1)
    for weights in heads.weights:
        np.testing.assert_allclose(weights[:, :-1], means, atol=1e-6)
        np.testing.assert_allclose(weights[:, -1], -(means @ candidates.centre), atol=1e-6)
    chosen = score_rows(heads, features.numpy())[0].argmax(1)
    angles = (torch.nn.functional.normalize(features, dim=1) - candidates.centre) @ means.T
    np.testing.assert_array_equal(chosen, angles.argmax(1))
    assert (chosen == labels.numpy()).mean() > 0.7


def plan_of(method: Options, n: int, noise: float) -> Plan:
    private = noise > 0
    return Plan(
        mechanisms=tuple(item.scale_noise(noise) for item in method.list_mechanisms(n)),
        n=n,
        epsilon=1.0 if private else math.inf,
        delta=1e-5,
        accountant="pld",
        realised_epsilon=1.0 if private else math.inf,
    )


def test_a_class_without_rows_draws_at_random(tmp_path: Path) -> None:
    public = np.random.default_rng(0).normal(size=(8, DIMENSION)).astype(np.float32)
    method = Options(public_features=store_of(tmp_path, public), top=1)
    features, labels, _ = random_rows(2, 400)
    labels[labels == 2] = 0
    data = TrainingSet(features, labels, CLASSES)
    heads = fit_heads(method, data, plan_of(method, data.n, 1e-3), list(range(1, 60)))
    drawn = [len(np.unique(heads.weights[:, label].round(4), axis=0)) for label in range(CLASSES)]
    assert drawn[:2] == [1, 1], "with hundreds of rows and next to no noise the best is drawn"
    assert drawn[2] == 8


def test_rows_without_labels_and_without_numbers_leave_no_trace(tmp_path: Path) -> None:
    public = np.random.default_rng(0).normal(size=(30, DIMENSION)).astype(np.float32)
    method = Options(public_features=store_of(tmp_path, public))
    features, labels, _ = random_rows(2, 50, several=True)
    labels[7] = 0
    weights = []
    for value in (1.0, math.nan, math.inf):
        changed = features.clone()
        changed[7] = value
        data = TrainingSet(changed, labels, CLASSES)
        weights.append(fit_heads(method, data, plan_of(method, 50, 1.0), [1]).weights)
    np.testing.assert_array_equal(weights[0], weights[1])
    np.testing.assert_array_equal(weights[0], weights[2])


def test_a_noisy_centre_and_draws_share_a_budget(tmp_path: Path) -> None:
    """A priced normalisation: candidates are centred by what it released."""
    store = write_store(tmp_path, rows=600, dimension=12, classes=4)
    from dpprobe.features.feature_store import FeatureStore

    read = FeatureStore(store)
    labels = torch.from_numpy(np.asarray(read.labels).astype(np.int64))
    method = Options(public_features=str(public_store(12)), normalize={"kind": "centred"})
    plan = calibrate(
        method.list_mechanisms(600), n=600, epsilon=8, delta=1e-4, accountant="pld",
        cache=tmp_path / "cache",
    )  # fmt: skip
    assert [item.name for item in plan.mechanisms] == ["centre", CHOICES]
    heads = fit_heads(method, TrainingSet(torch.from_numpy(read.read()), labels, 4), plan, [1, 2])
    chosen = score_rows(heads, read.read()).argmax(2)
    assert ((chosen == labels.numpy()).mean(1) > 0.7).all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"similarity": (0.5, 0.5)}, "the smaller one first"),
        ({"similarity": (-1.1, 0.5)}, "from -1 to 1"),
        ({"similarity": (math.nan, 0.5)}, "finite number"),
        ({"top": 6, "candidates": 5}, "top 6 is more than the 5 candidates"),
        ({"top": 0}, "greater than or equal to 1"),
        ({"candidates": 10**6}, "less than or equal to"),
    ],
)
def test_options_that_make_no_sense(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        options(**values)


def test_public_rows_that_do_not_fit(tmp_path: Path) -> None:
    data = TrainingSet(*random_rows(1)[:2], CLASSES)
    for name, public, values, error, message in (
        (
            "wide",
            np.ones((5, 9)),
            {"top": 1},
            DataError,
            "dimension 9, but the private features have 5",
        ),
        ("empty", np.zeros((5, 5)), {"top": 1}, DataError, "every row is all 0 or has"),
        ("few", np.eye(5), {"top": 6}, ConfigError, "top 6: .* has 5 candidates"),
    ):
        manifest = store_of(tmp_path / name, np.asarray(public, dtype=np.float32))
        method = Options(public_features=manifest, **values)
        with pytest.raises(error, match=message):
            fit_heads(method, data, plan_of(method, 40, 1.0), [1])


def test_one_candidate_is_chosen_without_a_choice(tmp_path: Path) -> None:
    manifest = store_of(tmp_path, np.ones((1, DIMENSION), dtype=np.float32))
    method = Options(public_features=manifest, top=1)
    data = TrainingSet(*random_rows(1)[:2], CLASSES)
    heads = fit_heads(method, data, plan_of(method, 40, 1.0), [1])
    assert np.isfinite(heads.weights).all()


def test_a_plan_of_another_kind_is_refused() -> None:
    method = options(top=2)
    plan = plan_of(method, 40, 1.0)
    check_plan(method, plan)
    as_gaussian = tuple(replace(item, kind=GAUSSIAN) for item in plan.mechanisms)
    other = replace(plan, mechanisms=as_gaussian)
    with pytest.raises(PrivacyError, match="kind 'gaussian' in the plan but 'exponential'"):
        check_plan(method, other)
    scores = GridSum(torch.zeros(1, 3, dtype=torch.float64))
    with pytest.raises(PrivacyError, match="the plan has random selections for it"):
        Releases(plan, [1], torch.device("cpu")).release_gaussian(CHOICES, scores)
    with pytest.raises(PrivacyError, match="not random selections"):
        Releases(other, [1], torch.device("cpu")).release_exponential(CHOICES, scores)
    releases = Releases(plan, [1], torch.device("cpu"))
    with pytest.raises(PrivacyError, match="whole numbers"):
        releases.release_exponential(CHOICES, GridSum(scores.units + 0.5))
    releases = Releases(plan, [1], torch.device("cpu"))
    with pytest.raises(PrivacyError, match="not finite"):
        releases.release_exponential(CHOICES, GridSum(scores.units + math.nan))
    releases = Releases(plan, [1], torch.device("cpu"))
    assert releases.release_exponential(CHOICES, scores).shape == (1, 1, 2)
    with pytest.raises(PrivacyError, match="4 noisy releases were made, but epsilon covers 2"):
        releases.release_exponential(CHOICES, scores)


def test_an_audit_is_refused_for_its_true_reason() -> None:
    assert options().audit_fault is not None
    assert "releases randomly selected images; dpprobe's" in str(options().audit_fault)

    class Watching:
        """An observer that is never asked."""

    plan = plan_of(options(), 40, 1.0)
    releases = Releases(plan, [1], torch.device("cpu"), observer=Watching())  # type: ignore[arg-type]
    with pytest.raises(PrivacyError, match="an audit tests sums"):
        releases.release_exponential(CHOICES, GridSum(torch.zeros(1, 9, dtype=torch.float64)))


def test_a_statement_tells_draws_from_sums() -> None:
    plan = plan_of(options(top=3, max_labels=2), 40, 4.0)
    (mechanism,) = plan.mechanisms
    values = mechanism_values(mechanism, plan)
    assert values["noise"] == "exponential mechanism"
    assert kind_of(values["noise"]) == mechanism.kind
    assert values["temperature"] == 8.0
    assert values["bounded_range"] == 0.25
    assert values["noise_standard_deviation"] == pytest.approx(8 * math.pi / math.sqrt(6))
    assert "moves the scores" in values["sensitivity_of"]
    assert mechanisms_of({"mechanisms": [values]}) == (mechanism,)


def test_a_search_of_the_sensitivity_says_what_trials_do() -> None:
    """Draws clip no rows: their temperature follows the trial's sensitivity."""
    base = {"head": "public_prototypes", "public_features": "x", "top": 1}
    for name, values in (("max_labels", [1, 2]), ("candidates", [50, 60])):
        method = method_options({"head": "tuned", "base": base, "search": {name: values}})
        _, choices = method.list_mechanisms(40)
        assert choices.is_exponential
        assert "clip" not in choices.released
        said = "temperature in proportion" in choices.released
        assert said == (name == "max_labels")
