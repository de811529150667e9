"""Test rows whose features are a head's scores, and a head that returns them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.heads.fitted import Heads
from dpprobe.heads.normalisation import NoNormalisation
from dpprobe.heads.training_set import TrainingSet
from dpprobe.heads.transform import Transform
from dpprobe.privacy.entropy import SEEDED, Entropy
from dpprobe.release.transport import Draw
from dpprobe.training.job_features import JobFeatures


def head(classes: int, seed: int = 1) -> Heads:
    """Returns a head that returns the `classes` features of a row as its scores."""
    weights = np.eye(classes, classes + 1, dtype=np.float32)[None]
    return Heads(
        weights=weights, seeds=(seed,), transforms=(Transform(NoNormalisation()),), steps=0
    )


def of_test_rows(
    scores: npt.NDArray[Any], labels: npt.NDArray[Any], units: npt.NDArray[Any] | None = None
) -> JobFeatures:
    classes = scores.shape[1]
    rows = torch.from_numpy(scores.astype(np.float32))
    return JobFeatures(
        train=TrainingSet(
            rows,
            torch.from_numpy(labels),
            num_classes=classes,
            device="cpu",
            units=None,
        ),
        test=rows,
        test_labels=labels,
        test_ids=[str(index) for index in range(len(rows))],
        test_groups={},
        test_accepted=None,
        test_units=units,
        class_names=tuple("abcdefgh"[:classes]),
    )


def draw_of(heads: Heads, rows: JobFeatures, entropy: Entropy = SEEDED) -> Draw:
    """Returns a trained head for release parts to measure, with noise from `entropy`."""
    return Draw(heads=heads, features=rows, open_entropy=lambda: entropy, shared=None)
