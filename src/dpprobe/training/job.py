"""The training job: every method of one (dataset, backbone, epsilon), cell by cell.

Current cells are kept; one that lacks seeds gets just those, one whose statement reads differently
gets that; anything else is trained anew. A cell is finished in a staging folder and published at
the job's end, by renames: a job that fails or is killed in its last method leaves the others' work
to its next run, and a published cell is never half new.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpprobe.artifacts import sha256_file
from dpprobe.data.options import headline_metric
from dpprobe.devices import identity_device, resolve_device
from dpprobe.errors import DataError, DpprobeError, PrivacyError, may_pass
from dpprobe.features.near_duplicates import read_near_duplicates
from dpprobe.features.store import FeatureStore
from dpprobe.features.text import check_classes
from dpprobe.heads.fit import check_plan, fit_heads
from dpprobe.heads.fitted import Observe
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import method_options
from dpprobe.heads.rows import Transform
from dpprobe.heads.scoring import products, score_rows
from dpprobe.machine_code import MachineCode, processor
from dpprobe.privacy.limits import epsilon_value
from dpprobe.privacy.plan import Plan
from dpprobe.results import metrics
from dpprobe.results.cell_record import CellName
from dpprobe.results.units import row_weights
from dpprobe.study.study import Study
from dpprobe.training.cell import CellTask
from dpprobe.training.contents import CellContents, merge
from dpprobe.training.features import (
    JobFeatures,
    check_patients,
    read_job_features,
    units_of,
)
from dpprobe.training.plans import Plans, check_prices, read_plans
from dpprobe.training.public_files import PrivateData
from dpprobe.versions import VERSIONS

logger = logging.getLogger("dpprobe")


@dataclass(frozen=True, kw_only=True)
class Job:
    """The methods to train at one epsilon on one set of features, with seeds 0 to `seeds` - 1.

    Features that take more than `memory_mb` as float32 are streamed from disk. `metric` is the
    dataset's choice of what stands for it, None for the usual. `unit` is the unit of privacy, and
    `patients` holds the `images` that one may have where that is an image. `study` is the study's
    name, and `private_datasets` are those that its public files must not be made from.
    """

    study: str
    private_datasets: tuple[str, ...]
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
    unit: str = "image"
    patients: Mapping[str, int | None] | None = None
    metric: str | None = None

    @classmethod
    def of(cls, study: Study, wildcards: Any, params: Any, **rest: Any) -> Job:
        """Returns the job of a rule's wildcards and params, and of what the rule says beside."""
        return cls(
            study=study.study,
            private_datasets=tuple(study.datasets),
            dataset=wildcards.dataset,
            backbone=wildcards.backbone,
            epsilon=wildcards.epsilon,
            methods={name: method_options(options) for name, options in params.methods.items()},
            seeds=params.seeds,
            study_seed=params.seed,
            **params.privacy,
            **rest,
        )


def train_job(
    job: Job,
    *,
    train: Path,
    test: Path,
    plans: Path,
    cells: Path,
    device: str,
    overlap: Path | None = None,
    tables: Path | None = None,
) -> None:
    """Brings every cell of a job up to date.

    Args:
      train, test: manifests of the two splits' features.
      plans: the calibrated plans of the job's methods.
      overlap: the counts of a near-duplicate check, where one was run.
      cells: the folder of all cells; a finished but unpublished one is a hidden sibling there.
      tables: the folder of all split tables, where they may lie on this machine.
      device: "auto", "cpu" or "cuda".

    Raises:
      PrivacyError: before anything is trained, when a plan is not its method's or does not cost
        what its file says, and for a file that is declared public and is not.
      DpprobeError: naming each method that failed, after the others have been trained and staged.
    """
    calibrated = read_plans(plans)
    stores = FeatureStore(train), FeatureStore(test)
    check = read_near_duplicates(overlap, stores[0]) if overlap else "not run"
    planned = [name for name in job.methods if name not in calibrated.failures]
    units = units_of(stores[0], job.unit)
    n = stores[0].rows if units is None else units.count
    if job.patients is not None:
        check_patients(stores[0], job.patients["images"])
    for name in planned:
        check_planned(plans, job, name, calibrated, n)
    private = PrivateData(
        dataset=job.dataset,
        backbone=job.backbone,
        manifests=(train, test),
        datasets=job.private_datasets,
        results=cells.parent,
        tables=tables,
    )
    for name in planned:
        with _named(name):
            private.check(_located(job, name))
    kind = identity_device(device)
    tasks = [_cell_task(job, name, calibrated, stores, cells, check, kind) for name in planned]
    stale = [task for task in tasks if not task.is_current()]
    for task in stale:
        check_prices(plans, task.name.method, calibrated, job.seeds)
        with _named(task.name.method):
            private.check_rows(task.options)
    errors: dict[str, Exception] = {}
    if stale:
        logger.info(
            "processor %s; machine code %s", processor(), ", ".join(sorted(MachineCode.ready))
        )
        features = read_job_features(
            stores,
            device=resolve_device(device),
            memory_mb=job.memory_mb,
            headline=stale[0].headline,
            units=units,
        )
        errors = _train_all(stale, features)
    if calibrated.failures or errors:
        raise _failure(calibrated.failures, errors)
    for task in tasks:
        task.publish()


@contextmanager
def _named(method: str) -> Iterator[None]:
    """Puts the name of a method before what a PrivacyError of it says."""
    try:
        yield
    except PrivacyError as error:
        raise PrivacyError(f"{method}: {error}") from None


def _located(job: Job, method: str) -> MethodOptions:
    """Returns the options of a method, with the names of dataset and backbone put into paths."""
    return job.methods[method].located(dataset=job.dataset, backbone=job.backbone)


def _cell_task(
    job: Job,
    method: str,
    calibrated: Plans,
    stores: tuple[FeatureStore, FeatureStore],
    cells: Path,
    near_duplicates: Mapping[str, Any] | str,
    device: str,
) -> CellTask:
    """Returns one cell of the job, its inputs checked and its identity computed.

    Raises:
      DataError: for public weights of other classes.
    """
    plan = calibrated.plans[method]
    train, test = stores
    options = _located(job, method)
    for path in options.input_files():
        check_classes(Path(path), train.class_names)
    name = CellName(dataset=job.dataset, backbone=job.backbone, method=method, epsilon=job.epsilon)
    identity = {
        "version": VERSIONS["training"],
        **name.model_dump(),
        "train": train.fingerprint,
        "test": test.fingerprint,
        "options": options.identity(),
        "public": [sha256_file(Path(path)) for path in options.input_files()],
        "plan": plan_identity(plan),
        "study_seed": job.study_seed,
        "mode": job.mode,
    }
    # A GPU draws other noise, and adds in another order; a CPU's cells are named without it.
    if device != "cpu":
        identity["device"] = device
    published = name.folder(cells)
    return CellTask(
        name=name,
        options=options,
        plan=plan,
        seeds=job.seeds,
        study_seed=job.study_seed,
        mode=job.mode,
        epsilon_all_heads=calibrated.together[method],
        near_duplicates=near_duplicates,
        train=train,
        headline=headline_metric(
            job.metric, num_classes=train.num_classes, multi_label=train.multi_label
        ),
        published=published,
        staged=published.with_name(f".{published.name}.staged"),
        identity=identity,
        study=job.study,
    )


def check_planned(path: Path, job: Job, method: str, calibrated: Plans, n: int) -> None:
    """Checks that a method has a plan, which is one for this job and for what the method releases.

    Raises:
      DataError: when it has none, or one for another job.
      PrivacyError: when the plan is not the method's.
    """
    if method not in calibrated.plans:
        raise DataError(f"{path}: {method}: no plan; delete it and run again")
    plan = calibrated.plans[method]
    planned = (plan.n, plan.unit, plan.epsilon, plan.delta, plan.accountant)
    wanted = (n, job.unit, epsilon_value(job.epsilon), job.delta, job.accountant)
    if planned != wanted:
        raise DataError(
            f"{path}: {method}: the plan is for (n, unit, epsilon, delta, accountant) = {planned}, "
            f"the job for {wanted}; delete it and run again"
        )
    images = None if plan.patients is None else {"images": plan.patients.images}
    if images != job.patients:
        raise DataError(
            f"{path}: {method}: the plan is for patients {images}, the job for {job.patients}; "
            "delete it and run again"
        )
    if job.methods[method].private:
        try:
            check_plan(job.methods[method], plan)
        except PrivacyError as error:
            raise PrivacyError(f"{path}: {method}: {error}; delete it and run again") from None


def plan_identity(plan: Plan) -> dict[str, Any]:
    """Returns the part of a plan that decides training and guarantee, without other accountants."""
    values = plan.to_dict()
    keys = ("mechanisms", "n", "unit", "epsilon", "delta", "accountant", "selection")
    return {key: values[key] for key in keys}


def _train_all(tasks: Sequence[CellTask], features: JobFeatures) -> dict[str, Exception]:
    """Trains and stages each cell; errors are collected, so that one method stops no other."""
    errors: dict[str, Exception] = {}
    for task in tasks:
        try:
            _train_cell(task, features)
        except DpprobeError as error:
            logger.warning("%s failed: %s", task.name.method, error)
            errors[task.name.method] = error
        except Exception as error:  # also what torch or SciPy raise: the others still train
            logger.exception("%s failed", task.name.method)
            errors[task.name.method] = error
    return errors


def _failure(unplanned: Mapping[str, str], errors: Mapping[str, Exception]) -> DpprobeError:
    """Returns the error of a job: a line for each method without a plan or with an error."""
    reasons: dict[str, object] = dict(unplanned)
    for method, error in errors.items():
        reasons[method] = error if isinstance(error, DpprobeError) else repr(error)
    failure = DpprobeError("\n".join(f"{method}: {why}" for method, why in reasons.items()))
    failure.passes = any(map(may_pass, errors.values()))
    return failure


def _train_cell(task: CellTask, features: JobFeatures) -> None:
    """Trains the seeds that a cell lacks, and stages the whole cell."""
    earlier = task.reusable()
    done = earlier.indices if earlier else ()
    missing = [index for index in range(task.seeds) if index not in done]
    if missing:
        logger.info("%s: training seeds %s", task.name.method, ", ".join(map(str, missing)))
    trained = _fit(task, features, missing) if missing else None
    contents = merge([part for part in (earlier, trained) if part], task.seeds)
    task.stage(contents, features)


def _fit(task: CellTask, features: JobFeatures, indices: Sequence[int]) -> CellContents:
    """Trains the seeds of these indices and scores the test rows."""
    started = time.perf_counter()
    fitted = fit_heads(
        task.options,
        features.train,
        task.plan,
        [task.seed(index) for index in indices],
        record=_observer(features, task.link),
    )
    return CellContents(
        indices=tuple(indices),
        weights=fitted.weights,
        arrays=fitted.arrays(),
        scores=np.concatenate(
            [score_rows(fitted, block) for _, block in features.test_blocks()], 1
        ),
        history=[row | {"seed_index": indices[row["seed_index"]]} for row in fitted.history],
        chosen=fitted.chosen,
        seconds=time.perf_counter() - started,
    )


def _observer(features: JobFeatures, link: metrics.Link) -> Observe:
    """Returns the function that tests the heads in training: accuracy, and AUC if there is one."""
    labels = torch.from_numpy(features.test_labels).to(features.train.device)
    each = row_weights(features.test_units)
    weights_of = None if each is None else torch.from_numpy(each).to(labels.device)
    total = len(labels) if each is None else float(each.sum())

    def count(
        step: int,  # noqa: ARG001
        weights: torch.Tensor,
        transform: Transform,
    ) -> dict[str, list[float]]:
        kind = torch.int64 if weights_of is None else torch.float64
        hits = torch.zeros(len(weights), dtype=kind, device=weights.device)
        for start, block in features.test_blocks():
            window = slice(start, start + len(block))
            right = products(weights, transform(block)).argmax(2) == labels[window]
            hits += right.sum(1) if weights_of is None else right.double() @ weights_of[window]
        return {"test_accuracy": (hits / total).tolist()}

    def rank(
        step: int,  # noqa: ARG001
        weights: torch.Tensor,
        transform: Transform,
    ) -> dict[str, list[float]]:
        blocks = [
            products(weights, transform(block)).cpu().numpy() for _, block in features.test_blocks()
        ]
        tested = [
            metrics.training_metrics(
                scores_of_seed, features.test_labels, link=link, units=features.test_units
            )
            for scores_of_seed in np.concatenate(blocks, axis=1)
        ]
        return {name: [seed[name] for seed in tested] for name in tested[0]}

    return rank if features.ranked or features.multi_label else count
