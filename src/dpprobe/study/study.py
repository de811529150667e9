"""The study: datasets, backbones, methods, epsilons, delta and seeds, and the cells they make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pydantic import model_validator

from dpprobe.data.options import DatasetOptions
from dpprobe.data.people.patient_sides import Unit
from dpprobe.errors import PrivacyError
from dpprobe.heads import auto
from dpprobe.privacy.limits import INFINITE
from dpprobe.privacy.risk import Risk, find_risk
from dpprobe.privacy.statement_words import describe_unpriced
from dpprobe.study.catalog import dataset_entry
from dpprobe.study.imbalance import imbalance_faults, with_rare_classes
from dpprobe.study.joined_backbones import joined_faults
from dpprobe.study.options import OverlapOptions
from dpprobe.study.public_features import with_public_features
from dpprobe.study.study_keys import StudyKeys
from dpprobe.study.vector_checks import vector_faults


class Study(StudyKeys):
    """One study: every (dataset, backbone, method, epsilon) of the lists, with all its seeds."""

    @model_validator(mode="before")
    @classmethod
    def _complete_values(cls, values: Any) -> Any:
        return with_public_features(with_rare_classes(values))

    @model_validator(mode="after")
    def _check_parts(self) -> Study:
        _check_inputs(self)
        _check_named(self)
        if not self.list_cells():
            raise ValueError(
                "no cell to train: the methods are all non-private, or epsilons is empty"
            )
        _check_risks(self)
        _check_releases(self)
        _check_tracking(self)
        return self

    def text_backbones(self) -> tuple[str, ...]:
        """Returns the backbones that read text, which classify without training."""
        return tuple(name for name, backbone in self.backbones.items() if backbone.reads_text)

    def few_shot_backbones(self) -> tuple[str, ...]:
        if self.few_shot is None:
            return ()
        chosen = self.few_shot.backbones
        return self.text_backbones() if chosen is None else chosen

    def all_datasets(self) -> dict[str, DatasetOptions]:
        return {**self.datasets, **self.public_datasets}

    def dataset_delta(self, dataset: str) -> float:
        delta = self.datasets[dataset].delta
        return self.delta if delta is None else delta

    def allows_delta_above(self, dataset: str) -> bool:
        allowed = self.datasets[dataset].allow_delta_above_one_over_n
        return self.allow_delta_above_one_over_n if allowed is None else allowed

    def max_epsilon(self, dataset: str) -> float | None:
        """Returns the limit on the total epsilon per unit of a dataset's releases, if any."""
        limits = self.privacy.max_epsilon
        return limits.get(dataset) if isinstance(limits, Mapping) else limits

    @property
    def max_risk(self) -> Risk | None:
        """The limit on the risk of an attack on all releases of a dataset; None for no limit."""
        limit = self.privacy.max_risk
        return None if limit is None else limit.to_risk()

    def dataset_unit(self, dataset: str) -> Unit:
        """Returns a dataset's unit of privacy, by default the study's unit."""
        people = self.datasets[dataset].named_people()
        by_columns: Unit = "patient" if people.column else "image"
        return people.unit or self.privacy.unit or by_columns

    def dataset_patients(self, dataset: str) -> dict[str, int | None] | None:
        """Returns the `images` per patient if the unit is one image of a patient.

        Returns None if the unit is a patient, or if the dataset names no patients.
        """
        people = self.datasets[dataset].named_people()
        if not people.column or self.dataset_unit(dataset) == "patient":
            return None
        return {"images": people.most_images}

    def job_epsilons(self) -> tuple[str, ...]:
        """Returns the epsilons at which methods train; non-private methods train only at inf."""
        tokens = list(self.epsilons)
        if INFINITE not in tokens:
            tokens.append(INFINITE)
        return tuple(token for token in tokens if self.job_methods(token))

    def job_methods(self, epsilon: str) -> tuple[str, ...]:
        return tuple(
            name
            for name, method in self.methods.items()
            if (epsilon in self.epsilons if method.private else epsilon == INFINITE)
        )

    def list_cells(self, *datasets: str) -> list[Cell]:
        """Lists the cells of some datasets, by default of all datasets."""
        jobs = [(epsilon, self.job_methods(epsilon)) for epsilon in self.job_epsilons()]
        return [
            Cell(dataset, backbone, method, epsilon)
            for dataset in datasets or self.datasets
            for backbone in self.backbones
            for epsilon, methods in jobs
            for method in methods
        ]


class Cell(NamedTuple):
    """The unit of results: all seeds of one method at one epsilon on one set of features."""

    dataset: str
    backbone: str
    method: str
    epsilon: str


# Checks of several keys together, which raise ValueError, because pydantic explains it.


def _check_inputs(study: Study) -> None:
    """Checks datasets, backbones and methods together."""
    for name in study.public_datasets:
        if name in study.datasets:
            raise ValueError(
                f"public_datasets.{name}: also the name of a private dataset; rename one"
            )
    for fault in joined_faults(study.backbones):
        raise ValueError(fault)
    private = {f"datasets.{name}": options for name, options in study.datasets.items()}
    public = {f"public_datasets.{name}": each for name, each in study.public_datasets.items()}
    for fault in vector_faults(
        private | public,
        study.backbones,
        probes_all=study.few_shot is not None and study.few_shot.backbones is None,
    ):
        raise ValueError(fault)
    for name, options in study.datasets.items():
        if not options.has_labels():
            raise ValueError(
                f"datasets.{name}: unlabelled, but heads learn from labels; move it to "
                "public_datasets, or remove `unlabelled`"
            )
        if study.dataset_unit(name) == "patient" and not options.named_people().column:
            raise ValueError(
                f"privacy.unit: patient, but datasets.{name} does not name the patient of "
                "each image; give it a unit_column, or write `unit: image`"
            )
        if lost := _explain_lost_patients(study, name):
            raise ValueError(lost)
    for name, method in study.methods.items():
        if isinstance(method, auto.Options) and method.rule is not None:
            raise ValueError(
                f"methods.{name}: head auto takes no option but balanced, because its rule "
                "chooses all others; remove rule and chosen, or name the chosen head with its "
                "options"
            )


def _explain_lost_patients(study: Study, name: str) -> str | None:
    """Explains how a dataset loses the patients that its catalog entry protects; mostly None.

    Without this check, options other than the entry's would make each image a unit of its own, and
    nobody would have decided this.
    """
    dataset = study.datasets[name]
    column = None if dataset.catalog is None else dataset_entry(dataset.catalog).unit_column
    people = dataset.named_people()
    if column is None or people.column or "image" in (people.unit, study.privacy.unit):
        return None
    layout = getattr(dataset, "layout", None)
    where, source = ("", dataset.source) if layout is None else ("layout.", layout["source"])
    named = "unit_column" in type(dataset).model_fields
    named = named or (layout is not None and source != "imagefolder")
    written = f"{where}unit_column: null" if named else f"{where}source: {source}"
    remedy = f"`{where}unit_column`" if named else "`unit_column` with another source, such as csv"
    unit = f"`{where}unit: image`" if named else "`privacy: {unit: image}`"
    return (
        f"datasets.{name}.{written}: names no patients, but the catalog's {dataset.catalog} "
        f"protects each {column} as one unit; name the patient of each image in {remedy}, or write "
        f"{unit} to protect only single images"
    )


def _check_named(study: Study) -> None:
    """Checks that the study's blocks only name existing parts of the study."""
    for fault in imbalance_faults(study.imbalance, study.datasets):
        raise ValueError(f"imbalance.{fault}")
    if study.overlap:
        _check_overlap(study, study.overlap)
    _check_names("papers.datasets", study.papers.datasets, study.datasets)
    _check_names("papers.methods", study.papers.methods, study.methods)
    _check_names("papers.base", filter(None, [study.papers.base]), study.methods)
    few = study.few_shot.backbones if study.few_shot else None
    _check_names("few_shot.backbones", few or (), study.backbones)
    if study.few_shot and few is None and not study.few_shot_backbones():
        raise ValueError(
            "few_shot: no backbone has a text encoder, so no probe would be trained; name "
            f"backbones, such as `backbones: [{next(iter(study.backbones))}]`, or remove "
            "few_shot"
        )


def _check_risks(study: Study) -> None:
    """Checks that each permitted risk has an epsilon, and that the methods can guarantee it."""
    risks = [risk for token in study.epsilons if (risk := find_risk(token)) is not None]
    for risk in risks:
        for name in study.datasets:
            try:
                risk.to_epsilon(study.dataset_delta(name))
            except PrivacyError as error:
                raise ValueError(f"epsilons: {error}") from None
    for name, method in study.methods.items():
        if risks and method.private and method.private_choices is not None:
            unpriced = describe_unpriced(method.private_choices)
            raise ValueError(
                f"methods.{name}: no epsilon covers {unpriced}, so no risk can be guaranteed, "
                f"but epsilons has {risks[0]}; remove the method or the risk"
            )


def _check_releases(study: Study) -> None:
    for name, release in study.releases.items():
        where = f"releases.{name}"
        _check_names(f"{where}.dataset", [release.dataset], study.datasets)
        _check_names(f"{where}.backbone", [release.backbone], study.backbones)
        _check_names(f"{where}.method", [release.method], study.methods)
        chain = [name]
        while (before := study.releases[chain[-1]].predecessor) in study.releases:
            if before in chain:
                raise ValueError(
                    f"{where}.predecessor: {', '.join([*chain, before])}: each is the "
                    "predecessor of the one before, in a circle; remove one predecessor"
                )
            chain.append(before)
    limits = study.privacy.max_epsilon
    if isinstance(limits, Mapping):
        _check_names("privacy.max_epsilon", limits, study.datasets)


def _check_overlap(study: Study, overlap: OverlapOptions) -> None:
    for name in overlap.public:
        if name not in study.public_datasets:
            raise ValueError(f"overlap.public: {name!r} is not under public_datasets; add it")
    for name, backbone in study.backbones.items():
        if backbone.random_crops:
            raise ValueError(
                f"overlap: backbone {name} crops training images at random, so that copies of "
                "one picture look different; run the check with `crop: centre`"
            )


def _check_tracking(study: Study) -> None:
    if study.tracking.uri and study.tracking.uri.startswith("http") and study.study == "study":
        raise ValueError(
            "study: missing; an unnamed study is called 'study', and studies of the same name "
            "replace each other's runs on a server; write a name"
        )


def _check_names(where: str, names: Iterable[str], known: Mapping[str, Any]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"{where}: {name!r} is not in this study; use a name of this study")
