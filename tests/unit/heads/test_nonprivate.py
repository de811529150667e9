"""The non-private baseline equals scikit-learn's, and chooses its penalty."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import OptimizeResult
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from sklearn.utils.class_weight import compute_sample_weight

from dpprobe import devices
from dpprobe.errors import ConfigError
from dpprobe.heads import logistic_regression
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.fitted import Heads
from dpprobe.heads.logistic_regression import Objective
from dpprobe.heads.nonprivate import Options
from dpprobe.heads.normalisation import NoNormalisation
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.rows import Rows
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.sgd import Options as Sgd
from dpprobe.heads.training_set import TrainingSet
from dpprobe.heads.transform import Transform
from dpprobe.privacy.plan import Plan
from tests.support.linear_heads import features_of


def training_set(rows: int = 300, noise: float = 1.5) -> TrainingSet:
    generator = torch.Generator().manual_seed(2)
    labels = torch.arange(rows) % 4
    centres = torch.randn(4, 12, generator=generator)
    features = centres[labels] + noise * torch.randn(rows, 12, generator=generator)
    features[:, 3] = 7.0  # constant: standardising must not divide by 0
    features[:, 5] = features[:, 5] * 0.1 + 50
    return TrainingSet(features, labels, 4)


def objective_of(data: TrainingSet, **options: bool) -> Objective:
    return Objective(Rows(data, Transform(NoNormalisation())), **options)


def fit(data: TrainingSet, seeds: int = 2, record: Any = None, **changes: Any) -> Heads:
    unit = "image" if data.units is None else "patient"
    plan = Plan(mechanisms=(), n=data.n, unit=unit, epsilon=math.inf, delta=1e-5, accountant="pld")
    return fit_heads(Options(**changes), data, plan, list(range(seeds)), record=record)


def patients(rows: int, seed: int = 0) -> list[str]:
    """Returns each row's patient: a third of the rows have the same, the others have many."""
    generator = np.random.default_rng(seed)
    return [f"p{0 if row % 3 == 0 else generator.integers(1, rows)}" for row in range(rows)]


def with_units(data: TrainingSet, names: list[str]) -> TrainingSet:
    assert data.features is not None
    units = Units.number_units(names)
    return TrainingSet(data.features.clone(), data.labels, data.num_classes, units=units)


def sklearn_probabilities(
    data: TrainingSet, penalty: float, *, balanced: bool = False
) -> np.ndarray:
    """Uses weighted means, deviations and losses; several labels are fitted one by one."""
    weights = None if data.weights is None else data.weights.double().numpy()
    if balanced:
        weights = compute_sample_weight("balanced", data.labels.numpy())
    scaler = StandardScaler()
    features = scaler.fit_transform(features_of(data).double().numpy(), sample_weight=weights)
    model = LogisticRegression(C=1 / (penalty * data.n), tol=1e-9, max_iter=10_000)
    found = [
        model.fit(features, column, sample_weight=weights).predict_proba(features)
        for column in (data.labels.numpy().T if data.multi_label else [data.labels.numpy()])
    ]
    return np.column_stack([each[:, 1] for each in found]) if data.multi_label else found[0]


@pytest.fixture(params=["float32", "float64"])
def _each_precision(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Computes as on the CPU, or as on a GPU."""
    if request.param == "float64":
        monkeypatch.setattr(devices, "has_kernels", lambda _: False)


@pytest.mark.usefixtures("_each_precision")
@pytest.mark.parametrize("penalty", [1e-3, 1e-1])
@pytest.mark.parametrize("kind", ["rows", "patients", "several", "balanced"])
def test_solution_is_scikit_learns(kind: str, penalty: float) -> None:
    data = training_set()
    if kind == "patients":
        data = with_units(data, patients(300))
    if kind == "several":
        labels = [data.labels == 1, data.labels >= 2, data.labels % 2 == 0]
        data = TrainingSet(features_of(data), torch.stack(labels, 1).to(torch.uint8), 3)
    balanced = {"balanced": True} if kind == "balanced" else {}
    if balanced:  # class 3 is rare, and class 4 has no rows
        kept = torch.nonzero((data.labels < 3) | (torch.arange(300) < 40)).ravel()
        data = TrainingSet(features_of(data)[kept], data.labels[kept], 5)
    actual = fit(data, penalties=(penalty,), tolerance=1e-6, **balanced)
    scores = torch.from_numpy(score_rows(actual, features_of(data))[0])
    shares = scores.sigmoid() if data.multi_label else torch.softmax(scores, 1)
    wanted = sklearn_probabilities(data, penalty, **balanced)
    np.testing.assert_allclose(shares.numpy()[:, : wanted.shape[1]], wanted, atol=2e-3)


def test_one_scale_is_the_root_of_the_mean_variance() -> None:
    data = training_set()
    objective = objective_of(data, one_scale=True)
    start, stopping = objective.zero_parameters(), Options(tolerance=1e-6).stopping
    solution = objective.find_minimum(objective.everyone, 1e-2, start, stopping)
    features = features_of(data).double().numpy()
    scale = np.sqrt(features.var(0).mean())
    model = LogisticRegression(C=1 / (1e-2 * data.rows), tol=1e-9, max_iter=10_000)
    wanted = model.fit(features / scale, data.labels.numpy()).coef_ / scale
    np.testing.assert_allclose(objective.raw_weights(solution)[:, :-1], wanted, atol=1e-3)


@pytest.mark.parametrize(("largest", "penalty"), [(1e6, 1e-5), (1.0, 1e-9)])
def test_rounding_may_outweigh_a_penalty(largest: float, penalty: float) -> None:
    """An outlier or dependent features do not stop a fit early: autograd finds no slope left."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(520, 4, generator=generator) @ torch.randn(4, 512, generator=generator)
    if largest > 1:
        features = torch.randn(520, 512, generator=generator)
        features[0] *= largest
    data = TrainingSet(features, torch.arange(520) % 3, 3)
    objective = objective_of(data)
    start = objective.zero_parameters()
    found = objective.find_minimum(objective.everyone, penalty, start, Options().stopping)
    assert objective.mean_loss(found, objective.everyone) < math.log(3)
    rows = torch.from_numpy(StandardScaler().fit_transform(features.double().numpy()))
    weights = torch.from_numpy(found).requires_grad_()
    logits = rows @ weights[:, :-1].T + weights[:, -1]
    loss = torch.nn.functional.cross_entropy(logits, data.labels)
    (loss + penalty / 2 * weights[:, :-1].square().sum()).backward()
    assert weights.grad is not None
    assert weights.grad.abs().max() < 1e-3


def test_rows_out_of_the_fold_have_no_say() -> None:
    data = training_set(120)
    options = Options(tolerance=1e-6)
    weights = torch.ones(120)
    weights[::3] = 0
    objective = objective_of(data)
    solution = objective.find_minimum(weights, 1e-2, objective.zero_parameters(), options.stopping)
    labels = data.labels.clone()
    labels[::3] = (labels[::3] + 1) % 4
    assert data.features is not None
    other = objective_of(TrainingSet(data.features, labels, 4))
    same = other.find_minimum(weights, 1e-2, other.zero_parameters(), options.stopping)
    np.testing.assert_allclose(same, solution, atol=1e-7)
    assert objective.count_correct(solution, weights == 0) > other.count_correct(
        solution, weights == 0
    )


def test_cross_validation_takes_the_penalty_that_predicts_best() -> None:
    noisy = fit(training_set(90, noise=6.0), record=lambda *_: None, penalties=(1e-5, 1e-1))
    assert noisy.history[0]["penalty"] == 1e-1
    # On easy data a very strong penalty loses to a small one; on ties the largest is chosen.
    easy = training_set(300, noise=0.8)
    assert easy.features is not None
    tilted = TrainingSet(easy.features, easy.labels.clamp(max=1), 2)
    chosen = fit(tilted, record=lambda *_: None, penalties=(1e-4, 1e3))
    assert chosen.history[0]["penalty"] == 1e-4
    alone = fit(training_set(1), record=lambda *_: None, penalties=(1e-4, 1e-2))
    assert alone.history[0]["penalty"] == 1e-2, "no fold trains on no row"


def test_duplicated_images_of_a_patient_do_not_change_the_head() -> None:
    once = training_set(120)
    assert once.features is not None
    copies = np.random.default_rng(0).integers(1, 30, size=120)
    rows = np.repeat(np.arange(120), copies)
    index = torch.from_numpy(rows)
    many = TrainingSet(
        once.features[index],
        once.labels[index],
        4,
        units=Units.number_units([f"{row:03}" for row in rows]),
    )
    assert many.n == 120
    record: Any = lambda *_: None  # noqa: E731
    one, other = (fit(data, record=record, tolerance=1e-6) for data in (once, many))
    assert one.history[0]["penalty"] == other.history[0]["penalty"]
    # weights of nearly constant features reach hundreds, so atol alone would be too strict
    np.testing.assert_allclose(one.weights, other.weights, rtol=1e-3, atol=2e-3)


def test_the_images_of_a_patient_are_in_one_fold() -> None:
    names = patients(300)
    objective = objective_of(with_units(training_set(), names))
    folds = objective.assign_folds(3).numpy()
    of_patient: dict[str, set[int]] = {}
    for name, fold in zip(names, folds, strict=True):
        of_patient.setdefault(name, set()).add(int(fold))
    assert {len(found) for found in of_patient.values()} == {1}
    sizes = np.bincount([found.pop() for found in of_patient.values()])
    assert sizes.max() - sizes.min() <= 1
    alone = objective_of(training_set(7)).assign_folds(3)
    assert alone.tolist() == [0, 1, 2, 0, 1, 2, 0], "also of sorted classes"


def test_the_penalty_of_a_balanced_fit_counts_classes_equally() -> None:
    """The rare class counts by its recall, although it has only a tenth of the rows."""
    data = training_set(200)
    kept = torch.nonzero((data.labels == 0) | (torch.arange(200) < 20)).ravel()
    few = TrainingSet(features_of(data)[kept], data.labels[kept], 4)
    objective = objective_of(few, balanced=True)
    options = Options(balanced=True)
    start = objective.zero_parameters()
    solution = objective.find_minimum(objective.everyone, 1e-1, start, options.stopping)
    everyone = torch.ones(len(kept), dtype=torch.bool)
    counted = objective.count_correct(solution, everyone) / objective.decisions
    right = score_labels(objective, solution, few) == few.labels.numpy()
    recalls = [right[few.labels.numpy() == label].mean() for label in range(4)]
    assert counted == pytest.approx(np.mean(recalls), abs=1e-6)
    assert np.mean(recalls) != pytest.approx(right.mean(), abs=1e-3)


def score_labels(objective: Objective, solution: np.ndarray, data: TrainingSet) -> np.ndarray:
    weights = objective.raw_weights(solution)
    scores = features_of(data).double().numpy() @ weights[:, :-1].T + weights[:, -1]
    return np.argmax(scores, 1)


@pytest.mark.parametrize(
    ("metric", "several", "asked", "balanced"),
    [
        ("macro_accuracy", False, None, True),
        ("macro_accuracy", False, False, False),
        ("macro_accuracy", True, None, None),
        ("accuracy", False, None, None),
        ("auc", False, True, True),
    ],
)
def test_the_baseline_optimises_the_headline_metric(
    metric: str, several: bool, asked: bool | None, balanced: bool | None
) -> None:
    followed = Options(balanced=asked).follow_metric(metric, multi_label=several)
    assert followed.balanced is balanced
    assert Sgd().follow_metric(metric, multi_label=several) == Sgd()  # has no such rule


def test_a_balanced_fit_needs_one_label() -> None:
    data = training_set(40)
    labels = torch.stack([data.labels == 1, data.labels >= 2], 1).to(torch.uint8)
    several = TrainingSet(features_of(data), labels, 2)
    with pytest.raises(ConfigError, match="nonprivate: balanced needs one label per row"):
        fit(several, balanced=True)


@pytest.mark.parametrize(("status", "level"), [(1, "WARNING"), (2, "INFO")])
def test_only_a_fit_with_too_few_iterations_asks_for_something(
    status: int, level: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SciPy's status 2 means that no step lowered the loss."""
    ended = OptimizeResult(success=False, status=status, x=np.zeros(4 * 13))
    monkeypatch.setattr(logistic_regression, "minimize", lambda *_, **__: ended)
    caplog.set_level("INFO", logger="dpprobe")
    fit(training_set(), penalties=(0.1,))
    said = [each for each in caplog.records if "ended early" in each.message]
    assert {each.levelname for each in said} == {level}
    assert ("set a larger number" in said[0].message) == (level == "WARNING")
