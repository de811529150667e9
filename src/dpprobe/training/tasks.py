"""Reads and checks the inputs of a training job, and turns its methods into tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dpprobe.artifacts import first_difference, sha256_file
from dpprobe.data.options import Headline
from dpprobe.devices import identity_device
from dpprobe.errors import DataError, PrivacyError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.features.overlap_record import read_near_duplicates
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.public_inputs import PublicInputs
from dpprobe.heads.registry import method_options
from dpprobe.privacy.plan import Patients, plan_identity
from dpprobe.privacy.risk import read_budget
from dpprobe.privacy.target import Target
from dpprobe.results.cell_record import CellName
from dpprobe.study.study import Study
from dpprobe.training.cell_task import CellTask
from dpprobe.training.fit_inputs import FitInputs, choose_headline
from dpprobe.training.plan_file import Plans, decide_methods, read_plans
from dpprobe.training.public_file_check import PrivateData
from dpprobe.versions import VERSIONS


@dataclass(frozen=True, kw_only=True)
class Job:
    """The methods to train at one epsilon on one set of features, with seeds 0 to `seeds` - 1.

    Attributes:
      study: the study's name.
      private_datasets: all private datasets of the study; no public file may be made from them.
      memory_mb: the limit above which features, as float32, are streamed from disk.
      unit: the unit of privacy. patients: if the unit is an image, has the most images per patient.
      metric: the headline metric that the study sets for the dataset; None for the default.
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
    metric: Headline | None = None

    def make_target(self, n: int) -> Target:
        """Returns the target of the plans, whose delta the calibration job has checked."""
        return Target(
            n=n,
            unit=self.unit,
            epsilon=read_budget(self.epsilon),
            delta=self.delta,
            accountant=self.accountant,
            patients=Patients(**self.patients) if self.patients else None,
            above=True,
        )

    @classmethod
    def of_rule(cls, study: Study, wildcards: Any, params: Any, **rest: Any) -> Job:
        return cls(
            study=study.study,
            private_datasets=tuple(study.datasets),
            dataset=wildcards.dataset,
            backbone=wildcards.backbone,
            epsilon=wildcards.epsilon,
            methods={name: method_options(options) for name, options in params.methods.items()},
            seeds=study.seeds,
            study_seed=study.seed,
            metric=study.datasets[wildcards.dataset].metric,
            **params.privacy,
            **rest,
        )


@dataclass(frozen=True, kw_only=True)
class OpenedJob:
    """A job whose inputs are read and checked against each other."""

    job: Job
    calibrated: Plans  # of all methods of the dataset and epsilon
    stores: tuple[FeatureStore, FeatureStore]
    cells: Path
    near_duplicates: Mapping[str, Any] | str  # counts of the check, or "not run"
    inputs: FitInputs
    private: PrivateData
    public: Mapping[str, PublicInputs]  # by method; `compare_rows` compares the files' rows

    @property
    def failure_reasons(self) -> dict[str, str]:
        """For each method without a plan, the reason why none exists."""
        failed = self.calibrated.failures
        return {name: failed[name] for name in self.job.methods if name in failed}

    @property
    def planned_methods(self) -> list[str]:
        return [name for name in self.job.methods if name not in self.calibrated.failures]

    def make_task(
        self, method: str, *, device: str, more: Mapping[str, Any] | None = None
    ) -> CellTask:
        """Returns the task of one cell; `more` are further values that decide its contents.

        Small fits compute on the CPU in place of the study's `device`.
        """
        job, plan = self.job, self.calibrated.plans[method]
        train, test = self.stores
        options = locate_options(job, method)
        place = self.inputs.place_fit(options, device)
        name = CellName(
            dataset=job.dataset, backbone=job.backbone, method=method, epsilon=job.epsilon
        )
        identity = {
            "version": VERSIONS["training"],
            **name.model_dump(),
            "train": train.fingerprint,
            "test": test.fingerprint,
            "options": options.identity_options(),
            "public": [sha256_file(Path(path)) for path in options.input_files()],
            "plan": plan_identity(plan.to_dict()),
            "study_seed": job.study_seed,
            "mode": job.mode,
            # a GPU draws other noise than a CPU, and sums in another order
            "device": identity_device(place.rows),
            **(more or {}),
        }
        published = name.folder(self.cells)
        return CellTask(
            name=name,
            options=options,
            place=place,
            plan=plan,
            seeds=job.seeds,
            study_seed=job.study_seed,
            mode=job.mode,
            epsilon_all_heads=self.calibrated.together[method],
            near_duplicates=self.near_duplicates,
            train=train,
            headline=choose_headline(test, job.metric),
            metric_named=job.metric is not None,
            published=published,
            staged=published.with_name(f".{published.name}.staged"),
            identity=identity,
            study=job.study,
        )

    def compare_rows(self, tasks: Sequence[CellTask]) -> FitInputs:
        """Compares the rows of public files with private rows, for cells to be trained; slow.

        Returns inputs that permit fits from compared files. Raises PrivacyError if a file shares
        many rows with private data.
        """
        public = self.inputs.public
        for task in tasks:
            method = task.name.method
            with _name_method(method):
                self.private.check_rows(task.options)
            public = public.join(self.public[method])
        return replace(self.inputs, public=public)


def open_job(
    job: Job,
    *,
    train: Path,
    test: Path,
    plans: Path,
    cells: Path,
    overlap: Path | None,
    tables: Path | None,
) -> OpenedJob:
    """Reads and checks a job's inputs; arguments are as for `head_job.train_job`.

    Raises DataError for a plan of another job, PrivacyError for a private file declared public.
    """
    stores = FeatureStore(train), FeatureStore(test)
    check = read_near_duplicates(overlap, *stores) if overlap else "not run"
    inputs = FitInputs(stores[0], job.unit)
    if job.patients is not None:
        inputs.check_patients(job.patients["images"])
    private = PrivateData(
        dataset=job.dataset,
        backbone=job.backbone,
        class_names=stores[0].class_names,
        manifests=(train, test),
        datasets=job.private_datasets,
        results=cells.parent,
        tables=tables,
    )
    job, calibrated = read_job_plans(job, plans, inputs)
    public = {}
    for name in job.methods:
        if name not in calibrated.failures:
            with _name_method(name):
                public[name] = private.check_files(locate_options(job, name))
    return OpenedJob(
        job=job,
        calibrated=calibrated,
        stores=stores,
        cells=cells,
        near_duplicates=check,
        inputs=inputs,
        private=private,
        public=public,
    )


def read_job_plans(job: Job, path: Path, inputs: FitInputs) -> tuple[Job, Plans]:
    """Reads and checks a job's plans; returns the job with `auto` methods resolved, and the plans.

    Raises DataError if a method has no plan, or a plan for another job, PrivacyError if the file is
    damaged.
    """
    calibrated, target = read_plans(path), job.make_target(inputs.n)
    methods, plans = decide_methods(
        job.methods,
        calibrated,
        inputs.read_facts(target, metric=job.metric),
        target,
        # <calibration>/<dataset>/eps-<epsilon>.json
        cache=path.parent.parent,
        seeds=job.seeds,
    )
    job = replace(job, methods=methods)
    for name in job.methods:
        if name not in plans.failures:
            _check_target(path, name, plans, target)
    return job, plans


@contextmanager
def _name_method(method: str) -> Iterator[None]:
    """Puts a method's name before the message of its PrivacyError."""
    try:
        yield
    except PrivacyError as error:
        raise PrivacyError(f"{method}: {error}") from None


def locate_options(job: Job, method: str) -> MethodOptions:
    """Returns a method's options, with the names of dataset and backbone filled into paths."""
    return job.methods[method].fill_paths(dataset=job.dataset, backbone=job.backbone)


def _check_target(path: Path, method: str, calibrated: Plans, target: Target) -> None:
    """Raises DataError if a method has no plan, or a plan for another target."""
    if method not in calibrated.plans:
        raise DataError(f"{path}: this file has no plan for {method}; delete it and run again")
    planned = Target.of_plan(calibrated.plans[method])
    if difference := first_difference(asdict(planned), asdict(target)):
        raise DataError(
            f"{path}: {method}: the plan's {difference.place} is {difference.first}, but the job "
            f"needs {difference.second}; delete it and run again"
        )
