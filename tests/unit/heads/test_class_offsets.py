"""Mean scores of classes: the released sums, their effect, and what they improve."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from dpprobe.errors import ConfigError
from dpprobe.heads.class_offsets import OFFSET_CLASSES
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.fitted import Heads
from dpprobe.heads.options import CLASS_OFFSETS
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.registry import method_options
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.noise_calibration import calibrate
from dpprobe.privacy.target import Target
from tests.support.linear_heads import plan_for
from tests.support.mechanisms import made_plan
from tests.support.observers import Watching
from tests.support.refusals import refuses
from tests.support.second_order_data import classes_of

from .conftest import split_rows

pytestmark = pytest.mark.usefixtures("several_blocks")

OFFSETS = {"class_priors": "released", "offset_share": 0.1}
HEADS: dict[str, dict[str, Any]] = {
    "momentum": {"head": "momentum", "steps": 3},
    "momentum, exact": {"head": "momentum", "engine": "exact", "steps": 3},
    "momentum, whitened": {"head": "momentum", "normalize": "whitened", "steps": 3},
    "adam, l2": {"head": "adam", "normalize": "l2", "steps": 3},
    "newton": {"head": "newton", "steps": 2},
    "feature_covariance": {"head": "feature_covariance", "steps": 2},
}
EACH = pytest.mark.parametrize("name", HEADS)
ROWS, CLASSES, NULL = 60, 4, 5
LABELS = torch.tensor([0] * 30 + [1] * 20 + [2] * 9 + [3])


def fits_of(
    name: str, noise: float, units: Units | None = None, observer: Watching | None = None
) -> tuple[Heads, Heads, TrainingSet]:
    """Returns heads with and without offsets; the noise of all other releases is equal."""
    method = method_options(HEADS[name] | OFFSETS)
    equal = {"class_priors": "released", "prior_share": 0.02 / 0.9}
    plain = method_options(HEADS[name] | equal)
    features = classes_of(ROWS)[0]
    features[NULL] = math.nan
    data = TrainingSet(features, LABELS, CLASSES, units=units)
    plan = plan_for(method, data.n, noise)
    others = made_plan([each for each in plan.mechanisms if each.name != CLASS_OFFSETS], data.n)
    seeds = [1] if observer else [1, 2]
    moved = fit_heads(method, data, plan, seeds, observer=observer)
    return moved, fit_heads(plain, data, others, seeds), data


def scores_of(heads: Heads, index: int, data: TrainingSet) -> npt.NDArray[np.float64]:
    """Returns the scores of the training rows minus their mean over classes, by a plain product."""
    assert data.features is not None
    rows = heads.transforms[index](data.features.clone()).double().numpy()
    weights = heads.weights[index].astype(np.float64)
    scores = rows @ weights[:, :-1].T + weights[:, -1]
    return np.asarray(scores - scores.mean(1, keepdims=True))


class Shown(Watching):
    """Stores the values that a release shows to its observer."""

    def __init__(self) -> None:
        super().__init__(through=True)
        self.values: dict[str, npt.NDArray[np.float64]] = {}

    def see_values(self, name: str, seeds: Any, values: torch.Tensor) -> None:
        del seeds
        self.values[name] = values[0].double().numpy()


@pytest.mark.parametrize("name", [name for name in HEADS if "whitened" not in name])
def test_the_sum_is_of_clipped_scores_by_unit_and_class(name: str) -> None:
    """A plain loop over units gives the same sum; null rows add nothing."""
    shown = Shown()
    units = Units.number_units([f"{row // 7}" for row in range(ROWS)])
    _, before, data = fits_of(name, 0.05, units, shown)  # the priors are not equal
    assert before.priors is not None
    scores, prior = scores_of(before, 0, data), before.priors[0].astype(np.float64)
    heads = before.weights[0].astype(np.float64)
    width = 1.5 * np.linalg.norm((heads - heads.mean(0))[:, :-1]) / math.sqrt(data.dimension)
    total = np.zeros(CLASSES)
    for unit in range(units.count):
        mean = np.zeros(CLASSES)
        members = [row for row in range(ROWS) if row // 7 == unit]
        for row in members:
            if row == NULL:
                continue
            t = scores[row] / width
            t *= math.sqrt(prior.min() / prior[LABELS[row]]) / max(1.0, float(np.linalg.norm(t)))
            mean += t / len(members)
        assert np.linalg.norm(mean) <= 1
        total += mean
    (summed,) = shown.sums[CLASS_OFFSETS]
    np.testing.assert_allclose(summed, total, atol=2e-3)
    of_class = np.sqrt(prior.min() / prior)
    np.testing.assert_allclose(shown.values[OFFSET_CLASSES], of_class, rtol=1e-6)


@EACH
def test_offsets_change_only_biases(name: str) -> None:
    moved, before, _ = fits_of(name, 0.5)
    np.testing.assert_array_equal(moved.weights[..., :-1], before.weights[..., :-1])
    shift = moved.weights[..., -1] - before.weights[..., -1]
    assert np.abs(shift).min() > 0
    assert not np.array_equal(shift[0], shift[1]), "each seed has its noise"
    assert moved.priors is not None
    np.testing.assert_array_equal(moved.priors, before.priors)


def test_a_step_brings_the_mean_scores_to_0_where_none_is_clipped() -> None:
    """With equal classes and no clipping, the mean clipped score is the mean score."""
    features = classes_of(ROWS)[0] * 0.05 + torch.eye(12)[0] * 3
    labels = torch.arange(ROWS) % CLASSES
    method = method_options(HEADS["momentum"] | OFFSETS | {"normalize": "l2", "learning_rate": 1})
    data = TrainingSet(features, labels, CLASSES)
    heads = fit_heads(method, data, plan_for(method, ROWS, 0.0), [1])
    scores = scores_of(heads, 0, data)
    assert np.linalg.norm(scores, axis=1).max() < 1
    np.testing.assert_allclose(scores.mean(0), 0, atol=1e-6)


def test_weights_of_zero_take_no_step() -> None:
    method = method_options(HEADS["momentum"] | OFFSETS)
    data = TrainingSet(torch.zeros(ROWS, 9), LABELS, CLASSES)
    heads = fit_heads(method, data, plan_for(method, ROWS, 0.0), [1])
    assert np.isfinite(heads.weights).all()


def test_few_patients_are_answered_with_both_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the centre is mostly noise, offsets raise the balanced accuracy (40 seeds)."""
    split_rows(monkeypatch, 30_000)  # a row has 1,600 bytes
    generator = torch.Generator().manual_seed(0)
    n, d, directions = 100, 400, 30
    labels = (torch.arange(n) % 4 > 0).long()
    basis = torch.linalg.qr(torch.randn(d, directions + 1, generator=generator)).Q
    spread = torch.randn(n, directions, generator=generator) / math.sqrt(directions)
    spread[:, 0] += (labels - 0.5) * 0.6
    features = basis[:, 0] + 0.7 * spread @ basis[:, 1:].T
    data, balanced = TrainingSet(features, labels, 2), []
    for more in ({}, {"offset_share": 0.1}):
        method = method_options({"head": "momentum", "class_priors": "released", **more})
        target = Target(n=n, epsilon=1.0, delta=1e-5)
        plan = calibrate(method.list_mechanisms(n), target, cache=tmp_path)
        heads = fit_heads(method, data, plan, range(40))
        answers = np.asarray(score_rows(heads, features)).argmax(-1)
        recalls = [[(each[labels == k] == k).mean() for k in (0, 1)] for each in answers]
        balanced.append(np.mean(recalls, 1))
    gained = balanced[1] - balanced[0]
    assert gained.mean() > max(0.03, 3 * gained.std() / math.sqrt(len(gained)))


@pytest.mark.parametrize(
    ("values", "tokens"),
    [
        ({"offset_share": 0.1}, ["offset_share", "0.1", "class_priors"]),
        (OFFSETS | {"normalize": "none"}, ["offset_share", "none", "centred"]),
        (OFFSETS | {"prior_share": 0.95}, ["prior_share", "0.95", "offset_share"]),
    ],
)
def test_offsets_that_cannot_be_released_are_refused(
    values: dict[str, Any], tokens: list[str]
) -> None:
    with refuses(ConfigError, *tokens):
        method_options({"head": "momentum", **values})
