"""Trains one network: a seed of a cell whose method trains a part of the backbone.

Each seed's network is stored (`dpprobe.files.result_store`), and is reused until anything changes
that determines the network. If a seed is missing or damaged, only that seed is trained.
`tuned_networks` makes a cell from the seeds' networks. A killed job continues from its last
checkpoint, which is in a hidden folder beside the network's folder.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save

from dpprobe.devices import limit_threads, resolve_device
from dpprobe.errors import DataError
from dpprobe.files.disk_errors import when_there_is_room
from dpprobe.files.json_files import write_json
from dpprobe.files.plain_files import sha256_file
from dpprobe.files.result_store import locate_partial, locate_stored, publish_files
from dpprobe.finetune.checkpoint import Checkpoints
from dpprobe.finetune.fine_tuned_network import FineTunedNetwork, transform_state
from dpprobe.finetune.inputs import Inputs
from dpprobe.finetune.options import Options as FineTuneOptions
from dpprobe.finetune.rank_processes import run_ranks
from dpprobe.finetune.ranks import ALONE, Ranks
from dpprobe.finetune.starting_probe import fit_probe, start_from
from dpprobe.finetune.steps import network_scores
from dpprobe.finetune.train import Record, Trained, train_network
from dpprobe.heads.tuned import with_norms
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.private_mark import mark_metadata
from dpprobe.privacy.releases import Releases
from dpprobe.results import metrics
from dpprobe.results.network_record import (
    HISTORY_FILE,
    NETWORK_FILES,
    PAYLOAD_FILES,
    RECORD_FILE,
    SCORES_FILE,
    STATE_FILE,
    NetworkRecord,
)
from dpprobe.study.study import Study
from dpprobe.training.cell_task import CellTask
from dpprobe.training.network_cell import (
    NetworkFiles,
    checkpoint_folder,
    network_task,
    open_network_job,
)
from dpprobe.training.network_material import Material
from dpprobe.training.tasks import Request

logger = logging.getLogger("dpprobe")

# Learning curves use at most this many test examples, spread evenly over tables sorted by class.
CURVE_ROWS = 1000
_RECORDS_BYTES = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Resources of a job, which change the released network only by rounding.

    Attributes:
      memory_mb: the limit above which rows are read from disk batch by batch.
      threads: number of threads of all processes together.
      processes: number of processes that train the network together.
    """

    device: str = "auto"
    memory_mb: int = 16_000
    threads: int = 1
    processes: int = 1
    physical_batch: int = 64
    checkpoint_minutes: float = 5.0

    @classmethod
    def of_study(cls, study: Study, *, threads: int) -> Limits:
        return cls(
            device=study.device,
            memory_mb=study.features.memory_mb,
            threads=threads,
            processes=study.fine_tuning.processes,
            physical_batch=study.fine_tuning.physical_batch,
            checkpoint_minutes=study.fine_tuning.checkpoint_minutes,
        )


def tune_network(request: Request, files: NetworkFiles, *, index: int, limits: Limits) -> None:
    """Trains one seed's network, even if its folder already has a network; see `keep_network`.

    Raises DpprobeError if the method has no plan; PrivacyError if the plan belongs to another
    method, or if the number of steps differs from the plan's. Raises DeviceError if there are fewer
    GPUs than processes, WorkerError if a process was killed.
    """
    if limits.processes == 1:
        _tune_network(ALONE, request=request, files=files, index=index, limits=limits)
        return
    # copies without the open files that earlier checks have cached
    work = partial(_tune_network, request=request, files=replace(files), index=index, limits=limits)
    run_ranks(work, limits.processes, device=resolve_device(limits.device))


def _tune_network(
    ranks: Ranks, *, request: Request, files: NetworkFiles, index: int, limits: Limits
) -> None:
    threads = max(1, limits.threads // ranks.count)
    if ranks.count > 1:
        limit_threads(threads)
    opened = open_network_job(request, files)
    task = network_task(opened, files, device=limits.device)
    folder = files.network(task.name.key, index)
    inputs = opened.compare_rows([task])
    options = task.options
    assert isinstance(options, FineTuneOptions)
    if options.search is not None:
        options = options.make_trial(files.chosen)
    checkpoints = Checkpoints(
        folder=checkpoint_folder(folder),
        fingerprint=f"{task.fingerprint}-{index}",
        minutes=limits.checkpoint_minutes,
    )
    material = Material(
        options=options,
        files=files,
        stores=opened.stores,
        inputs=inputs,
        memory_mb=limits.memory_mb,
        device=resolve_device(limits.device),
        threads=threads,
    )
    started = time.monotonic()
    seed = task.derive_seed(index)
    network = material.make_network(seed)
    material.check_gradients(network, physical_batch=limits.physical_batch)
    plan = plan_for(task.plan, options)
    releases = Releases(plan, [seed], torch.device(material.device))
    if options.probe is not None:  # releases the head from which the network starts
        start_from(
            network,
            *ranks.compute_once(lambda: fit_probe(options, material.features, releases, seed)),
        )
    trained = train_network(
        options,
        network,
        material.make_train_inputs(seed),
        releases,
        checkpoint=checkpoints,
        physical_batch=limits.physical_batch,
        public=inputs.public,
        record=make_curve(material.test, link=task.link, rows=limits.physical_batch)
        if ranks.leads
        else None,
        label=f"{task.name.method} eps {task.name.epsilon}",
        ranks=ranks,
    )
    if not ranks.leads:
        return
    releases.check_counts()
    stored = _store_network(
        task=task,
        index=index,
        chosen=files.chosen,
        trained=trained,
        statistics=transform_state(network),
        scores=scores_of(network, material.test, rows=limits.physical_batch),
        seconds=round(time.monotonic() - started, 3),
    )
    publish_files(stored, folder, NETWORK_FILES)
    shutil.rmtree(checkpoints.folder, ignore_errors=True)


def plan_for(plan: Plan, options: FineTuneOptions) -> Plan:
    """Returns the plan with the clipping norms that an unpriced search chose.

    Epsilon does not change: it depends only on noise multipliers, and noise scales with norms.
    """
    norms = {item.name: item.sensitivity for item in options.list_mechanisms(plan.n)}
    return with_norms(plan, norms)


def make_curve(test: Inputs, *, link: metrics.Link, rows: int) -> Record:
    """Returns a function that computes metrics during training, on a part of the test examples."""
    index = test.list_kept()
    if len(index) > CURVE_ROWS:
        index = index[np.linspace(0, len(index) - 1, CURVE_ROWS).round().astype(np.int64)]
    labels = test.labels.cpu().numpy()[index]

    def measure_network(step: int, network: FineTunedNetwork) -> dict[str, float]:  # noqa: ARG001
        scores = scores_of(network, test, rows=rows, index=index)
        return metrics.Evaluation(scores, labels, link=link).compute_fast_metrics()

    return measure_network


def scores_of(
    network: FineTunedNetwork,
    inputs: Inputs,
    *,
    rows: int,
    index: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.float32]:
    """Returns scores, float32 [m, K], of some or all kept rows; DataError if not finite."""
    index = inputs.list_kept() if index is None else index
    scores = network_scores(network, inputs, index, physical_batch=rows).numpy()
    if not np.isfinite(scores).all():
        raise DataError(
            "the network's scores of test rows are not finite; look for damaged test images, or "
            "set a smaller learning_rate"
        )
    return np.ascontiguousarray(scores)


def _store_network(
    *,
    task: CellTask,
    index: int,
    chosen: Mapping[str, Any],
    trained: Trained,
    statistics: Mapping[str, torch.Tensor],
    scores: npt.NDArray[np.float32],
    seconds: float,
) -> Path:
    """Writes a network to the store, and returns its folder there."""
    options = task.options.model_dump(mode="json")
    tensors = {name: value.contiguous() for name, value in trained.state.items()}
    content = save(
        {**tensors, **statistics}, metadata=mark_metadata(task.name.model_dump(), options)
    )
    stored = locate_stored(task.results, task.fingerprint, index=index)
    part = locate_partial(stored)
    stored.parent.mkdir(parents=True, exist_ok=True)

    def write_files() -> None:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        (part / STATE_FILE).write_bytes(content)
        np.save(part / SCORES_FILE, scores)
        write_json(part / HISTORY_FILE, trained.history)
        NetworkRecord(
            cell=task.name,
            index=index,
            fingerprint=task.fingerprint,
            device=task.identity["device"],
            options=options,
            chosen=dict(chosen),
            trained=sum(value.numel() for value in tensors.values()),
            steps=trained.steps,
            seconds=seconds,
            files={name: sha256_file(part / name) for name in PAYLOAD_FILES},
        ).write(part / RECORD_FILE, *(part / name for name in PAYLOAD_FILES))

    when_there_is_room(stored.parent, len(content) + scores.nbytes + _RECORDS_BYTES, write_files)
    shutil.rmtree(stored, ignore_errors=True)
    part.replace(stored)
    return stored
