"""Runs an unpriced search: the trials of one (dataset, backbone, method, epsilon).

A trial trains a network with the cell's plan, and is scored without noise on held-out training
units. Unit names and the study's seed decide which units are held out; a patient's images stay
together. Held-out units become null rows of the plan, so n, sampling and divisor equal the cell's.

A search resumes from its hidden log of trials, a trial from its checkpoint. Results of searches and
trials are not differentially private.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.data.train_test_split import choose_by_id
from dpprobe.devices import resolve_device
from dpprobe.errors import ConfigError, DataError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.finetune.checkpoint import Checkpoints
from dpprobe.finetune.fine_tuned_network import FineTunedNetwork, load_tuned_state
from dpprobe.finetune.inputs import Inputs
from dpprobe.finetune.options import Options as FineTuneOptions
from dpprobe.finetune.starting_probe import fit_probe, start_from
from dpprobe.finetune.steps import network_scores
from dpprobe.finetune.train import train_network
from dpprobe.finetune.unpriced_search import best_trial, run_trials
from dpprobe.heads.row_source import RowSource
from dpprobe.heads.training_set import TrainingSet
from dpprobe.json_values import hash_value
from dpprobe.privacy.randomness import cell_seed, derived_seed
from dpprobe.privacy.releases import Releases
from dpprobe.results import metrics
from dpprobe.results.search_record import HeldOut, SearchRecord
from dpprobe.results.unit_counts import unit_codes
from dpprobe.training.cell_task import CellTask
from dpprobe.training.network_cell import NetworkFiles, network_task
from dpprobe.training.network_job import Limits, plan_for
from dpprobe.training.network_material import Material
from dpprobe.training.tasks import OpenedJob
from dpprobe.versions import VERSIONS

logger = logging.getLogger("dpprobe")

Rows = npt.NDArray[np.bool_]


def search_job(opened: OpenedJob, files: NetworkFiles, *, output: Path, limits: Limits) -> None:
    """Brings a search up to date; raises ConfigError, or DataError if no trial can be scored."""
    task = network_task(opened, files, device=limits.device)
    options = task.options
    if not isinstance(options, FineTuneOptions) or options.search is None:
        raise ConfigError(
            f"{task.name.method}: this method has no search; add `search` to its options"
        )
    # everything that determines a trial's score, except its options
    identity = {**task.identity, "search": VERSIONS["search"], "metric": task.headline}
    del identity["options"]
    wanted = hash_value({**identity, "options": options.identity_options()})
    if _is_current(output, wanted):
        logger.info(
            "%s: search reused, because nothing that it depends on has changed", task.name.method
        )
        output.touch()
        return
    inputs = opened.compare_rows([task])
    held_out = held_out_rows(task.train, options.search.held_out, seed=task.asked.study_seed)
    objective = _Objective(
        task=task,
        held_out=held_out,
        identity=identity,
        folder=output.with_name(f".{output.stem}.checkpoint"),
        limits=limits,
        material=Material(
            options=options,
            files=files,
            stores=opened.stores,
            inputs=inputs,
            memory_mb=limits.memory_mb,
            device=resolve_device(limits.device),
            threads=limits.threads,
        ),
    )
    trials = run_trials(
        options,
        objective,
        log=output.with_name(f".{output.stem}.trials.json"),
        seed=task.asked.study_seed,
        identity=identity,
    )
    SearchRecord(
        cell=task.name,
        fingerprint=wanted,
        device=task.identity["device"],
        metric=task.headline,
        seed=task.asked.study_seed,
        held_out=HeldOut(
            share=options.search.held_out,
            rows=int(held_out.sum()),
            units=len(set(np.asarray(_unit_names(task.train))[held_out])),
        ),
        best=best_trial(trials),
        trials=trials,
    ).write(output)


def held_out_rows(store: FeatureStore, share: float, *, seed: int) -> Rows:
    """Marks the held-out rows, on which trials are scored: all rows of a unit, or none.

    Only a unit's name and the seed decide whether it is held out. Raises DataError if no unit is
    held out, or all units are.
    """
    names = _unit_names(store)
    chosen = np.asarray(choose_by_id(names, fraction=share, seed=derived_seed(seed, "held out")))
    if chosen.all() or not chosen.any():
        raise DataError(
            f"{store.path}: search.held_out {share:g} leaves all {len(set(names))} units for "
            "training, or none; choose another share"
        )
    return chosen


def _unit_names(store: FeatureStore) -> list[str]:
    return list(store.ids if store.units is None else store.units)


def _is_current(path: Path, wanted: str) -> bool:
    try:
        return SearchRecord.read(path).fingerprint == wanted
    except DataError:
        if path.exists():
            logger.warning("%s: unreadable; recreated", path)
        return False


@dataclass(frozen=True, kw_only=True)
class _Objective:
    task: CellTask
    held_out: Rows
    identity: Mapping[str, Any]
    folder: Path
    limits: Limits
    material: Material

    def __call__(self, options: FineTuneOptions, number: int) -> float:
        """Trains and scores a trial; NaN if training diverged."""
        seed = cell_seed({"search": self.identity, "options": options.identity_options()}, number)
        network = self.material.make_network(seed, options)
        assert self._checked
        plan = plan_for(self.task.plan, options)
        releases = Releases(plan, [seed], torch.device(self.material.device))
        checkpoint = Checkpoints(
            folder=self.folder,
            fingerprint=f"{hash_value(dict(self.identity))}-{seed}",
            minutes=self.limits.checkpoint_minutes,
        )
        try:
            if options.probe is not None:
                start_from(network, *fit_probe(options, self._features, releases, seed))
            trained = train_network(
                options,
                network,
                self._inputs.keep_rows(~self.held_out),
                releases,
                checkpoint=checkpoint,
                physical_batch=self.limits.physical_batch,
                public=self.material.inputs.public,
                record=None,
                label=f"{self.task.name.method} trial {number}",
            )
        except ConfigError as error:  # training diverged; other faults were found earlier
            logger.warning("trial %d: %s", number, error)
            checkpoint.remove_checkpoint()
            return math.nan
        releases.check_counts()
        checkpoint.remove_checkpoint()
        load_tuned_state(network, trained.state)
        return self._score_network(network)

    @cached_property
    def _checked(self) -> bool:
        """Checks one network's gradients for all trials, because all trials have equal layers."""
        network = self.material.make_network(0)
        self.material.check_gradients(network, physical_batch=self.limits.physical_batch)
        return True

    @cached_property
    def _inputs(self) -> Inputs:
        """The training examples, decoded once; all trials use one seed's augmented views."""
        return self.material.make_train_inputs(
            derived_seed(self.task.asked.study_seed, "views of trials")
        )

    @cached_property
    def _features(self) -> TrainingSet:
        """The features on which probes train; held-out rows are null rows."""
        material = self.material
        return without_rows(material.features, material.stores[0], self.held_out)

    def _score_network(self, network: FineTunedNetwork) -> float:
        """Returns the metric on held-out rows; each patient counts once."""
        index = self._inputs.keep_rows(self.held_out).list_kept()
        batch = self.limits.physical_batch
        scores = network_scores(network, self._inputs, index, physical_batch=batch).numpy()
        if not np.isfinite(scores).all():
            return math.nan
        units = unit_codes(self.task.train.units)
        evaluated = metrics.Evaluation(
            scores,
            self._inputs.labels[torch.from_numpy(index)].cpu().numpy(),
            link=self.task.link,
            units=None if units is None else units[index],
        ).compute_metrics()
        if self.task.headline not in evaluated:
            raise DataError(
                f"{self.task.train.path}: no label is on some but not all of the {len(index)} "
                "held-out rows, so there is no AUC; set a larger search.held_out"
            )
        return float(evaluated[self.task.headline])


def without_rows(whole: TrainingSet, store: FeatureStore, left_out: Rows) -> TrainingSet:
    """Returns a training set in which some rows are null rows, which add nothing to sums.

    Features in memory are not copied, so the chosen rows become null rows in `whole` too.
    """
    left = torch.from_numpy(left_out)
    features: torch.Tensor | RowSource
    if whole.features is None:
        features = _WithoutRows(store, left_out)
    else:
        features = whole.features
        features[left.to(features.device)] = math.nan
    return TrainingSet(
        features,
        whole.labels,
        whole.num_classes,
        units=whole.units,
        device=whole.device,
        public=whole.public,
    )


class _WithoutRows:
    """Rows of a feature store, read from disk, with some rows replaced by null rows."""

    def __init__(self, store: FeatureStore, left_out: Rows) -> None:
        self._store, self._left_out = store, left_out
        self.rows, self.dimension = store.rows, store.dimension

    def read_blocks(self, rows: int) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        for start, block in self._store.read_blocks(rows):
            left_out = self._left_out[start : start + len(block)]
            yield start, np.where(left_out[:, None], np.float32(math.nan), block)
