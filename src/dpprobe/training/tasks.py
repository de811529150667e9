"""Reads and checks the inputs of a training job, and turns its methods into tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from dpprobe.data.options import Headline
from dpprobe.devices import identity_device
from dpprobe.errors import DataError, DpprobeError, PrivacyError, may_pass
from dpprobe.features.feature_store import FeatureStore
from dpprobe.features.overlap_record import read_near_duplicates
from dpprobe.files.plain_files import sha256_file
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.public_inputs import PublicInputs
from dpprobe.heads.registry import method_options
from dpprobe.json_values import first_difference
from dpprobe.privacy.plan import plan_identity
from dpprobe.privacy.stated_facts import NOT_RUN
from dpprobe.privacy.target import Target, Terms
from dpprobe.results.cell_record import CellName
from dpprobe.shown_text import join_lines
from dpprobe.study.study import Study
from dpprobe.training.cell_task import Asked, CellTask
from dpprobe.training.fit_inputs import FitInputs, choose_headline
from dpprobe.training.plan_file import Plans, decide_methods, read_plans
from dpprobe.training.public_file_check import PrivateData
from dpprobe.versions import ALL_HEADS


@dataclass(frozen=True, kw_only=True)
class Request:
    """The cells of a job, for one (dataset, backbone, epsilon), with the values that they share."""

    dataset: str
    backbone: str
    epsilon: str
    methods: Mapping[str, MethodOptions]
    terms: Terms
    asked: Asked

    @classmethod
    def of_rule(cls, study: Study, wildcards: Any, params: Any) -> Request:
        names = {"dataset": wildcards.dataset, "backbone": wildcards.backbone}
        return cls(
            **names,
            epsilon=wildcards.epsilon,
            methods={name: method_options(options) for name, options in params.methods.items()},
            terms=Terms.of_params(wildcards.epsilon, params.privacy),
            asked=Asked(
                study=study.study,
                seeds=study.seeds,
                study_seed=study.seed,
                mode=params.privacy["mode"],
                metric=study.datasets[wildcards.dataset].metric,
            ),
        )

    def located_methods(self) -> dict[str, MethodOptions]:
        """The methods, with the names of dataset and backbone filled into their paths."""
        return {
            name: options.fill_paths(dataset=self.dataset, backbone=self.backbone)
            for name, options in self.methods.items()
        }

    def name_cell(self, method: str) -> CellName:
        return CellName(
            dataset=self.dataset, backbone=self.backbone, method=method, epsilon=self.epsilon
        )


@dataclass(frozen=True, kw_only=True)
class JobFiles:
    """The files of a job that makes cells.

    Attributes:
      plans: the file with the plans of all methods of the dataset and epsilon.
      results: the study's results, with the store of finished cells.
      private: all private datasets of the study; no public file may derive from them.
      data: the folder of all split tables; None if this machine has none.
      overlap: the file with the counts of a near-duplicate check; None if not run.
    """

    train: Path
    test: Path
    plans: Path
    results: Path
    private: tuple[str, ...]
    data: Path | None = None
    overlap: Path | None = None

    @classmethod
    def of_input(cls, study: Study, given: Any, **more: Any) -> Self:
        """Returns the files that the input of a Snakemake rule names."""
        overlap = getattr(given, "overlap", None)
        return cls(
            train=Path(given.train),
            test=Path(given.test),
            plans=Path(given.plans),
            results=Path(study.results_dir),
            data=Path(study.data_dir),
            private=tuple(study.datasets),
            overlap=Path(overlap) if overlap else None,
            **more,
        )


@dataclass(frozen=True, kw_only=True)
class OpenedJob:
    """A job whose inputs have been read and compared with each other."""

    request: Request
    methods: Mapping[str, MethodOptions]  # with located files, and `auto` resolved
    calibrated: Plans  # of all methods of the dataset and epsilon
    stores: tuple[FeatureStore, FeatureStore]  # train, and test without null examples
    headline: Headline  # the metric that represents each cell
    results: Path
    near_duplicates: Mapping[str, Any] | str  # counts of the check, or NOT_RUN
    inputs: FitInputs
    private: PrivateData
    public: Mapping[str, PublicInputs]  # by method; `compare_rows` compares the files' rows

    @property
    def failure_reasons(self) -> dict[str, str]:
        """Maps each method without a plan to the reason."""
        failed = self.calibrated.failures
        return {name: failed[name] for name in self.methods if name in failed}

    @property
    def planned_methods(self) -> list[str]:
        return [name for name in self.methods if name not in self.calibrated.failures]

    def make_task(
        self, method: str, *, device: str, more: Mapping[str, Any] | None = None
    ) -> CellTask:
        """Returns the task of one cell; `more` are further values that determine its contents.

        Small fits run on the CPU instead of the study's `device`.
        """
        plan, options = self.calibrated.plans[method], self.methods[method]
        asked = self.request.asked
        train, test = self.stores
        place = self.inputs.place_fit(options, device)
        name = self.request.name_cell(method)
        identity = {
            "version": ALL_HEADS,
            **name.model_dump(),
            "train": train.fingerprint,
            "test": test.fingerprint,
            "options": options.identity_options(),
            "public": [sha256_file(Path(path)) for path in options.input_files()],
            "plan": plan_identity(plan.to_dict()),
            "study_seed": asked.study_seed,
            "mode": asked.mode,
            # a GPU draws other noise than a CPU, and adds in another order
            "device": identity_device(place.rows),
            **(more or {}),
        }
        return CellTask(
            name=name,
            asked=asked,
            options=options,
            place=place,
            plan=plan,
            epsilon_all_heads=self.calibrated.together[method],
            allows=self.calibrated.allows.get(method),
            near_duplicates=self.near_duplicates,
            train=train,
            headline=self.headline,
            results=self.results,
            identity=identity,
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


def open_job(request: Request, files: JobFiles) -> OpenedJob:
    """Reads and checks a job's inputs.

    Raises DataError for a plan of another job, PrivacyError for a private file declared public.
    """
    stores = FeatureStore(files.train), FeatureStore(files.test)
    check = read_near_duplicates(files.overlap, *stores) if files.overlap else NOT_RUN
    inputs = FitInputs(stores[0], request.terms.unit)
    if (patients := request.terms.patients) is not None:
        inputs.check_patients(patients.images)
    private = PrivateData(
        dataset=request.dataset,
        backbone=request.backbone,
        class_names=stores[0].class_names,
        manifests=(files.train, files.test),
        datasets=files.private,
        results=files.results,
        tables=files.data,
    )
    methods, calibrated = read_job_plans(
        files.plans,
        request.located_methods(),
        request.terms.make_target(inputs.n),
        inputs,
        asked=request.asked,
    )
    test = stores[1].leave_out_nulls()  # test results have no noise, so null examples do not count
    headline = choose_headline(test, request.asked.metric)
    methods = {
        name: options.follow_metric(headline, multi_label=test.multi_label)
        for name, options in methods.items()
    }
    public = {}
    for name, options in methods.items():
        if name not in calibrated.failures:
            with _name_method(name):
                public[name] = private.check_files(options)
    return OpenedJob(
        request=request,
        methods=methods,
        calibrated=calibrated,
        stores=(stores[0], test),
        headline=headline,
        results=files.results,
        near_duplicates=check,
        inputs=inputs,
        private=private,
        public=public,
    )


def read_job_plans(
    path: Path,
    methods: Mapping[str, MethodOptions],
    target: Target,
    inputs: FitInputs,
    *,
    asked: Asked,
) -> tuple[dict[str, MethodOptions], Plans]:
    """Reads and checks the plans of methods; returns the methods with `auto` resolved, and plans.

    Raises DataError if a method has no plan, or a plan for another target, PrivacyError if the file
    is damaged.
    """
    decided, plans = decide_methods(
        methods,
        read_plans(path),
        inputs.read_facts(target, metric=asked.metric),
        target,
        # <calibration>/<dataset>/eps-<epsilon>.json
        cache=path.parent.parent,
        seeds=asked.seeds,
    )
    for name in decided:
        if name not in plans.failures:
            _check_target(path, name, plans, target)
    return decided, plans


def make_failure(unplanned: Mapping[str, str], errors: Mapping[str, Exception]) -> DpprobeError:
    """Makes the error of a job, with one line for each method that failed.

    Args:
      unplanned: the reasons of methods without a plan.
      errors: the errors of other methods; a retry may help if one of them is temporary.
    """
    reasons: dict[str, object] = dict(unplanned)
    for method, error in errors.items():
        reasons[method] = error if isinstance(error, DpprobeError) else repr(error)
    failure = DpprobeError(join_lines(f"{method}: {why}" for method, why in reasons.items()))
    failure.passes = any(map(may_pass, errors.values()))
    return failure


@contextmanager
def _name_method(method: str) -> Iterator[None]:
    """Puts a method's name before the message of its PrivacyError."""
    try:
        yield
    except PrivacyError as error:
        raise PrivacyError(f"{method}: {error}") from None


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
