"""Checks a study on this machine: files must exist, and sizes and delta must fit each dataset."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from dpprobe.analysis_registry import load_analyses
from dpprobe.data import prompts
from dpprobe.data.dataset_sizes import count_used_rows
from dpprobe.data.options import DatasetOptions, headline_metric
from dpprobe.data.people.class_units import CountedRows
from dpprobe.data.promise_facts import promise_facts
from dpprobe.data.subsample import without_subsample
from dpprobe.errors import ConfigError
from dpprobe.heads import tuned_options
from dpprobe.heads.options import MethodOptions, check_counts
from dpprobe.options import resolve_path
from dpprobe.privacy.accountants import worth_to_group
from dpprobe.privacy.limits import INFINITE, delta_fault, delta_warning
from dpprobe.privacy.risk import budget_words, nominal_epsilon, read_budget
from dpprobe.release_part_registry import load_parts
from dpprobe.shown_text import join_lines
from dpprobe.study import catalog
from dpprobe.study.class_split_checks import class_split_faults
from dpprobe.study.folders import folder_faults
from dpprobe.study.imbalance import rare_classes
from dpprobe.study.network_methods import network_faults
from dpprobe.study.options import ReleaseOptions
from dpprobe.study.public_file_checks import PublicFiles
from dpprobe.study.release_data import release_delta_fault, release_delta_warning
from dpprobe.study.reserved_names import LEDGER_FILE, same_units_fault
from dpprobe.study.study import Study


def check_study(study: Study, *, check_classes: bool = True) -> list[str]:
    """Returns warnings; raises ConfigError if files are missing or options do not fit the datasets.

    Args:
      check_classes: False skips the check for classes without test units, which `init` does itself.
    """
    report = _Report()
    report.errors += [f"config: {fault}" for fault in folder_faults(study)]
    whole = {rare.name: rare.dataset for rare in rare_classes(study.imbalance)}
    faulty: set[str] = set()
    for name, dataset in study.datasets.items():
        if whole.get(name) in faulty:
            continue  # copies with a rare class would repeat the dataset's faults
        known = len(report.errors)
        with report.report_part(f"datasets.{name}"):
            _check_private(study, name, dataset, report)
            if check_classes:
                _check_class_split(study, name, dataset, report)
        if len(report.errors) > known:
            faulty.add(name)
    for name in study.releases:
        with report.report_part(f"releases.{name}"):
            report.errors += _check_release(study, name)
            report.warnings += _warn_of_unmeasured(study, name)
            report.warnings += _warn_of_delta(study, name)
    report.errors += [
        f"config: {analysis.name}: {fault}"
        for analysis in load_analyses()
        for fault in analysis.list_faults(study)
    ]
    report.errors += [f"config: {fault}" for fault in network_faults(study)]
    public_files = PublicFiles(study)
    for name in study.methods:
        with report.report_part(f"methods.{name}"):
            public_files.check_method(name)
    for name, dataset in study.public_datasets.items():
        with report.report_part(f"public_datasets.{name}"):
            _check_public(study, name, dataset, report)
    for name, backbone in study.backbones.items():
        with report.report_part(f"backbones.{name}"):
            backbone.check_files()
            for path in backbone.input_files():
                public_files.check_weights(path)
            report.warnings += [f"backbones.{name}: {line}" for line in backbone.list_warnings()]
    if report.errors:
        raise ConfigError(join_lines(dict.fromkeys(report.errors)))
    return report.warnings


@dataclass
class _Report:
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @contextmanager
    def report_part(self, name: str) -> Iterator[None]:
        """Reports a ConfigError raised in the `with` block as errors of this part of the study."""
        try:
            yield
        except ConfigError as error:
            self.errors += [f"config: {name}: {line}" for line in str(error).splitlines()]


def _check_files(dataset: DatasetOptions) -> None:
    """Checks a dataset's files; for files that a person must download, the error has the steps."""
    try:
        dataset.check_files()
    except ConfigError as error:
        entry = catalog.dataset_entry(dataset.catalog) if dataset.catalog else None
        if entry is None or not (entry.required and dataset.source == entry.options["source"]):
            raise
        raise ConfigError(
            str(error) + f"; `dpprobe catalog {dataset.catalog}` says how to get the files"
        ) from None


def _check_private(study: Study, name: str, dataset: DatasetOptions, report: _Report) -> None:
    _check_files(dataset)
    _check_overwritten(study, name, dataset)
    rows = count_used_rows(dataset)
    multi_label = dataset.multi_label()
    if dataset.subsample and multi_label and dataset.subsample.fraction is None:
        raise ConfigError(
            "subsample: fractions and per_class need one label per row, but these rows have "
            "several; write fraction"
        )
    if multi_label and study.imbalance and name in study.imbalance.datasets:
        report.errors.append(
            f"config: imbalance.datasets: rows of {name} have several labels, so no row belongs "
            "to one class; choose another dataset"
        )
    classes = dataset.count_classes() if dataset.metric == "auc" else None
    headline_metric(dataset.metric, num_classes=classes, multi_label=multi_label)
    prompts.check_prompts(dataset.prompts)
    report.errors += _check_sizes(study, name, dataset, rows)
    report.warnings += [f"datasets.{name}: {line}" for line in dataset.list_warnings()]
    if dataset.subsample is None or without_subsample(dataset) not in study.datasets.values():
        mistaken, lines = dataset.judge_companions()
        report.errors += [f"config: datasets.{name}: {fault}" for fault in mistaken]
        report.warnings += [f"datasets.{name}: {line}" for line in lines]
    report.warnings += _warn_of_patients(study, name)
    report.errors += _check_shards(study, name, rows)
    unit, n = study.dataset_unit(name), count_units(study, name, rows)
    report.errors += _list_method_faults(study, name, n, multi_label=multi_label)
    if n is None:
        return
    delta = study.dataset_delta(name)
    if fault := delta_fault(delta, n, unit=unit, allowed=study.allows_delta_above(name)):
        written = "" if dataset.delta is not None else "delta on "
        report.errors.append(f"config: {written}datasets.{name}: {fault}")
    if warning := delta_warning(delta, n, unit=unit):
        report.warnings.append(f"datasets.{name}: {warning}")


def count_units(study: Study, name: str, rows: tuple[int, int] | None) -> int | None:
    """Returns n, the number of training units; None if n is not known yet."""
    if study.dataset_unit(name) == "patient":
        dataset = study.datasets[name]
        return None if dataset.subsample else dataset.count_units()
    return rows and rows[0]


def _check_class_split(study: Study, name: str, dataset: DatasetOptions, report: _Report) -> None:
    """Checks that train and test have each class; only once for subsamples of one dataset."""
    whole = without_subsample(dataset)
    first = next(n for n, each in study.datasets.items() if without_subsample(each) == whole)
    if isinstance(whole, CountedRows) and name == first:
        mistaken, lines = whole.judge_units()
        report.errors += [f"config: datasets.{name}: {fault}" for fault in mistaken]
        report.warnings += [f"datasets.{name}: {line}" for line in lines]
    counts = dataset.count_class_units() if name == first else None
    if counts is not None:
        errors, warnings = class_split_faults(study, name, counts)
        if errors and isinstance(whole, CountedRows) and (wrong := whole.judge_labels()):
            errors = [wrong, *errors]  # the label error may have caused the others
        report.errors += [f"config: datasets.{name}: {fault}" for fault in errors]
        report.warnings += [f"datasets.{name}: {warning}" for warning in warnings]


def _check_release(study: Study, name: str) -> list[str]:
    """Lists a release's faults, including faults due to its dataset's size and limit."""
    release = study.releases[name]
    dataset = study.datasets[release.dataset]
    faults = release_faults(
        study,
        name,
        multi_label=dataset.multi_label(),
        classes=dataset.count_classes() if release.test_metric == "auc" else None,
        class_names=None if (counts := dataset.count_class_units()) is None else [*counts.train],
    )
    n = count_units(study, release.dataset, count_used_rows(dataset))
    if n is not None and (fault := release_delta_fault(study, name, n)):
        faults.append(f"releases.{name}: {fault}")
    limit = study.max_epsilon(release.dataset)
    epsilon = read_budget(release.token)
    if limit is not None and isinstance(epsilon, float) and epsilon > limit:
        faults.append(
            f"releases.{name}: epsilon {epsilon:g} is above privacy.max_epsilon {limit:g} of "
            f"{release.dataset}; set a smaller epsilon"
        )
    return [f"config: {fault}" for fault in faults]


def _warn_of_delta(study: Study, name: str) -> list[str]:
    """Warns if a release's own delta is above 0.1 / n; another check covers the dataset's delta."""
    release = study.releases[name]
    if release.delta in (None, study.dataset_delta(release.dataset)):
        return []
    n = count_units(study, release.dataset, count_used_rows(study.datasets[release.dataset]))
    above = n is None or release_delta_fault(study, name, n)  # an error
    warning = None if n is None or above else release_delta_warning(study, name, n)
    return [f"releases.{name}: {warning}"] if warning else []


class WantedRelease(NamedTuple):
    """A release in a study, as checked by `release_faults`.

    Attributes:
      classes, class_names: the dataset's classes; None if unknown or not needed.
    """

    study: Study
    release: ReleaseOptions
    multi_label: bool
    classes: int | None
    class_names: Sequence[str] | None

    @property
    def method(self) -> MethodOptions:
        return self.study.methods[self.release.method]


def release_faults(
    study: Study,
    name: str,
    *,
    multi_label: bool,
    classes: int | None,
    class_names: Sequence[str] | None = None,
) -> list[str]:
    """Lists faults of a release, which prevent its offer to sites and its entry in the ledger.

    Args:
      classes, class_names: the dataset's classes; None if unknown or not needed.
    """
    release = study.releases[name]
    method, faults = study.methods[release.method], []
    if not method.private:
        faults.append(f"method {release.method}: it is not private; choose a private method")
    elif not method.is_exact and not method.tunes_network:
        faults.append(
            f"method {release.method}: its noise is not exact, so it is only for benchmarks; "
            "write `engine: exact` in the method, or choose another method for the release"
        )
    if multi_label and not method.multi_label:
        faults.append(
            f"method {release.method}: it takes one label per row; {_several_labels(method)}"
        )
    faults += dataset_faults(study, release.dataset)
    wanted = WantedRelease(study, release, multi_label, classes, class_names)
    faults += [fault for part in load_parts().values() for fault in part.faults(wanted)]
    return [f"releases.{name}: {fault}" for fault in faults]


def dataset_faults(study: Study, name: str) -> list[str]:
    """Lists faults of a dataset, which prevent any entry in its ledger."""
    dataset, promise = study.datasets[name], promise_facts(study.datasets[name])
    faults = promise.list_promise_faults(study.dataset_unit(name))
    faults += [
        (
            f"it has {shared} of {other} too, and each of the two has its own ledger, so the costs "
            "of their releases would not be added up; remove one of the two, or write "
            f"`same_units_as: {other}` under datasets.{name}"
        )
        for other, shared in shared_images(dataset, study)
        if other != name
        and dataset.same_units_as != other
        and study.datasets[other].same_units_as != name
    ]
    data = Path(study.data_dir)
    known = {*study.datasets, *(path.parent.name for path in data.glob(f"*/{LEDGER_FILE}"))}
    if fault := same_units_fault(name, dataset.same_units_as, known, data):
        faults.append(fault)
    return [f"dataset {name}: {fault}" for fault in faults]


def _warn_of_unmeasured(study: Study, name: str) -> list[str]:
    token = study.releases[name].token
    if token in study.epsilons:
        return []
    return [
        f"releases.{name}: epsilon {budget_words(token)} is not in `epsilons`, so no cell of this "
        "study measures a head at this epsilon; add this epsilon there to see a head's quality "
        "before you spend the epsilon on a release"
    ]


def _check_public(study: Study, name: str, dataset: DatasetOptions, report: _Report) -> None:
    report.errors += _check_other_source(study, name, dataset)
    _check_files(dataset)
    _check_overwritten(study, name, dataset)
    sizes = dataset.expected_counts()
    counted = count_used_rows(dataset) if sizes.train or sizes.test else None
    report.errors += _check_sizes(study, name, dataset, counted)
    report.errors += _check_shards(study, name, count_used_rows(dataset))


def _check_other_source(study: Study, name: str, public: DatasetOptions) -> list[str]:
    """Lists private datasets whose images also occur in a public dataset."""
    return [
        (
            f"config: public_datasets.{name}: it has {shared} of the private dataset {other}, "
            "even if it splits, limits or labels them differently; remove one of the two, or use a "
            "source of different, public images"
        )
        for other, shared in shared_images(public, study)
    ]


def shared_images(dataset: DatasetOptions, study: Study) -> Iterator[tuple[str, str]]:
    """Yields each private dataset that shares images with `dataset`, and describes the images."""
    params, files = dataset.image_params(), _image_files(dataset)
    for name, other in study.datasets.items():
        if other.image_params() == params:
            yield name, "the images"
        elif shared := files & _image_files(other):
            yield name, f"the images in {min(shared)}"


def _image_files(dataset: DatasetOptions) -> set[str]:
    """Returns a dataset's image files; empty if a file is missing, which another check reports."""
    with suppress(ConfigError):
        return set(dataset.image_files())
    return set()


def _check_sizes(
    study: Study, name: str, dataset: DatasetOptions, rows: tuple[int, int] | None
) -> list[str]:
    """Lists the known sizes that differ from `expect`."""
    expected = dataset.expected_counts().model_dump(exclude_none=True)
    if not expected:
        return []
    key = "datasets" if name in study.datasets else "public_datasets"
    remedy = "complete the source or correct `expect`"
    sizes: dict[str, int | None]
    if dataset.download_params() is None:
        train, test = rows or (None, None)
        sizes = {"train": train, "test": test, "classes": dataset.count_classes()}
    else:
        table = Path(study.data_dir) / name / "dataset.json"
        sizes = dict.fromkeys(expected) | _table_sizes(table, dataset)
        remedy = f"correct `expect`, or delete {table} to recreate the tables"
    return [
        (
            f"config: {key}.{name}: expect.{part}: {size}, but there are {sizes[part]} "
            f"{'classes' if part == 'classes' else f'{part} rows'}; {remedy}"
        )
        for part, size in expected.items()
        if sizes[part] not in (None, size)
    ]


def _table_sizes(table: Path, dataset: DatasetOptions) -> dict[str, int]:
    """Reads the sizes of existing tables; empty if missing, or made with other options."""
    try:
        info = json.loads(table.read_text(encoding="utf-8"))
        if info["source"] != dataset.preparation_params():
            return {}  # the tables will be made again
        sizes = {name: int(part["rows"]) for name, part in info["splits"].items()}
        return {**sizes, "classes": len(info["class_names"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # the job that reads the file reports the error


def _check_overwritten(study: Study, name: str, dataset: DatasetOptions) -> None:
    """Raises ConfigError if a source file is its own split table, and so would be deleted."""
    folder = Path(study.data_dir) / name
    written = {
        (folder / file).resolve() for file in ("train.parquet", "test.parquet", "dataset.json")
    }
    for file in dataset.input_files():
        if resolve_path(file).resolve() in written:
            raise ConfigError(
                f"{file}: the split tables of {name!r} are written into {folder} and would "
                "overwrite this file; move it elsewhere, or choose another data_dir"
            )


def _warn_of_patients(study: Study, dataset: str) -> list[str]:
    """Warns of the larger epsilon of patients with several images if the unit is one image."""
    patients = study.dataset_patients(dataset)
    if patients is None:
        return []
    most = patients["images"]
    start = f"datasets.{dataset}: unit: image, and patients may have several: "
    if most is None:
        return [
            f"{start}patients have no guarantee; write `unit: patient`, or limit their images by "
            "max_images_per_patient"
        ]
    delta = study.dataset_delta(dataset)
    prices = ", ".join(
        f"{worth_to_group(nominal_epsilon(token, delta), delta, most):.4g} in place of "
        f"{budget_words(token)}"
        for token in study.job_epsilons()
        if token != INFINITE
    )
    return [
        f"{start}for a patient with {most} images the epsilon is {prices} (for steps on all rows; "
        "each statement has the value of its method); write `unit: patient` to protect patients"
    ]


def _check_shards(study: Study, name: str, rows: tuple[int, int] | None) -> list[str]:
    """Lists splits without rows, and splits with fewer rows than shards."""
    shards = study.features.shards
    counts = dict(zip(("train", "test"), rows or (shards, shards), strict=True))
    key = "datasets" if name in study.datasets else "public_datasets"
    empty = [
        f"config: {key}.{name}: its {split} split is empty; complete the source, or correct the "
        f"options that select the {split} rows, such as test_fraction"
        for split, count in counts.items()
        if not count
    ]
    return empty or [
        f"config: features.shards: {shards} is above the {count} {split} rows of {name}; use at "
        f"most {count}"
        for split, count in counts.items()
        if shards > count
    ]


def _several_labels(method: MethodOptions) -> str:
    if "loss" in type(method).model_fields:
        return "write `loss: sigmoid` in the method"
    if isinstance(method, tuned_options.Options) and "loss" in type(method.base).model_fields:
        return "write `loss: sigmoid` in the method's base"
    return "choose another head, such as auto"


def _list_method_faults(
    study: Study, dataset: str, n: int | None, *, multi_label: bool
) -> Iterator[str]:
    """Yields reasons why methods cannot train on a dataset; `n` is None if unknown."""
    classes = study.datasets[dataset].count_classes()
    for name, method in study.methods.items():
        where = f"config: methods.{name} on datasets.{dataset}"
        if classes and (fault := method.class_fault(classes, multi_label=multi_label)):
            yield f"{where}: {fault}"
        if study.dataset_unit(dataset) == "patient" and (fault := method.units_fault):
            yield f"{where}: {fault}"
        if multi_label and not method.multi_label:
            yield (
                f"{where}: the rows have several labels, but head {method.head} with these "
                f"options takes one; {_several_labels(method)}"
            )
        elif n is not None and not method.is_undecided:
            try:
                check_counts(method.list_mechanisms(n))
            except ConfigError as error:
                yield f"{where}: {error}"
