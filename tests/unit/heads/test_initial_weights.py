"""Heads that start at a zero-shot classifier: the private budget only buys improvement over it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpprobe import heads
from dpprobe.baselines.records import read_zero_shot
from dpprobe.baselines.zero_shot import zero_shot
from dpprobe.heads.registry import method_options
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.calibration import calibrate
from tests.unit.analysis.test_tsne import write_store
from tests.unit.baselines.test_zero_shot import write_text

CLASSES = tuple(f"class {index}" for index in range(8))
ROWS, DIMENSION = 1500, 32
# As config/clip_zero_shot_start.yaml, with shorter steps for fewer rows.
START: dict[str, Any] = {
    "head": "sgd", "batch_size": "full", "steps": 10, "learning_rate": 1.0, "max_grad_norm": 1.0,
    "normalize": "l2",
}  # fmt: skip


@pytest.fixture(scope="module")
def space() -> dict[str, np.ndarray]:
    """Images near a direction of their class, and texts that know the directions roughly."""
    generator = np.random.default_rng(0)
    directions = np.linalg.qr(generator.normal(size=(DIMENSION, DIMENSION)))[0][: len(CLASSES)]
    labels = generator.integers(len(CLASSES), size=2 * ROWS)
    features = directions[labels] + 0.35 * generator.normal(size=(2 * ROWS, DIMENSION))
    text = directions + 0.13 * generator.normal(size=directions.shape)
    text /= np.linalg.norm(text, axis=1, keepdims=True)
    return {"features": features.astype(np.float32), "labels": labels, "text": text}


def _accuracy(space: dict[str, np.ndarray], folder: Path, epsilon: float, **changes: Any) -> float:
    method = method_options(START | changes)
    plan = calibrate(
        method.mechanisms(ROWS), n=ROWS, epsilon=epsilon, delta=1e-5, accountant="pld",
        cache=folder / "cache",
    )  # fmt: skip
    train = TrainingSet(
        torch.from_numpy(space["features"][:ROWS].copy()),
        torch.from_numpy(space["labels"][:ROWS]),
        num_classes=len(CLASSES),
    )
    fitted = heads.fit(method, train, plan, [1, 2, 3])
    scores = heads.scores(fitted, torch.from_numpy(space["features"][ROWS:]))
    return float((scores.argmax(2) == space["labels"][ROWS:]).mean())


def test_a_tiny_budget_keeps_zero_shot_and_a_larger_one_improves_it(
    space: dict[str, np.ndarray], tmp_path: Path
) -> None:
    text = write_text(tmp_path / "text.safetensors", space["text"], class_names=CLASSES)
    manifest = write_store(
        tmp_path / "test", space["features"][ROWS:], space["labels"][ROWS:], class_names=CLASSES
    )
    zero_shot(
        manifest, text, output=tmp_path / "metrics.json", predictions=tmp_path / "p.parquet",
        dataset="d", backbone="clip",
    )  # fmt: skip
    without = read_zero_shot(tmp_path / "metrics.json")["metrics"]["accuracy"]
    assert 0.5 < without < 0.9, "a zero-shot classifier that can be improved"
    start = {"init": "file", "init_file": str(text), "init_scale": 10.0}
    tiny = _accuracy(space, tmp_path, 0.05, **start)
    from_zero = _accuracy(space, tmp_path, 0.05, init="zero")
    assert tiny > without - 0.03
    assert from_zero < without - 0.2
    assert _accuracy(space, tmp_path, 0.5, **start) > without + 0.01
