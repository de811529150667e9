"""The features of a training job, in memory or streamed, with the labels of both splits."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from dpprobe.data.options import Headline
from dpprobe.errors import DataError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.scoring import chunk_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.results.halves import Halves, split_rows
from dpprobe.results.metrics import NO_AUC, Evaluation, Link, ranked_labels
from dpprobe.results.unit_counts import unit_codes
from dpprobe.training.fit_inputs import FitInputs, read_labels, read_vectors

logger = logging.getLogger("dpprobe")

# Number of test examples that are read and scored at once, if they are streamed.
STREAMED_ROWS = 2048


@dataclass(frozen=True, kw_only=True)
class JobFeatures:
    """The train and test rows for all methods of a job, which are read once unless streamed."""

    train: TrainingSet
    test: torch.Tensor | FeatureStore  # [m, d] float32
    test_labels: np.ndarray  # [m] int64, or [m, K] uint8
    test_ids: Sequence[str]
    test_groups: Mapping[str, Sequence[Any]]
    test_accepted: Sequence[Sequence[int]] | None  # labels that count as correct, if known
    test_units: np.ndarray | None = None  # [m] int64, the number of each row's patient, if known
    class_names: tuple[str, ...]
    public_test_n: int | None = None  # test units, if these rows are a part of them
    _halves: dict[Headline, Halves] = field(default_factory=dict, init=False, repr=False)

    def test_halves(self, metric: Headline) -> Halves:
        """Returns the two halves of the test examples for a metric; all heads have equal halves."""
        if metric not in self._halves:
            self._halves[metric] = split_rows(metric, self.test_labels, units=self.test_units)
        return self._halves[metric]

    def evaluate(self, scores: np.ndarray, *, link: Link) -> Evaluation:
        """Returns the evaluation of one head's scores [m, K] of the test examples."""
        return Evaluation(
            scores,
            self.test_labels,
            link=link,
            accepted=self.test_accepted,
            units=self.test_units,
        )

    @property
    def multi_label(self) -> bool:
        return self.test_labels.ndim == 2

    @property
    def ranked(self) -> list[int]:
        """The labels that have an AUC on the test examples."""
        return ranked_labels(self.test_labels, len(self.class_names))

    def test_blocks(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Yields the test examples in order, on the device that trains: (first row, [m, d])."""
        if isinstance(self.test, torch.Tensor):
            for start, stop in chunk_rows(len(self.test), 4 * self.test.shape[1]):
                yield start, self.test[start:stop]
        else:
            for start, block in self.test.read_blocks(STREAMED_ROWS):
                yield start, torch.from_numpy(block).to(self.train.device)


def read_job_features(
    inputs: FitInputs, test: FeatureStore, *, device: str, memory_mb: int, headline: str
) -> JobFeatures:
    """Reads both splits; features above `memory_mb` stay on disk and are streamed.

    Raises DataError if splits differ in classes or dimension, or no label has the headline AUC.
    """
    train = inputs.store
    if train.class_names != test.class_names or train.dimension != test.dimension:
        raise DataError(
            f"{test.path}: classes or dimension differ from {train.path}; delete both and run again"
        )
    features = JobFeatures(
        train=inputs.read_rows(device=device, memory_mb=memory_mb),
        test=read_vectors(test, device, memory_mb),
        test_labels=read_labels(test),
        test_ids=test.ids,
        test_groups=test.groups,
        test_accepted=test.accepted,
        test_units=unit_codes(test.units),
        class_names=tuple(train.class_names),
    )
    _check_ranked(features, test, headline)
    return features


def _check_ranked(features: JobFeatures, test: FeatureStore, headline: str) -> None:
    """Warns of labels without AUC; raises DataError if AUC is the headline and no label has one."""
    if headline == "auc" and not features.ranked:
        raise DataError(f"{test.path}: {NO_AUC}")
    if features.multi_label:
        names = [
            name for index, name in enumerate(features.class_names) if index not in features.ranked
        ]
        if names:
            logger.warning(
                "%s: all test rows have the same value of %s, so it is left out of AUC and "
                "average precision",
                test.path,
                ", ".join(names),
            )
