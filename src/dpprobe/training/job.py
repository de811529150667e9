"""The training job: every method of one (dataset, backbone, epsilon), cell by cell.

A cell is current when its files are whole, its fingerprint is the one that today's features,
options and plan give, and its privacy statement is today's. Current cells are kept; one that lacks
seeds gets just those, one whose statement reads differently gets that; anything else is trained
anew. A cell is finished in a staging folder and published at the job's end, by
renames: a job that fails or is killed in its last method leaves the others' work to its next run,
and a published cell is never half new.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.numpy import load_file, save_file

from dpprobe import heads
from dpprobe.artifacts import (
    atomic_path,
    canonical_json,
    fingerprint,
    read_json,
    sha256_file,
    write_json,
)
from dpprobe.data.options import headline_metric
from dpprobe.devices import resolve_device
from dpprobe.errors import DataError, DpprobeError
from dpprobe.features.near_duplicates import read_near_duplicates
from dpprobe.features.store import FeatureStore
from dpprobe.features.text import check_classes
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.rows import Transform
from dpprobe.heads.scoring import products, scores
from dpprobe.heads.training_set import TrainingSet, chunks
from dpprobe.privacy.limits import epsilon_value
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.randomness import cell_seed
from dpprobe.privacy.statement import statement
from dpprobe.results import metrics
from dpprobe.results.record import (
    HISTORY_FILE,
    METRICS_FILE,
    PAYLOAD_FILES,
    PREDICTIONS_FILE,
    STATEMENT_FILE,
    WEIGHTS_FILE,
    CellName,
    CellRecord,
    MetricSummary,
    RowCounts,
    parse_cell,
)
from dpprobe.training.plans import Plans, read_plans
from dpprobe.versions import VERSIONS

logger = logging.getLogger("dpprobe")

# Test rows that are read and scored at a time when they are streamed.
STREAMED_ROWS = 2048


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to train: `methods` at one epsilon on one set of features, seeds 0 to `seeds` - 1.

    Features that take more than `memory_mb` as float32 are streamed from disk. `metric` is what the
    dataset wants to be shown by, None for the usual.
    """

    dataset: str
    backbone: str
    epsilon: str
    methods: Mapping[str, MethodOptions]
    seeds: int
    study_seed: int
    delta: float
    accountant: str
    mode: str
    memory_mb: int
    metric: str | None = None


@dataclass(frozen=True, kw_only=True)
class Features:
    """What the methods of a job share, read once unless it is streamed."""

    train: TrainingSet
    test: torch.Tensor | FeatureStore  # [m, d] float32
    test_labels: np.ndarray  # [m] int64, or [m, K] uint8
    test_ids: Sequence[str]
    test_groups: Mapping[str, Sequence[Any]]
    test_accepted: Sequence[Sequence[int]] | None  # labels that count as right, where known
    class_names: tuple[str, ...]

    @property
    def ranked(self) -> list[int]:
        """The labels whose AUC the test rows tell."""
        return metrics.ranked_labels(self.test_labels, len(self.class_names))

    def test_blocks(self) -> Iterator[tuple[int, torch.Tensor]]:
        """The test rows in order, on the device that trains: (first row, [m, d])."""
        if isinstance(self.test, torch.Tensor):
            for start, stop in chunks(len(self.test), 4 * self.test.shape[1]):
                yield start, self.test[start:stop]
        else:
            for start, block in self.test.blocks(STREAMED_ROWS):
                yield start, torch.from_numpy(block).to(self.train.device)


@dataclass(frozen=True, kw_only=True)
class CellContents:
    """Every seed of a cell, as trained or as read back: one entry a seed in each field."""

    indices: tuple[int, ...]
    weights: np.ndarray  # [S, K, d + 1]
    arrays: Mapping[str, np.ndarray]  # what normalisations released, [S, ...] each
    scores: np.ndarray  # [S, m, K]
    history: list[dict[str, Any]] = field(default_factory=list)
    chosen: tuple[Mapping[str, Any], ...] = ()  # by a search over hyperparameters
    seconds: float = 0.0


def train_job(
    job: Job,
    *,
    train: Path,
    test: Path,
    plans: Path,
    cells: Path,
    device: str,
    overlap: Path | None = None,
) -> None:
    """Brings every cell of a job up to date.

    Args:
      train, test: manifests of the two splits' features.
      plans: the calibrated plans of the job's methods.
      overlap: what a near-duplicate check found, where one was run.
      cells: the folder of all cells; a finished but unpublished one is a hidden sibling there.
      device: "auto", "cpu" or "cuda".

    Raises:
      DpprobeError: naming each method that failed, after the others have been trained and staged.
    """
    calibrated = read_plans(plans)
    stores = FeatureStore(train), FeatureStore(test)
    check = read_near_duplicates(overlap, stores[0]) if overlap else "not run"
    planned = [name for name in job.methods if name not in calibrated.failures]
    tasks = [_task(job, name, calibrated, stores, cells, check) for name in planned]
    stale = [task for task in tasks if not task.is_current(job.seeds)]
    failures = [f"{name}: {reason}" for name, reason in calibrated.failures.items()]
    if stale:
        failures += _train_all(stale, stores, resolve_device(device))
    if failures:
        raise DpprobeError("\n".join(failures))
    for task in tasks:
        task.publish()


def _task(
    job: Job,
    method: str,
    calibrated: Plans,
    stores: tuple[FeatureStore, FeatureStore],
    cells: Path,
    near_duplicates: Mapping[str, Any] | str,
) -> CellTask:
    if method not in calibrated.plans:
        raise DataError(f"{method}: no plan in the calibration file; delete it and run again")
    plan = calibrated.plans[method]
    _check_plan(job, method, plan, stores[0].rows)
    folder = cells / job.dataset / job.backbone / method
    options = job.methods[method].located(dataset=job.dataset, backbone=job.backbone)
    for name in options.input_files():
        check_classes(Path(name), stores[0].class_names)
    identity = {
        "version": VERSIONS["training"],
        "dataset": job.dataset,
        "backbone": job.backbone,
        "method": method,
        "epsilon": job.epsilon,
        "train": stores[0].fingerprint,
        "test": stores[1].fingerprint,
        "options": options.identity(),
        "public": [sha256_file(Path(path)) for path in options.input_files()],
        "plan": _identity_of(plan),
        "study_seed": job.study_seed,
        "mode": job.mode,
    }
    return CellTask(
        job=job,
        method=method,
        options=options,
        plan=plan,
        epsilon_all_heads=calibrated.together[method],
        near_duplicates=near_duplicates,
        train=stores[0],
        headline=headline_metric(
            job.metric,
            num_classes=stores[0].num_classes,
            multi_label=stores[0].multi_label,
        ),
        published=folder / f"eps-{job.epsilon}",
        staged=folder / f".eps-{job.epsilon}.staged",
        identity=identity,
    )


def _check_plan(job: Job, method: str, plan: Plan, rows: int) -> None:
    found = (plan.n, plan.epsilon, plan.delta, plan.accountant)
    wanted = (rows, epsilon_value(job.epsilon), job.delta, job.accountant)
    if found != wanted:
        raise DataError(
            f"{method}: the plan is for (n, epsilon, delta, accountant) = {found}, the job for "
            f"{wanted}; delete the calibration file and run again"
        )


def _identity_of(plan: Plan) -> dict[str, Any]:
    """What a plan makes the trainer do and promise; not what other accountants say of it."""
    values = plan.to_dict()
    keys = ("mechanisms", "n", "epsilon", "delta", "accountant", "selection")
    return {key: values[key] for key in keys}


@dataclass(frozen=True, kw_only=True)
class CellTask:
    """One cell of a job: where it lives and what makes it current."""

    job: Job
    method: str
    options: MethodOptions
    plan: Plan
    epsilon_all_heads: float
    near_duplicates: Mapping[str, Any] | str
    train: FeatureStore
    headline: Literal["accuracy", "auc"]
    published: Path
    staged: Path
    identity: Mapping[str, Any]

    @property
    def name(self) -> CellName:
        return CellName(
            dataset=self.job.dataset,
            backbone=self.job.backbone,
            method=self.method,
            epsilon=self.job.epsilon,
        )

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.identity)

    def seed(self, index: int) -> int:
        """The seed of one repetition: of this cell alone, since it derives from all it is."""
        return cell_seed(self.identity, index)

    @cached_property
    def statement(self) -> dict[str, Any]:
        """The privacy statement as it reads back from its file."""
        values = statement(
            self.plan,
            method=self.method,
            options=self.options.model_dump(mode="json"),
            mode=self.job.mode,
            seeds=[self.seed(index) for index in range(self.job.seeds)],
            public_data={
                "backbone": self.train.backbone,
                "backbone_options": self.train.backbone_options,
                "trained": self.train.trained,
                "weights_sha256": self.train.weights_sha256,
                "near_duplicate_check": self.near_duplicates,
            },
            epsilon_all_heads=self.epsilon_all_heads,
            public_files={path: sha256_file(Path(path)) for path in self.options.input_files()},
        )
        return dict(json.loads(json.dumps(values, allow_nan=False)))

    def is_current(self, seeds: int) -> bool:
        """Whether the published or the staged cell holds exactly these seeds, whole."""
        return self.finished(seeds) is not None

    def finished(self, seeds: int) -> Path | None:
        wanted = list(range(seeds))
        for folder in (self.staged, self.published):
            record = whole_cell(folder, self.fingerprint)
            if (
                record
                and [seed["index"] for seed in record.seeds] == wanted
                and record.headline == self.headline
                and read_json(folder / STATEMENT_FILE) == self.statement
            ):
                return folder
        return None

    def reusable(self) -> CellContents | None:
        """The seeds that an earlier run trained for this very fingerprint."""
        for folder in (self.staged, self.published):
            if record := whole_cell(folder, self.fingerprint):
                return _read_contents(folder, record)
        return None

    def publish(self) -> None:
        """Moves a staged cell to its place, or marks the published one as seen by this run."""
        folder = self.finished(self.job.seeds)
        assert folder is not None, f"{self.method}: published before it was trained"
        if folder == self.published:
            logger.info("%s: kept, nothing it depends on has changed", self.method)
            for name in (*PAYLOAD_FILES, METRICS_FILE):
                os.utime(self.published / name)
        else:
            self.published.mkdir(parents=True, exist_ok=True)
            for name in (*PAYLOAD_FILES, METRICS_FILE):
                with atomic_path(self.published / name) as temporary:
                    shutil.copyfile(self.staged / name, temporary)
        if self.staged.exists():
            shutil.rmtree(self.staged)


def whole_cell(folder: Path, expected: str) -> CellRecord | None:
    """The record of a cell whose files are all as they were written, or None.

    Args:
      folder: the cell's folder.
      expected: the fingerprint that makes the cell current.
    """
    try:
        record = parse_cell((folder / METRICS_FILE).read_bytes())
        if record.fingerprint != expected:
            return None
        damaged = [
            name for name, digest in record.files.items() if sha256_file(folder / name) != digest
        ]
    except FileNotFoundError:
        return None
    except ValueError as error:
        logger.warning("%s: unreadable (%s); the cell is trained again", folder, error)
        return None
    if damaged:
        logger.warning("%s: %s damaged; the cell is trained again", folder, ", ".join(damaged))
        return None
    return record


def _train_all(
    tasks: Sequence[CellTask], stores: tuple[FeatureStore, FeatureStore], device: str
) -> list[str]:
    """Trains and stages each cell; what fails is collected, so that one method stops no other."""
    features = _read_features(stores, device, tasks[0].job.memory_mb)
    _check_ranked(features, stores[1], tasks[0].headline)
    failures = []
    for task in tasks:
        try:
            _train_cell(task, features)
        except Exception as error:  # also what torch or SciPy raise: the others still train
            logger.exception("%s failed", task.method)
            known = isinstance(error, DpprobeError)
            failures.append(f"{task.method}: {error if known else repr(error)}")
    return failures


def _read_features(
    stores: tuple[FeatureStore, FeatureStore], device: str, memory_mb: int
) -> Features:
    train, test = stores
    if train.class_names != test.class_names or train.dimension != test.dimension:
        raise DataError(
            f"{test.path}: classes or dimension differ from {train.path}; delete both, run again"
        )
    rows: list[torch.Tensor | FeatureStore] = []
    for store in stores:
        fits = 4 * store.rows * store.dimension <= memory_mb * 10**6
        rows.append(torch.from_numpy(store.read()).to(device) if fits else store)
        if not fits:
            logger.info("%s: above features.memory_mb %d, streamed", store.path, memory_mb)
    label_type = np.uint8 if train.multi_label else np.int64
    return Features(
        train=TrainingSet(
            rows[0],
            torch.from_numpy(np.asarray(train.labels).astype(label_type)),
            num_classes=len(train.class_names),
            device=device,
        ),
        test=rows[1],
        test_labels=np.asarray(test.labels).astype(label_type),
        test_ids=test.ids,
        test_groups=test.groups,
        test_accepted=test.accepted,
        class_names=tuple(train.class_names),
    )


def _check_ranked(features: Features, test: FeatureStore, shown: str) -> None:
    """Says which labels have no AUC; raises where none has and AUC is to be shown."""
    if shown == "auc" and not features.ranked:
        raise DataError(
            f"{test.path}: no label that some test rows have and others have not, so there is no "
            "AUC; add test rows, or write metric: accuracy"
        )
    if features.test_labels.ndim == 2:
        names = [
            name for index, name in enumerate(features.class_names) if index not in features.ranked
        ]
        if names:
            logger.warning(
                "%s: all test rows agree in %s: left out of AUC and average precision",
                test.path, ", ".join(names),
            )  # fmt: skip


def _train_cell(task: CellTask, features: Features) -> None:
    earlier = task.reusable()
    done = earlier.indices if earlier else ()
    missing = [index for index in range(task.job.seeds) if index not in done]
    if missing:
        logger.info("%s: training seeds %s", task.method, ", ".join(map(str, missing)))
    trained = _fit(task, features, missing) if missing else None
    contents = _merge([part for part in (earlier, trained) if part], task.job.seeds)
    _stage(task, features, contents)


def _fit(task: CellTask, features: Features, indices: Sequence[int]) -> CellContents:
    started = time.perf_counter()
    fitted = heads.fit(
        task.options,
        features.train,
        task.plan,
        [task.seed(index) for index in indices],
        record=_observer(features, task.options.link_on(features.train.multi_label)),
    )
    return CellContents(
        indices=tuple(indices),
        weights=fitted.weights,
        arrays=fitted.arrays(),
        scores=np.concatenate([scores(fitted, block) for _, block in features.test_blocks()], 1),
        history=[row | {"seed_index": indices[row["seed_index"]]} for row in fitted.history],
        chosen=fitted.chosen,
        seconds=time.perf_counter() - started,
    )


def _observer(features: Features, link: metrics.Link) -> heads.Observe:
    """What follows the test rows during training: accuracy, and AUC where there is one."""
    labels = torch.from_numpy(features.test_labels).to(features.train.device)

    def count(
        step: int,  # noqa: ARG001
        weights: torch.Tensor,
        transform: Transform,
    ) -> dict[str, list[float]]:
        hits = torch.zeros(len(weights), dtype=torch.int64, device=weights.device)
        for start, block in features.test_blocks():
            own = labels[start : start + len(block)]
            hits += (products(weights, transform(block)).argmax(2) == own).sum(1)
        return {"test_accuracy": (hits / len(labels)).tolist()}

    def rank(
        step: int,  # noqa: ARG001
        weights: torch.Tensor,
        transform: Transform,
    ) -> dict[str, list[float]]:
        blocks = [
            products(weights, transform(block)).cpu().numpy() for _, block in features.test_blocks()
        ]
        found = [
            metrics.training_metrics(own, features.test_labels, link=link)
            for own in np.concatenate(blocks, axis=1)
        ]
        return {name: [own[name] for own in found] for name in found[0]}

    return rank if features.ranked or labels.ndim == 2 else count


def _merge(parts: Sequence[CellContents], seeds: int) -> CellContents:
    """The first `seeds` seeds out of earlier and new ones, in order."""
    places = {
        index: (part, position) for part in parts for position, index in enumerate(part.indices)
    }
    chosen = [places[index] for index in range(seeds)]
    history = [row for part in parts for row in part.history if row["seed_index"] < seeds]
    return CellContents(
        indices=tuple(range(seeds)),
        weights=np.stack([part.weights[position] for part, position in chosen]),
        arrays={
            name: np.stack([part.arrays[name][position] for part, position in chosen])
            for name in parts[0].arrays
        },
        scores=np.stack([part.scores[position] for part, position in chosen]),
        history=sorted(history, key=lambda row: (row["seed_index"], row["step"])),
        chosen=tuple(part.chosen[position] for part, position in chosen if part.chosen),
        seconds=sum(part.seconds for part in parts),
    )


def _stage(task: CellTask, features: Features, contents: CellContents) -> None:
    """Writes a whole cell to its staging folder, metrics.json last."""
    folder = task.staged
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    with atomic_path(folder / WEIGHTS_FILE) as temporary:
        save_file(
            {
                name: np.ascontiguousarray(values)
                for name, values in {"weights": contents.weights, **contents.arrays}.items()
            },
            temporary,
            # one key: safetensors writes several in an order of their own each time
            metadata={"dpprobe": canonical_json(task.options.model_dump(mode="json"))},
        )
    _write_predictions(folder / PREDICTIONS_FILE, features, contents)
    with atomic_path(folder / HISTORY_FILE) as temporary:
        pq.write_table(pa.Table.from_pylist(contents.history, schema=HISTORY), temporary)
    write_json(folder / STATEMENT_FILE, task.statement)
    _record(task, features, contents).write(folder / METRICS_FILE)


HISTORY = pa.schema(
    [
        ("seed_index", pa.int32()),
        ("step", pa.int64()),
        ("epoch", pa.float64()),
        ("train_loss", pa.float64()),
        ("test_accuracy", pa.float64()),
        ("test_auc", pa.float64()),
    ]
)


def _write_predictions(path: Path, features: Features, contents: CellContents) -> None:
    rows, seeds = len(features.test_labels), len(contents.indices)
    classes = contents.scores.shape[2]
    flat = pa.array(contents.scores.astype(np.float32).reshape(-1))
    columns = {
        "seed_index": pa.array(np.repeat(np.array(contents.indices, np.int32), rows)),
        "id": pa.array(list(features.test_ids) * seeds),
        "label": _label_column(np.concatenate([features.test_labels] * seeds)),
        "scores": pa.FixedSizeListArray.from_arrays(flat, classes).cast(pa.list_(pa.float32())),
    }
    for name, values in features.test_groups.items():
        columns[name] = pa.array(list(values) * seeds)
    with atomic_path(path) as temporary:
        pq.write_table(pa.table(columns), temporary, compression="zstd")


def _label_column(labels: np.ndarray) -> pa.Array:
    """int64, or list<int8> where a row may have several labels."""
    if labels.ndim == 1:
        return pa.array(labels)
    flat = pa.array(labels.astype(np.int8).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, labels.shape[1]).cast(pa.list_(pa.int8()))


def _record(task: CellTask, features: Features, contents: CellContents) -> CellRecord:
    labels, link = features.test_labels, task.options.link_on(features.train.multi_label)
    seeds = [
        {
            "index": index,
            **metrics.evaluate(
                contents.scores[position], labels, link=link, accepted=features.test_accepted
            ),
        }
        for position, index in enumerate(contents.indices)
    ]
    for seed, found in zip(seeds, contents.chosen, strict=bool(contents.chosen)):
        seed["chosen"] = dict(found)
    summary = metrics.summarise(
        seeds,
        correct=metrics.hits(contents.scores[0], labels, link=link),
        labels=labels,
        scores=contents.scores[0],
        seed=task.job.study_seed,
    )
    files = {name: sha256_file(task.staged / name) for name in PAYLOAD_FILES}
    plan = task.plan
    noise = [mechanism.noise_multiplier for mechanism in plan.mechanisms]
    return CellRecord(
        cell=task.name,
        head=task.options.head,
        private=plan.private,
        fingerprint=task.fingerprint,
        content_hash=fingerprint(
            {"fingerprint": task.fingerprint, "files": files, "headline": task.headline}
        ),
        delta=plan.delta if plan.private else None,
        noise_multiplier=noise[0] if plan.private and len(noise) == 1 else None,
        realised_epsilon=plan.realised_epsilon if plan.private else None,
        options=task.options.model_dump(mode="json"),
        rows=RowCounts(train=features.train.rows, test=len(labels)),
        dimension=features.train.dimension,
        class_names=list(features.class_names),
        multi_label=labels.ndim == 2,
        headline=task.headline,
        auc_labels=len(features.ranked),
        seeds=seeds,
        summary={name: MetricSummary(**entry) for name, entry in summary.items()},
        files=files,
        # With a random number of trials the time would tell the number.
        seconds=None if plan.selection else round(contents.seconds, 3),
    )


def _read_contents(folder: Path, record: CellRecord) -> CellContents:
    indices = tuple(seed["index"] for seed in record.seeds)
    table = pq.read_table(folder / PREDICTIONS_FILE, columns=["scores"])
    values = table["scores"].combine_chunks().flatten().to_numpy()
    tensors = load_file(folder / WEIGHTS_FILE)
    return CellContents(
        indices=indices,
        weights=tensors.pop("weights"),
        arrays=tensors,
        scores=values.reshape(len(indices), record.rows.test, -1),
        history=pq.read_table(folder / HISTORY_FILE).to_pylist(),
        chosen=tuple(seed["chosen"] for seed in record.seeds if "chosen" in seed),
        seconds=record.seconds or 0.0,
    )
