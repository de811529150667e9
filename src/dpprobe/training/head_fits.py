"""Trains and stages the stale cells of a job."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np
import torch

from dpprobe.devices import resolve_device
from dpprobe.errors import DpprobeError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.fitted import Observe
from dpprobe.heads.scoring import compute_scores, score_rows
from dpprobe.heads.transform import Transform
from dpprobe.privacy.machine_code import MachineCode, processor_name
from dpprobe.results import metrics
from dpprobe.results.unit_counts import row_weights
from dpprobe.training.cell_contents import CellContents, merge_seeds
from dpprobe.training.cell_task import CellTask
from dpprobe.training.fit_inputs import FitInputs
from dpprobe.training.job_features import JobFeatures, read_job_features

logger = logging.getLogger("dpprobe")


def train_cells(
    stale: Sequence[CellTask], inputs: FitInputs, test: FeatureStore, *, memory_mb: int
) -> dict[str, Exception]:
    """Trains and stages each cell; returns errors by method, which do not stop other methods.

    Args:
      inputs: the rows of all cells; public files must have been compared with them.
      memory_mb: the limit above which features, as float32, are streamed from disk.
    """
    logger.info(
        "processor %s; machine code %s", processor_name(), ", ".join(sorted(MachineCode.ready))
    )
    errors: dict[str, Exception] = {}
    # Cells on the CPU train first, because another job may still use the GPU.
    for place in sorted({task.place.rows for task in stale}, key="cpu".__ne__):
        features = read_job_features(
            inputs,
            test,
            device=resolve_device(place),
            memory_mb=memory_mb,
            headline=stale[0].headline,
        )
        errors |= _train_all([task for task in stale if task.place.rows == place], features)
        del features  # frees the memory before the next features are read
    return errors


def _train_all(tasks: Sequence[CellTask], features: JobFeatures) -> dict[str, Exception]:
    """Trains and stages each cell; collects errors, so that one method does not stop others."""
    errors: dict[str, Exception] = {}
    for task in tasks:
        try:
            train_cell(task, features)
        except DpprobeError as error:
            logger.warning("%s failed; the reason follows at the end of the job", task.name.method)
            errors[task.name.method] = error
        except Exception as error:  # of torch or SciPy too: other methods still train
            logger.exception("%s failed", task.name.method)
            errors[task.name.method] = error
    return errors


def train_cell(task: CellTask, features: JobFeatures) -> None:
    """Trains a cell's missing seeds, and stores the complete cell."""
    earlier = task.find_reusable()
    done = earlier.indices if earlier else ()
    missing = [index for index in range(task.asked.seeds) if index not in done]
    if missing:
        logger.info("%s: training seeds %s", task.name.method, ", ".join(map(str, missing)))
    trained = _fit_seeds(task, features, missing) if missing else None
    contents = merge_seeds([part for part in (earlier, trained) if part], task.asked.seeds)
    task.store_cell(contents, features)


def _fit_seeds(task: CellTask, features: JobFeatures, indices: Sequence[int]) -> CellContents:
    started = time.perf_counter()
    features.train.exact_device = resolve_device(task.place.exact_sums)
    fitted = fit_heads(
        task.options,
        features.train,
        task.plan,
        [task.derive_seed(index) for index in indices],
        record=make_observer(features, task.link),
    )
    return CellContents(
        indices=tuple(indices),
        weights=fitted.weights,
        arrays=fitted.released_arrays(),
        scores=np.concatenate(
            [score_rows(fitted, block) for _, block in features.test_blocks()], 1
        ),
        history=[row | {"seed_index": indices[row["seed_index"]]} for row in fitted.history],
        chosen=fitted.chosen,
        seconds=time.perf_counter() - started,
    )


def make_observer(features: JobFeatures, link: metrics.Link) -> Observe:
    """Returns a function for test metrics during training: accuracy, and AUC if defined."""
    labels = torch.from_numpy(features.test_labels).to(features.train.device)
    each = row_weights(features.test_units)
    weights_of = None if each is None else torch.from_numpy(each).to(labels.device)
    total = len(labels) if each is None else float(each.sum())

    def measure_accuracy(
        _step: int, weights: torch.Tensor, transform: Transform
    ) -> dict[str, list[float]]:
        kind = torch.int64 if weights_of is None else torch.float64
        hits = torch.zeros(len(weights), dtype=kind, device=weights.device)
        for start, block in features.test_blocks():
            window = slice(start, start + len(block))
            right = compute_scores(weights, transform(block)).argmax(2) == labels[window]
            hits += right.sum(1) if weights_of is None else right.double() @ weights_of[window]
        return {"test_accuracy": (hits / total).tolist()}

    def measure_auc(
        _step: int, weights: torch.Tensor, transform: Transform
    ) -> dict[str, list[float]]:
        blocks = [
            compute_scores(weights, transform(block)).cpu().numpy()
            for _, block in features.test_blocks()
        ]
        tested = [
            features.evaluate(scores, link=link).compute_fast_metrics()
            for scores in np.concatenate(blocks, axis=1)
        ]
        return {name: [seed[name] for seed in tested] for name in tested[0]}

    return measure_auc if features.ranked or features.multi_label else measure_accuracy
