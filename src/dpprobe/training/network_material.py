"""The training rows of a network (activations at a cut, or images), and its backbone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.backbones.loading import load_backbone
from dpprobe.data.table import SplitTable, read_info
from dpprobe.errors import DataError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.finetune.cut_shards import cut_shape
from dpprobe.finetune.engine_check import check_network
from dpprobe.finetune.fine_tuned_network import FineTunedNetwork, build_network
from dpprobe.finetune.inputs import Inputs, cut_inputs, image_inputs
from dpprobe.finetune.options import Options as FineTuneOptions
from dpprobe.finetune.steps import rows_at_once
from dpprobe.heads.normalisation import NoNormalisation
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.training_set import TrainingSet
from dpprobe.heads.transform import Transform
from dpprobe.training.fit_inputs import FitInputs
from dpprobe.training.network_cell import NetworkFiles

# Number of rows in the example with which per-example gradients are checked.
_CHECKED_ROWS = 3


@dataclass(frozen=True, kw_only=True)
class Material:
    """The examples of a job, and the networks that the job builds."""

    options: FineTuneOptions
    files: NetworkFiles
    stores: tuple[FeatureStore, FeatureStore]
    inputs: FitInputs  # with the features of the train split
    memory_mb: int  # the most memory for rows; larger inputs are read from disk batch by batch
    device: str
    threads: int

    @cached_property
    def backbone(self) -> Backbone:
        """The backbone, on the CPU in float32."""
        return load_backbone(
            self.files.backbone, runtime=Runtime(device="cpu", precision="float32")
        )

    def make_network(self, seed: int, options: FineTuneOptions | None = None) -> FineTunedNetwork:
        """Returns a network before training; the seed determines its random initial values."""
        options = options or self.options
        # the probe's statistics do not exist before the probe is released
        normalize = NoNormalisation() if options.normalize.priced else options.normalize
        return build_network(
            self.backbone,
            options,
            classes=self.stores[0].num_classes,
            seed=seed,
            device=self.device,
            transform=Transform(normalize),
        )

    def make_train_inputs(self, seed: int) -> Inputs:
        """Returns the training examples; the seed determines their augmented views."""
        return self._make_inputs(0, self.inputs.units, seed)

    @cached_property
    def features(self) -> TrainingSet:
        """The features of the training examples, on the device where the probe is fitted."""
        assert self.options.probe is not None
        place = self.inputs.place_fit(self.options.probe.method, self.device)
        return self.inputs.read_rows(device=place.rows, memory_mb=self.memory_mb)

    @cached_property
    def test(self) -> Inputs:
        return self._make_inputs(1, None, None)

    def _make_inputs(self, split: int, units: Units | None, seed: int | None) -> Inputs:
        """Returns a split's rows without null examples."""
        store, options = self.stores[split], self.options
        _check_weights(store, self.backbone)
        if options.cut:
            cuts = self.files.cut_stores
            cut = cuts[split] if cuts else store
            cut = cut.leave_out_nulls() if split else cut  # as the store of the test split
            _check_weights(cut, self.backbone)
            if list(cut.ids) != list(store.ids):
                raise DataError(
                    f"{cut.path}: its rows and the rows of {store.path} come from different split "
                    "tables; delete both and run again"
                )
            shape = cut_shape(cut) if cuts else (cut.dimension,)
            inputs = cut_inputs(
                cut, shape=shape, memory_mb=self.memory_mb, units=units, device=self.device
            )
            return _drop_nulls(inputs, cut.nulls)
        assert self.files.tables is not None, "images without tables"
        table = SplitTable(self.files.tables[split])
        check_table(table, store)
        inputs = image_inputs(
            table,
            self.backbone,
            split=("train", "test")[split],
            augment=options.augment if seed is not None else None,
            seed=seed or 0,
            memory_mb=self.memory_mb,
            units=units,
            threads=self.threads,
        )
        return _drop_nulls(inputs, table.nulls)

    def check_gradients(self, network: FineTunedNetwork, *, physical_batch: int) -> None:
        """Checks a network's per-example gradients on random rows; ConfigError if any is wrong.

        `physical_batch` is the number of rows, times the views per row, in one pass.
        """
        options = self.options
        views = 1 if options.augment is None else options.augment.views
        generator = np.random.default_rng(0)
        shape = (_CHECKED_ROWS, *network.shape)
        if network.from_images:
            example = torch.from_numpy(generator.integers(0, 256, shape, dtype=np.uint8))
        else:
            example = torch.from_numpy(generator.standard_normal(shape, dtype=np.float32))
        check_network(
            network,
            sigmoid=options.loss == "sigmoid",
            precision=options.precision,
            engine=options.engine,
            example=example.to(self.device),
            classes=self.stores[0].num_classes,
            views=views,
            together=rows_at_once(network, physical_batch, views),
        )


def _drop_nulls(inputs: Inputs, nulls: Sequence[int]) -> Inputs:
    return inputs.keep_rows(~np.isin(np.arange(inputs.rows), nulls)) if nulls else inputs


def _check_weights(store: FeatureStore, backbone: Backbone) -> None:
    """Raises DataError if features were computed with other weights than the trained network has.

    A network's seeds, and so its noise, derive from the identity of the features. Two networks with
    equal noise would reveal the difference of their gradient sums.
    """
    if store.weights_sha256 not in (None, backbone.weights_sha256):
        raise DataError(
            f"{store.path}: computed with different weights than the backbone has now; delete it "
            "and run again"
        )


def check_table(table: SplitTable, store: FeatureStore) -> None:
    """Raises DataError unless the features were computed from the table's images, because seeds
    derive from the identity of the features."""
    info = read_info(table.path.with_name("dataset.json"))
    of_table = info.splits[table.split].fingerprint, info.fingerprint
    if of_table != (table.fingerprint, store.dataset_fingerprint):
        raise DataError(
            f"{store.path}: not computed from the images of {table.path}; delete it and run again"
        )
