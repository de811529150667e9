"""The features of a training job, in memory or streamed, with the labels of both splits."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from dpprobe.data.options import Headline
from dpprobe.errors import DataError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.training_set import TrainingSet, chunks
from dpprobe.heads.unit_weights import Units
from dpprobe.results.halves import Halves, split_rows
from dpprobe.results.metrics import ranked_labels
from dpprobe.results.unit_counts import unit_codes

logger = logging.getLogger("dpprobe")

# Test rows that are read and scored at a time when they are streamed.
STREAMED_ROWS = 2048


@dataclass(frozen=True, kw_only=True)
class JobFeatures:
    """The rows that all methods of a job share, read once unless they are streamed."""

    train: TrainingSet
    test: torch.Tensor | FeatureStore  # [m, d] float32
    test_labels: np.ndarray  # [m] int64, or [m, K] uint8
    test_ids: Sequence[str]
    test_groups: Mapping[str, Sequence[Any]]
    test_accepted: Sequence[Sequence[int]] | None  # labels that count as right, where known
    test_units: np.ndarray | None = None  # [m] int64, whose each row is, where known
    class_names: tuple[str, ...]
    _halves: dict[Headline, Halves] = field(default_factory=dict, init=False, repr=False)

    def test_halves(self, metric: Headline) -> Halves:
        """Returns the test rows as a metric splits them in halves, the same for all heads."""
        if metric not in self._halves:
            self._halves[metric] = split_rows(metric, self.test_labels, units=self.test_units)
        return self._halves[metric]

    @property
    def multi_label(self) -> bool:
        """True if a row may have several labels."""
        return self.test_labels.ndim == 2

    @property
    def ranked(self) -> list[int]:
        """The labels that the test rows give an AUC of."""
        return ranked_labels(self.test_labels, len(self.class_names))

    def test_blocks(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Yields the test rows in order, on the device that trains: (first row, [m, d])."""
        if isinstance(self.test, torch.Tensor):
            for start, stop in chunks(len(self.test), 4 * self.test.shape[1]):
                yield start, self.test[start:stop]
        else:
            for start, block in self.test.blocks(STREAMED_ROWS):
                yield start, torch.from_numpy(block).to(self.train.device)


def read_job_features(
    stores: tuple[FeatureStore, FeatureStore],
    *,
    device: str,
    memory_mb: int,
    headline: str,
    units: Units | None,
) -> JobFeatures:
    """Reads the features of the train and the test split.

    Args:
      stores: of the train and the test split.
      device: "cpu" or "cuda".
      memory_mb: features that take more than this as float32 are streamed from disk; 0 where only
        labels and names are read.
      headline: the metric that the cells are shown by.
      units: of privacy, of the training rows, by `units_of`.

    Raises:
      DataError: when the splits differ in classes or dimension, or when AUC is to be shown and no
        label has one.
    """
    train, test = stores
    if train.class_names != test.class_names or train.dimension != test.dimension:
        raise DataError(
            f"{test.path}: classes or dimension differ from {train.path}; delete both, run again"
        )
    features = JobFeatures(
        train=read_training_set(train, device=device, memory_mb=memory_mb, units=units),
        test=_read_rows(test, device, memory_mb),
        test_labels=_read_labels(test),
        test_ids=test.ids,
        test_groups=test.groups,
        test_accepted=test.accepted,
        test_units=unit_codes(test.units),
        class_names=tuple(train.class_names),
    )
    _check_ranked(features, test, headline)
    return features


def read_training_set(
    store: FeatureStore, *, device: str, memory_mb: int, units: Units | None
) -> TrainingSet:
    """Reads the training split alone; arguments as of `read_job_features`."""
    return TrainingSet(
        _read_rows(store, device, memory_mb),
        torch.from_numpy(_read_labels(store)),
        num_classes=len(store.class_names),
        units=units,
        device=device,
    )


def _read_rows(store: FeatureStore, device: str, memory_mb: int) -> torch.Tensor | FeatureStore:
    """Returns the features in memory, or the store where they would take too much of it."""
    if 4 * store.rows * store.dimension <= memory_mb * 10**6:
        return torch.from_numpy(store.read()).to(device)
    if memory_mb:
        logger.info("%s: above features.memory_mb %d, streamed", store.path, memory_mb)
    return store


def _read_labels(store: FeatureStore) -> np.ndarray:
    return np.asarray(store.labels).astype(np.uint8 if store.multi_label else np.int64)


def units_of(store: FeatureStore, unit: str) -> Units | None:
    """Returns the units of a split's rows; None where each row is one.

    Raises:
      DataError: for patients that the features do not name.
    """
    if unit == "image":
        return None
    if store.units is None:
        raise DataError(
            f"{store.path}: unit: patient, and its rows name no patients; delete it and run again"
        )
    return Units.of(store.units)


def check_patients(train: FeatureStore, images: int | None) -> None:
    """Checks that no patient has more training images than the price to one is for.

    Raises:
      DataError: for one who has, and for features that name no patients.
    """
    if images is None:
        return
    if train.units is None:
        raise DataError(
            f"{train.path}: max_images_per_patient: {images}, and its rows name no patients; "
            "delete it and run again"
        )
    most = max(Counter(train.units).values())
    if most > images:
        raise DataError(
            f"{train.path}: max_images_per_patient: {images}, and a patient has {most} training "
            "images; delete the split tables and run again"
        )


def _check_ranked(features: JobFeatures, test: FeatureStore, headline: str) -> None:
    """Logs the labels that have no AUC; raises where none has one and AUC is to be shown."""
    if headline == "auc" and not features.ranked:
        raise DataError(
            f"{test.path}: no label that some test rows have and others have not, so there is no "
            "AUC; add test rows, or write metric: accuracy"
        )
    if features.multi_label:
        names = [
            name for index, name in enumerate(features.class_names) if index not in features.ranked
        ]
        if names:
            logger.warning(
                "%s: all test rows agree in %s: left out of AUC and average precision",
                test.path, ", ".join(names),
            )  # fmt: skip
