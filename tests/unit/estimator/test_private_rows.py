"""A fit refuses public files that were made from its own rows, and so prevents an attack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.estimator.array_inputs import MappedRows
from dpprobe.estimator.budget import Budget
from dpprobe.estimator.private_classifier import PrivateClassifier
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.public_inputs import PublicInputs, hash_file
from dpprobe.heads.registry import method_options
from dpprobe.heads.training_set import TrainingSet
from dpprobe.results.cell_files import WEIGHTS_FILE
from dpprobe.training.public_file_check import PrivateData
from tests.support.feature_stores import write_split
from tests.support.mechanisms import made_plan
from tests.support.refusals import refuses
from tests.unit.estimator.test_array_inputs import Source

DIMENSION, OWN, PEOPLE, IMAGES, TRIALS = 24, 8, 30, 24, 80  # OWN: columns of the first person
GROUPS = [f"person {row // IMAGES}" for row in range(PEOPLE * IMAGES)]
LABELS = np.arange(PEOPLE * IMAGES) // IMAGES % 2


def draw_rows(seed: int, *, member: bool) -> np.ndarray:
    """Returns rows of people; only the first person uses the last columns, and only as a member."""
    rows = np.random.default_rng(seed).normal(size=(len(LABELS), DIMENSION)).astype(np.float32)
    rows[:, 0] += LABELS
    rows[:, -OWN:] = 0
    rows[:IMAGES] = 0
    if member:
        rows[:IMAGES, -OWN:] = np.tile(np.eye(OWN), (IMAGES // OWN, 1))
    return rows


def store(folder: Path, rows: np.ndarray) -> str:
    labels = np.arange(len(rows)) % 2
    return str(write_split(folder, rows, labels, split="train", dataset_fingerprint=folder.name))


def fit(rows: Any, epsilon: float, head: dict[str, Any]) -> PrivateClassifier:
    classifier = PrivateClassifier(
        epsilon, head=head, classes=[0, 1], unit="group", budget=Budget(max_epsilon=9, delta=1e-6)
    )
    return classifier.fit(rows, LABELS, groups=GROUPS)


def lent(manifest: str) -> dict[str, Any]:
    return {"head": "feature_covariance", "public_covariance": manifest, "ridge": 1e-3}


def count_right_guesses(folder: Path, epsilon: float, *, own_rows: bool) -> int:
    """Guesses membership of the first person from `coef_`; returns the number of correct guesses.

    A covariance of the person's rows shrinks all weights in their direction, including the noise.
    """
    members = np.random.default_rng(1).random(TRIALS) < 0.5
    weights = np.empty(TRIALS)
    for trial, member in enumerate(members):
        rows = draw_rows(trial, member=bool(member))
        public = rows if own_rows else np.random.default_rng(900 + trial).normal(size=rows.shape)
        manifest = store(folder / f"trial{trial}", public.astype(np.float32))
        weights[trial] = np.square(fit(rows, epsilon, lent(manifest)).coef_[:, -OWN:]).mean()
    guesses = weights < np.sqrt(weights.min() * weights.max())
    return int((guesses == members).sum())


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "most"), [(0.1, 60), (1.0, 70)])
def test_membership_attack_on_a_public_covariance(
    epsilon: float, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A public covariance reveals nothing: at most e^eps / (1 + e^eps) correct, plus 4 deviations.

    The noise is secret, so the counts differ from run to run.
    """
    assert count_right_guesses(tmp_path / "public", epsilon, own_rows=False) <= most
    for trial, member in ((0, True), (1, False)):
        rows = draw_rows(trial, member=member)
        own = store(tmp_path / f"own{trial}", rows)
        source = Source((0, rows), rows=len(rows), dimension=DIMENSION)
        for given in (rows, MappedRows(rows), source):
            with pytest.raises(PrivacyError, match="public_covariance .*rows of the private data"):
                fit(given, epsilon, lent(own))
    monkeypatch.setattr(PrivateData, "check_rows", lambda *_: None)
    right = count_right_guesses(tmp_path / "private", epsilon, own_rows=True)
    assert right >= 0.9 * TRIALS  # the attack that the check prevents


def test_public_rows_of_a_file_are_compared_with_the_private_rows(tmp_path: Path) -> None:
    rows = draw_rows(0, member=True)
    own, other = tmp_path / "own.npy", tmp_path / "other.npy"
    np.save(own, np.random.default_rng(2).permutation(3 * rows))
    np.save(other, np.random.default_rng(3).normal(size=rows.shape))
    with refuses(PrivacyError, "public", "own.npy", "rows of the private data"):
        fit(rows, 1.0, {"head": "auto", "public": str(own)})
    fitted = fit(rows, 1.0, {"head": "auto", "public": str(other)})
    assert {*fitted.fit_.file_hashes} == {str(other)}
    with refuses(ConfigError, "public", "none.npy", "no such file"):
        fit(rows, 1.0, {"head": "auto", "public": str(tmp_path / "none.npy")})


def started(path: Path) -> dict[str, Any]:
    options = {"head": "sgd", "batch_size": "full", "steps": 3, "init": "file"}
    return options | {"init_file": str(path)}


def save_head(path: Path, weights: np.ndarray) -> Path:
    save_file({"weights": np.ascontiguousarray(weights)}, path)
    return path


@pytest.mark.parametrize(("factor", "dtype"), [(1.0, np.float32), (-2.5, np.float16)])
def test_a_scaled_copy_of_a_head_fitted_in_this_process_is_refused_as_init_file(
    factor: float, dtype: Any, tmp_path: Path
) -> None:
    rows = draw_rows(0, member=True)
    leaky = PrivateClassifier(head="nonprivate", epsilon=np.inf, benchmark=True).fit(rows, LABELS)
    copy = save_head(tmp_path / "start", (factor * leaky.coef_).astype(dtype))
    with pytest.raises(PrivacyError, match="init_file .*this process fitted on private rows"):
        fit(rows, 1.0, started(copy))
    other = save_head(tmp_path / "other", np.random.default_rng(4).normal(size=(2, DIMENSION)))
    far = store(tmp_path / "far", np.random.default_rng(5).normal(size=(40, DIMENSION)))
    two = lent(far) | {"init": "file", "init_file": str(other)}
    for given in (rows, FeatureStore(Path(store(tmp_path / "unknown", rows)))):
        assert fit(given, 1.0, started(other)).fit_.entry == 1
        assert {*fit(given, 1.0, two).fit_.file_hashes} == {far, str(other)}
    for missing in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError, match="init_file .*: no such file; correct the path"):
            fit(rows, 1.0, started(missing))
        with pytest.raises(ConfigError, match="public_covariance .*: no such file"):
            fit(rows, 1.0, two | {"public_covariance": str(missing)})


def test_cells_of_a_stores_study_are_found(tmp_path: Path) -> None:
    """Features from `read_features` lead to the study's cells, whose heads are private."""
    rows, results = draw_rows(0, member=True), tmp_path / "results"
    folder = results / "features/scans/vit"
    train = write_split(folder / "train", rows, LABELS, split="train", dataset_fingerprint="d1")
    features = FeatureStore(train)
    weights = np.random.default_rng(3).normal(size=(1, 2, DIMENSION + 1)).astype(np.float32)
    for place, dataset in enumerate(("scans", "moles")):
        cell = results / "cells" / dataset / "vit/sgd/eps-inf" / WEIGHTS_FILE
        cell.parent.mkdir(parents=True)
        save_head(cell, weights + place)
        start = started(save_head(tmp_path / "start", weights[0] + place))
        match = f"init_file .*the weights of a head in .*{dataset}.*eps-inf"
        with pytest.raises(PrivacyError, match=match):
            fit(features, 1.0, start)
    own = store(tmp_path / "copy", rows[::-1])
    with pytest.raises(PrivacyError, match="public_covariance .*of the private dataset scans"):
        fit(features, 1.0, lent(own))


def test_a_fit_refuses_an_uncompared_file(tmp_path: Path) -> None:
    """`fit_heads` refuses files that were never compared, or that changed after the comparison."""
    path = save_head(tmp_path / "start", np.ones((2, DIMENSION)))
    method = method_options(started(path))
    data = TrainingSet(torch.ones(40, DIMENSION), torch.arange(40) % 2, 2)
    plan = made_plan(method.list_mechanisms(40), 40)
    with pytest.raises(PrivacyError, match="init_file .*was not compared"):
        fit_heads(method, data, plan, [1])
    content = hash_file(str(path))
    assert content is not None
    data.public = PublicInputs(hashes={str(path): content})
    fit_heads(method, data, plan, [1])
    save_head(path, np.zeros((2, DIMENSION)))
    with pytest.raises(PrivacyError, match="init_file .*or it changed since"):
        fit_heads(method, data, plan, [1])
