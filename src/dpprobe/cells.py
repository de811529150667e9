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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.numpy import load_file, save_file

from dpprobe import heads, metrics
from dpprobe.artifacts import (
    atomic_path,
    canonical_json,
    fingerprint,
    read_json,
    sha256_file,
    write_json,
)
from dpprobe.config import MethodOptions, epsilon_value
from dpprobe.devices import resolve_device
from dpprobe.errors import DataError, DpprobeError
from dpprobe.features.store import FeatureStore
from dpprobe.heads.training_set import TrainingSet, normalise_rows, scores
from dpprobe.plans import Plans, read_plans
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.randomness import cell_seed
from dpprobe.privacy.statement import statement
from dpprobe.versions import VERSIONS

logger = logging.getLogger("dpprobe")

FORMAT = "dpprobe-cell"
FORMAT_VERSION = 1
# metrics.json is the commit mark: it holds the hashes of the others and is published last.
PAYLOAD = ("heads.safetensors", "predictions.parquet", "history.parquet", "privacy.json")
FILES = (*PAYLOAD, "metrics.json")


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to train: `methods` at one epsilon on one set of features, seeds 0 to `seeds` - 1."""

    dataset: str
    backbone: str
    epsilon: str
    methods: Mapping[str, MethodOptions]
    seeds: int
    study_seed: int
    delta: float
    accountant: str
    mode: str


@dataclass(frozen=True, kw_only=True)
class Features:
    """What the methods of a job share, read once."""

    train: TrainingSet
    test: np.ndarray  # [m, d] float32
    test_labels: np.ndarray  # [m] int64
    test_ids: Sequence[str]
    test_groups: Mapping[str, Sequence[Any]]
    class_names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CellContents:
    """Every seed of a cell, as trained or as read back: one entry a seed in each field."""

    indices: tuple[int, ...]
    weights: np.ndarray  # [S, K, d + 1]
    scores: np.ndarray  # [S, m, K]
    history: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0


def train_job(job: Job, *, train: Path, test: Path, plans: Path, cells: Path, device: str) -> None:
    """Brings every cell of a job up to date.

    Args:
      train, test: manifests of the two splits' features.
      plans: the calibrated plans of the job's methods.
      cells: the folder of all cells; a finished but unpublished one is a hidden sibling there.
      device: "auto", "cpu" or "cuda".

    Raises:
      DpprobeError: naming each method that failed, after the others have been trained and staged.
    """
    calibrated = read_plans(plans)
    stores = FeatureStore(train), FeatureStore(test)
    planned = [name for name in job.methods if name not in calibrated.failures]
    tasks = [_task(job, name, calibrated, stores, cells) for name in planned]
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
) -> CellTask:
    if method not in calibrated.plans:
        raise DataError(f"{method}: no plan in the calibration file; delete it and run again")
    plan = calibrated.plans[method]
    _check_plan(job, method, plan, stores[0].rows)
    folder = cells / job.dataset / job.backbone / method
    identity = {
        "version": VERSIONS["training"],
        "dataset": job.dataset,
        "backbone": job.backbone,
        "method": method,
        "epsilon": job.epsilon,
        "train": stores[0].fingerprint,
        "test": stores[1].fingerprint,
        "options": job.methods[method].model_dump(mode="json"),
        "plan": _identity_of(plan),
        "study_seed": job.study_seed,
        "mode": job.mode,
    }
    return CellTask(
        job=job,
        method=method,
        options=job.methods[method],
        plan=plan,
        epsilon_all_heads=calibrated.together[method],
        train=stores[0],
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
    return {key: values[key] for key in ("mechanisms", "n", "epsilon", "delta", "accountant")}


@dataclass(frozen=True, kw_only=True)
class CellTask:
    """One cell of a job: where it lives and what makes it current."""

    job: Job
    method: str
    options: MethodOptions
    plan: Plan
    epsilon_all_heads: float
    train: FeatureStore
    published: Path
    staged: Path
    identity: Mapping[str, Any]

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
            options=self.identity["options"],
            mode=self.job.mode,
            seeds=[self.seed(index) for index in range(self.job.seeds)],
            public_data={
                "backbone": self.train.backbone,
                "backbone_options": self.train.backbone_options,
                "trained": self.train.trained,
                "weights_sha256": self.train.weights_sha256,
                "near_duplicate_check": "not run",
            },
            epsilon_all_heads=self.epsilon_all_heads,
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
                and [seed["index"] for seed in record["seeds"]] == wanted
                and read_json(folder / "privacy.json") == self.statement
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
            for name in FILES:
                os.utime(self.published / name)
        else:
            self.published.mkdir(parents=True, exist_ok=True)
            for name in FILES:
                with atomic_path(self.published / name) as temporary:
                    shutil.copyfile(self.staged / name, temporary)
        if self.staged.exists():
            shutil.rmtree(self.staged)


def whole_cell(folder: Path, expected: str) -> dict[str, Any] | None:
    """The record of a cell whose files are all as they were written, or None.

    Args:
      folder: the cell's folder.
      expected: the fingerprint that makes the cell current.
    """
    try:
        record = read_json(folder / "metrics.json")
        if record["fingerprint"] != expected or record["format_version"] != FORMAT_VERSION:
            return None
        damaged = [
            name for name, digest in record["files"].items() if sha256_file(folder / name) != digest
        ]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        logger.warning("%s: unreadable (%s); the cell is trained again", folder, error)
        return None
    if damaged:
        logger.warning("%s: %s damaged; the cell is trained again", folder, ", ".join(damaged))
        return None
    return dict(record)


def _train_all(
    tasks: Sequence[CellTask], stores: tuple[FeatureStore, FeatureStore], device: str
) -> list[str]:
    """Trains and stages each cell; what fails is collected, so that one method stops no other."""
    features = _read_features(stores, device)
    failures = []
    for task in tasks:
        try:
            _train_cell(task, features)
        except Exception as error:  # also what torch or SciPy raise: the others still train
            logger.exception("%s failed", task.method)
            known = isinstance(error, DpprobeError)
            failures.append(f"{task.method}: {error if known else repr(error)}")
    return failures


def _read_features(stores: tuple[FeatureStore, FeatureStore], device: str) -> Features:
    train, test = stores
    if train.class_names != test.class_names or train.dimension != test.dimension:
        raise DataError(
            f"{test.path}: classes or dimension differ from {train.path}; delete both, run again"
        )
    labels = np.asarray(train.labels)
    if labels.ndim != 1:
        raise DataError(f"{train.path}: multi-label; the heads of this study take one label a row")
    return Features(
        train=TrainingSet(
            torch.from_numpy(train.read()).to(device),
            torch.from_numpy(labels.astype(np.int64)).to(device),
            num_classes=len(train.class_names),
        ),
        test=test.read(),
        test_labels=np.asarray(test.labels),
        test_ids=test.ids,
        test_groups=test.groups,
        class_names=tuple(train.class_names),
    )


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
    test = torch.from_numpy(features.test).to(features.train.device)
    rows = normalise_rows(test, task.options.normalize)
    labels = torch.from_numpy(features.test_labels).to(test.device)

    def record(
        step: int,  # noqa: ARG001
        weights: torch.Tensor,
        information: Mapping[str, Any],  # noqa: ARG001
    ) -> dict[str, list[float]]:
        hits = [
            torch.addmm(head[:, -1], rows, head[:, :-1].T).argmax(1) == labels for head in weights
        ]
        return {"test_accuracy": [float(hit.to(torch.float64).mean()) for hit in hits]}

    fitted = heads.fit(
        task.options,
        features.train,
        task.plan,
        [task.seed(index) for index in indices],
        record=record,
    )
    return CellContents(
        indices=tuple(indices),
        weights=fitted.weights,
        scores=scores(fitted, features.test),
        history=[row | {"seed_index": indices[row["seed_index"]]} for row in fitted.history],
        seconds=time.perf_counter() - started,
    )


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
        scores=np.stack([part.scores[position] for part, position in chosen]),
        history=sorted(history, key=lambda row: (row["seed_index"], row["step"])),
        seconds=sum(part.seconds for part in parts),
    )


def _stage(task: CellTask, features: Features, contents: CellContents) -> None:
    """Writes a whole cell to its staging folder, metrics.json last."""
    folder = task.staged
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    with atomic_path(folder / "heads.safetensors") as temporary:
        save_file(
            {"weights": np.ascontiguousarray(contents.weights)},
            temporary,
            # one key: safetensors writes several in an order of their own each time
            metadata={"dpprobe": canonical_json(task.options.model_dump(mode="json"))},
        )
    _write_predictions(folder / "predictions.parquet", features, contents)
    with atomic_path(folder / "history.parquet") as temporary:
        pq.write_table(pa.Table.from_pylist(contents.history, schema=HISTORY), temporary)
    write_json(folder / "privacy.json", task.statement)
    write_json(folder / "metrics.json", _record(task, features, contents))


HISTORY = pa.schema(
    [
        ("seed_index", pa.int32()),
        ("step", pa.int64()),
        ("epoch", pa.float64()),
        ("train_loss", pa.float64()),
        ("test_accuracy", pa.float64()),
    ]
)


def _write_predictions(path: Path, features: Features, contents: CellContents) -> None:
    rows, seeds = len(features.test_labels), len(contents.indices)
    classes = contents.scores.shape[2]
    flat = pa.array(contents.scores.astype(np.float32).reshape(-1))
    columns = {
        "seed_index": pa.array(np.repeat(np.array(contents.indices, np.int32), rows)),
        "id": pa.array(list(features.test_ids) * seeds),
        "label": pa.array(np.tile(features.test_labels, seeds)),
        "scores": pa.FixedSizeListArray.from_arrays(flat, classes).cast(pa.list_(pa.float32())),
    }
    for name, values in features.test_groups.items():
        columns[name] = pa.array(list(values) * seeds)
    with atomic_path(path) as temporary:
        pq.write_table(pa.table(columns), temporary, compression="zstd")


def _record(task: CellTask, features: Features, contents: CellContents) -> dict[str, Any]:
    labels = features.test_labels
    seeds = [
        {"index": index, **metrics.evaluate(contents.scores[position], labels)}
        for position, index in enumerate(contents.indices)
    ]
    correct = contents.scores[0].argmax(1) == labels
    files = {name: sha256_file(task.staged / name) for name in PAYLOAD}
    plan = task.plan
    noise = [mechanism.noise_multiplier for mechanism in plan.mechanisms]
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "cell": {
            "dataset": task.job.dataset,
            "backbone": task.job.backbone,
            "method": task.method,
            "epsilon": task.job.epsilon,
        },
        "head": task.options.head,
        "private": plan.private,
        "fingerprint": task.fingerprint,
        "content_hash": fingerprint({"fingerprint": task.fingerprint, "files": files}),
        "delta": plan.delta if plan.private else None,
        "noise_multiplier": noise[0] if plan.private else None,
        "realised_epsilon": task.plan.realised_epsilon if plan.private else None,
        "options": task.options.model_dump(mode="json"),
        "rows": {"train": features.train.rows, "test": len(labels)},
        "dimension": features.test.shape[1],
        "class_names": list(features.class_names),
        "seeds": seeds,
        "summary": metrics.summarise(
            seeds, correct=correct, labels=labels, seed=task.job.study_seed
        ),
        "files": files,
        "seconds": round(contents.seconds, 3),
    }


def _read_contents(folder: Path, record: Mapping[str, Any]) -> CellContents:
    indices = tuple(seed["index"] for seed in record["seeds"])
    table = pq.read_table(folder / "predictions.parquet", columns=["scores"])
    values = table["scores"].combine_chunks().flatten().to_numpy()
    return CellContents(
        indices=indices,
        weights=load_file(folder / "heads.safetensors")["weights"],
        scores=values.reshape(len(indices), record["rows"]["test"], -1),
        history=pq.read_table(folder / "history.parquet").to_pylist(),
        seconds=record["seconds"],
    )
