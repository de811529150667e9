"""Reads stored features as the inputs of a fit, for training jobs, audits and releases.

`FitInputs` reads the private examples, groups them by unit of privacy, and reads the public facts
that `auto` and calibration need. Later, `dpprobe.heads.fit.fit_heads` compares the plan with the
method and the rows before it draws any noise.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from dpprobe.data.options import Headline, headline_metric
from dpprobe.errors import DataError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.fit_device import FitPlace, place_fit
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.public_inputs import NOTHING_CHECKED, PublicInputs
from dpprobe.privacy.target import Target
from dpprobe.results.unit_counts import class_counts

if TYPE_CHECKING:
    import torch

    from dpprobe.heads.row_source import RowSource
    from dpprobe.heads.training_set import TrainingSet

logger = logging.getLogger("dpprobe")


@dataclass(frozen=True)
class FitInputs:
    """The private examples of a fit, with their `unit` of privacy: "image" or "patient".

    `public_n` is the public number of units, if the examples are only a part of them. `public` are
    the public files that were compared with the examples.
    """

    store: FeatureStore
    unit: str
    public_n: int | None = None
    public: PublicInputs = NOTHING_CHECKED

    @cached_property
    def units(self) -> Units | None:
        """The units of privacy; None if each row is a unit. Raises DataError without patients."""
        if self.unit == "image":
            return None
        return Units.number_units(self._require_names("unit: patient"))

    @property
    def n(self) -> int:
        return self.own_n if self.public_n is None else self.public_n

    @property
    def own_n(self) -> int:
        """The number of units of these examples, without other sites' units."""
        return self.store.rows if self.units is None else self.units.count

    def check_patients(self, images: int | None) -> None:
        """Raises DataError if a patient has more training images than the plan assumes."""
        if images is None:
            return
        names = self._require_names(f"max_images_per_patient: {images}")
        if max(Counter(names).values()) > images:
            raise DataError(
                f"{self.store.path}: max_images_per_patient is {images}, but a patient has more "
                "training images; delete the dataset's split tables and run again"
            )

    def _require_names(self, option: str) -> Sequence[str]:
        if self.store.units is None:
            raise DataError(
                f"{self.store.path}: {option} needs patients, but the rows of this store name "
                "none; delete the store and run again"
            )
        return self.store.units

    def read_facts(self, target: Target, *, metric: Headline | None = None) -> DataFacts:
        """Returns the public facts of a fit; `metric` is the study's metric, if it names one."""
        return DataFacts.of_target(
            target,
            dimension=self.store.dimension,
            classes=self.store.num_classes,
            multi_label=self.store.multi_label,
            metric=metric,
        )

    def place_fit(self, method: MethodOptions, device: str) -> FitPlace:
        """Returns the devices for a fit on these examples, given the `device` of the study."""
        dimension, classes = self.store.dimension, self.store.num_classes
        return place_fit(method, device, n=self.n, dimension=dimension, classes=classes)

    def read_rows(self, *, device: str, memory_mb: int) -> TrainingSet:
        """Reads the rows into memory, or streams them if they take more than `memory_mb`."""
        # late and heavy: a job that finds all its cells up to date reads no rows
        import torch

        from dpprobe.features.stored_crops import StoredCrop
        from dpprobe.heads.training_set import TrainingSet

        labels = torch.from_numpy(read_labels(self.store))

        def make_set(
            features: torch.Tensor | RowSource,
            crops: Callable[[], Sequence[TrainingSet]] | None = None,
        ) -> TrainingSet:
            return TrainingSet(
                features,
                labels,
                num_classes=len(self.store.class_names),
                units=self.units,
                device=device,
                crops=crops,
                public_n=self.public_n,
                public=self.public,
            )

        def read_crops() -> list[TrainingSet]:
            sources = [StoredCrop(self.store, name) for name in self.store.crops]
            if isinstance(features, torch.Tensor):
                return [make_set(torch.from_numpy(one.read()).to(device)) for one in sources]
            return [make_set(one) for one in sources]

        features = read_vectors(self.store, device, memory_mb)
        return make_set(features, read_crops)


def read_vectors(store: FeatureStore, device: str, memory_mb: int) -> torch.Tensor | FeatureStore:
    """Returns the features in memory, or the store if they need more than `memory_mb`.

    Args:
      memory_mb: the limit for float32 features, with stored crops; 0 to leave features on disk.
    """
    arrays = 1 + len(store.crops)
    if 4 * store.rows * store.dimension * arrays <= memory_mb * 10**6:
        import torch  # late, as in `read_rows`

        return torch.from_numpy(store.read()).to(device)
    if memory_mb:
        logger.info(
            "%s: larger than features.memory_mb %d, so it is streamed", store.path, memory_mb
        )
    return store


def choose_headline(test: FeatureStore, metric: Headline | None) -> Headline:
    """Returns the headline metric of a test split: `metric`, or by default one that suits it."""
    return headline_metric(
        metric,
        num_classes=test.num_classes,
        multi_label=test.multi_label,
        test_counts=class_counts(test.labels, test.num_classes),
    )


def read_labels(store: FeatureStore) -> np.ndarray:
    return np.asarray(store.labels).astype(np.uint8 if store.multi_label else np.int64)
