"""Learning curves of heads (test metrics during training) agree with scikit-learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, roc_auc_score

from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads import scoring
from dpprobe.heads.normalisation import NoNormalisation
from dpprobe.heads.transform import Transform
from dpprobe.training import head_fits, job_features
from dpprobe.training.fit_inputs import FitInputs
from tests.support.feature_stores import write_split

ROWS, DIMENSION, CLASSES = 23, 4, 3
GENERATOR = np.random.default_rng(0)
FEATURES = GENERATOR.normal(size=(ROWS, DIMENSION)).astype(np.float32)
LABELS = GENERATOR.integers(3, size=ROWS)
SEVERAL = (GENERATOR.random((ROWS, CLASSES)) < 0.4).astype(np.uint8)
WEIGHTS = GENERATOR.normal(size=(2, CLASSES, DIMENSION + 1)).astype(np.float32)
PATIENTS = [f"p{row * row % 9}" for row in range(ROWS)]
COUNTS = np.array([1 / PATIENTS.count(name) for name in PATIENTS])
ABSENT = SEVERAL * np.array([1, 0, 1], np.uint8)


def measure(
    folder: Path, labels: np.ndarray, *, units: list[str] | None = None, memory_mb: int = 9
) -> dict[str, list[float]]:
    """Returns metrics of two heads on a test split with these labels, and three train rows."""
    several = labels.ndim == 2
    classes = labels.shape[1] if several else int(labels.max()) + 1
    names = tuple("abc"[:classes])
    train = np.eye(3, classes, dtype=np.uint8) if several else np.arange(3) % classes
    manifests = [
        write_split(folder / "train", FEATURES[:3], train, class_names=names),
        write_split(
            folder / "test",
            FEATURES[: len(labels)],
            labels,
            class_names=names,
            units=units,
            shards=min(3, len(labels)),
        ),
    ]
    stores = [FeatureStore(each) for each in manifests]
    features = job_features.read_job_features(
        FitInputs(stores[0], "image"),
        stores[1],
        device="cpu",
        memory_mb=memory_mb,
        headline="accuracy",
    )
    assert isinstance(features.test, FeatureStore) == (memory_mb == 0)
    observe = head_fits.make_observer(features, "sigmoid" if several else "softmax")
    heads = torch.from_numpy(WEIGHTS[:, :classes])
    observed: Any = observe(1, heads, Transform(NoNormalisation()))
    return dict(observed)


def scores_of(head: int, rows: int, classes: int) -> np.ndarray:
    weights = WEIGHTS[head, :classes].astype(np.float64)
    return FEATURES[:rows] @ weights[:, :-1].T + weights[:, -1]


@pytest.fixture(params=[9, 0], ids=["in memory", "streamed"])
def memory_mb(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Sets blocks of five rows, with three in the last; a streamed block is a shard's rows."""
    monkeypatch.setattr(scoring, "CHUNK_BYTES", 5 * 4 * DIMENSION)
    memory: int = request.param
    return memory


@pytest.mark.parametrize("units", [None, PATIENTS], ids=["images", "patients"])
def test_one_label_of_three_has_an_accuracy_alone(
    tmp_path: Path, memory_mb: int, units: list[str] | None
) -> None:
    found = measure(tmp_path, LABELS, units=units, memory_mb=memory_mb)
    weights = None if units is None else COUNTS
    expected = [
        accuracy_score(LABELS, scores_of(head, ROWS, 3).argmax(1), sample_weight=weights)
        for head in range(2)
    ]
    assert found.keys() == {"test_accuracy"}
    assert found["test_accuracy"] == pytest.approx(expected)


@pytest.mark.parametrize("units", [None, PATIENTS], ids=["images", "patients"])
@pytest.mark.parametrize("labels", [SEVERAL, ABSENT], ids=["all labels", "one that no row has"])
def test_several_labels_have_the_mean_auc_of_those_that_some_rows_have(
    tmp_path: Path, memory_mb: int, units: list[str] | None, labels: np.ndarray
) -> None:
    found = measure(tmp_path, labels, units=units, memory_mb=memory_mb)
    weights = np.ones(ROWS) if units is None else COUNTS
    present = [label for label in range(CLASSES) if labels[:, label].any()]
    scores = [scores_of(head, ROWS, CLASSES) for head in range(2)]
    areas = [
        roc_auc_score(labels[:, present], each[:, present], sample_weight=weights)
        for each in scores
    ]
    right = [np.average(((each > 0) == labels).mean(1), weights=weights) for each in scores]
    assert found["test_auc"] == pytest.approx(areas)
    assert found["test_accuracy"] == pytest.approx(right)
