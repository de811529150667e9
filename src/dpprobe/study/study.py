"""The study: datasets, backbones, methods, epsilons, delta and seeds, and the cells they make."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, SerializeAsAny, create_model, model_validator

from dpprobe.analysis_registry import load_analyses
from dpprobe.backbones.options import BackboneOptions
from dpprobe.backbones.registry import FAMILIES
from dpprobe.data.options import DatasetOptions
from dpprobe.data.people.patient_sides import Unit
from dpprobe.data.promise_facts import PromiseFacts, promise_facts
from dpprobe.data.registry import SOURCES
from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.heads import auto
from dpprobe.heads.registry import AnyMethod
from dpprobe.json_values import canonical_json
from dpprobe.options import AtMost, Folder, Name, Options, by_registry
from dpprobe.privacy.accountants import StudyAccountant
from dpprobe.privacy.limits import (
    INFINITE,
    LARGEST_EPSILON,
    SMALLEST_DELTA,
    SMALLEST_EPSILON,
    epsilon_value,
)
from dpprobe.privacy.risk import Risk, budget_token, budget_words, find_risk
from dpprobe.privacy.statement_words import describe_unpriced
from dpprobe.study import catalog
from dpprobe.study.copies import CopyOptions
from dpprobe.study.imbalance import imbalance_faults, with_rare_classes
from dpprobe.study.joined_backbones import joined_faults
from dpprobe.study.options import (
    FeatureOptions,
    FewShotOptions,
    FineTuningOptions,
    ImbalanceOptions,
    OverlapOptions,
    PaperOptions,
    PrivacyOptions,
    ReleaseOptions,
    TrackingOptions,
    TsneOptions,
)
from dpprobe.study.public_features import with_public_features
from dpprobe.study.vector_checks import vector_faults

_MOST_EPSILONS = 1000


def _complete_options(
    complete: Callable[[Mapping[str, Any]], Mapping[str, Any]], value: Mapping[str, Any]
) -> Mapping[str, Any]:
    if value.get("catalog") is None:
        return value
    try:
        return complete(value)
    except ConfigError as error:
        raise ValueError(str(error)) from None


AnyDataset = Annotated[
    SerializeAsAny[DatasetOptions],
    by_registry(SOURCES, "source", partial(_complete_options, catalog.complete_dataset)),
]
AnyBackbone = Annotated[
    SerializeAsAny[BackboneOptions],
    by_registry(FAMILIES, "family", partial(_complete_options, catalog.complete_backbone)),
]


def _read_epsilons(value: Any) -> Any:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise ValueError(f"{value!r}: write a list, such as [0.5, 1, 2, inf]")
    if not value:
        raise ValueError("empty: write at least one, such as [0.5, 1, 2, inf]")
    if len(value) > _MOST_EPSILONS:
        raise ValueError(
            f"{len(value):,} epsilons: at most {_MOST_EPSILONS:,} are allowed: each trains every "
            "method again; write fewer"
        )
    tokens = [budget_token(item) for item in value]
    for token in tokens:
        if tokens.count(token) > 1:
            raise ValueError(f"{budget_words(token)} appears twice in the list; remove one")
        if find_risk(token) is not None:
            continue
        number = epsilon_value(token)
        if number < SMALLEST_EPSILON or LARGEST_EPSILON < number < math.inf:
            remedy = "a larger one" if number < SMALLEST_EPSILON else "inf for no privacy"
            raise ValueError(
                f"{token} is outside {SMALLEST_EPSILON:g} to {LARGEST_EPSILON:g}, the range that "
                f"can be calibrated; write {remedy}"
            )
    return tokens


class _Beginning(Options):
    """The keys of a study before the blocks of its analyses."""

    study: Name = Field("study", description="The study's name: a tag on every MLflow run.")
    datasets: dict[Name, AnyDataset] = Field(
        min_length=1, description="Private datasets, each by a name: `catalog` or `source`."
    )
    public_datasets: dict[Name, AnyDataset] = Field(
        {},
        description="Datasets used only for public statistics, such as a covariance. Features of a "
        "public dataset are extracted if a method names it; no head is trained on it.",
    )
    backbones: dict[Name, AnyBackbone] = Field(
        min_length=1, description="Frozen networks, each by a name: `catalog` or `family`."
    )
    methods: dict[Name, AnyMethod] = Field(
        min_length=1, description="Methods, each by a name: a `head` and its options."
    )
    epsilons: Annotated[tuple[str, ...], BeforeValidator(_read_epsilons)] = Field(
        min_length=1,
        description=f"Privacy budgets: numbers from {SMALLEST_EPSILON:g} to {LARGEST_EPSILON:g}, "
        'or "inf" for no privacy; or permitted risks, such as {advantage: 0.1} or {true_positives: '
        "0.01, at: 0.001}.",
    )
    delta: float = Field(
        1e-5,
        ge=SMALLEST_DELTA,
        lt=1,
        description="Delta of datasets that set none: at most 1 / (training images).",
    )
    allow_delta_above_one_over_n: bool = Field(
        False,
        description="Allow a delta above 1 / (training images), as some papers do; dpprobe warns, "
        "and the privacy statements say so. A release never accepts a delta above 1 / n.",
    )
    accountant: StudyAccountant = Field(
        "pld",
        description="Privacy accountant for sampled steps; for steps on all images pld is exact. "
        "The option rdp_2017 uses the conversion that papers used until 2020, to reproduce their "
        "noise.",
    )
    privacy: PrivacyOptions = PrivacyOptions()
    seeds: Annotated[int, AtMost(1000, "each seed trains every head of the study again")] = Field(
        5, ge=1, description="Repetitions of each cell, with different seeds."
    )
    seed: int = Field(0, ge=0, description="The number from which all seeds of the study derive.")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto",
        description="Device of networks and large fits; auto takes a GPU if there is one. Small "
        "fits stay on the CPU. Noise differs by device, so another device trains all cells again.",
    )
    features: FeatureOptions = FeatureOptions()
    fine_tuning: FineTuningOptions = FineTuningOptions()
    tsne: TsneOptions = TsneOptions()
    overlap: OverlapOptions | None = Field(
        None,
        description="Look for near-duplicates of the private images in public ones; the privacy "
        "statements report the result.",
    )
    few_shot: FewShotOptions | None = Field(
        None, description="Linear probes on a few images per class, not private; none if absent."
    )
    imbalance: ImbalanceOptions | None = Field(
        None,
        description="Make one class after another rare and compare how well private heads learn "
        "the rare class; skipped if absent.",
    )


def _with_analyses(beginning: type[Options]) -> type[Options]:
    """Adds the blocks that analyses declare, each absent by default."""
    blocks: dict[str, Any] = {
        analysis.name: (analysis.options | None, Field(None, description=analysis.describe))
        for analysis in load_analyses()
        if analysis.options is not None
    }
    return create_model("_Analysed", __base__=beginning, **blocks)


def unpublished_name(dataset: str) -> str:
    """Names a dataset that no paper has, whatever the study calls its own images.

    The space prevents that the name equals a published dataset's.
    """
    return f"own {dataset}"


if TYPE_CHECKING:
    _Analysed = _Beginning
else:
    _Analysed = _with_analyses(_Beginning)


class Study(_Analysed):
    """One study: every (dataset, backbone, method, epsilon) of the lists, with all its seeds."""

    releases: dict[Name, ReleaseOptions] = Field(
        {},
        description="Heads for publication, each made once by the target release_<name>, or all by "
        "the target releases. Each release spends its epsilon for good.",
    )
    papers: PaperOptions = PaperOptions()
    tracking: TrackingOptions = TrackingOptions()
    copies: CopyOptions = Field(
        CopyOptions(),
        exclude_if=lambda value: value == CopyOptions(),
        description="Copies of the catalog's datasets and weights that this machine has, usually "
        "in a file of their own.",
    )
    data_dir: Folder = Field("data", description="Folder for split tables.")
    results_dir: Folder = Field(
        "results",
        description="Folder for all other outputs. Studies that use the same name for different "
        "data need different folders.",
    )

    @model_validator(mode="before")
    @classmethod
    def _complete_values(cls, values: Any) -> Any:
        return with_public_features(with_rare_classes(values))

    @model_validator(mode="after")
    def _check_parts(self) -> Study:
        for name in self.public_datasets:
            if name in self.datasets:
                raise ValueError(
                    f"public_datasets.{name}: also the name of a private dataset; rename one"
                )
        for fault in joined_faults(self.backbones):
            raise ValueError(fault)
        private = {f"datasets.{name}": options for name, options in self.datasets.items()}
        public = {f"public_datasets.{name}": each for name, each in self.public_datasets.items()}
        for fault in vector_faults(
            private | public,
            self.backbones,
            probes_all=self.few_shot is not None and self.few_shot.backbones is None,
        ):
            raise ValueError(fault)
        for name, options in self.datasets.items():
            if not options.has_labels():
                raise ValueError(
                    f"datasets.{name}: unlabelled, but heads learn from labels; move it to "
                    "public_datasets, or remove `unlabelled`"
                )
            if self.dataset_unit(name) == "patient" and not options.names_units():
                raise ValueError(
                    f"privacy.unit: patient, but datasets.{name} does not name the patient of "
                    "each image; give it a unit_column, or write `unit: image`"
                )
        for name, method in self.methods.items():
            if isinstance(method, auto.Options) and method.rule is not None:
                raise ValueError(
                    f"methods.{name}: head auto takes no option but balanced, because its "
                    "rule chooses all others; remove rule and chosen, or write the chosen "
                    "head with its options"
                )
        for fault in imbalance_faults(self.imbalance, self.datasets):
            raise ValueError(f"imbalance.{fault}")
        if self.overlap:
            self._check_overlap(self.overlap)
        self._check_names("papers.datasets", self.papers.datasets, self.datasets)
        self._check_names("papers.methods", self.papers.methods, self.methods)
        self._check_names("papers.base", filter(None, [self.papers.base]), self.methods)
        few = self.few_shot.backbones if self.few_shot else None
        self._check_names("few_shot.backbones", few or (), self.backbones)
        if self.few_shot and few is None and not self.few_shot_backbones():
            raise ValueError(
                "few_shot: no backbone has a text encoder, so no probe would be trained; name "
                f"backbones, such as `backbones: [{next(iter(self.backbones))}]`, or remove "
                "few_shot"
            )
        if not self.list_cells():
            raise ValueError(
                "no cell to train: the methods are all non-private, or epsilons is empty"
            )
        self._check_risks()
        self._check_releases()
        self._check_tracking()
        return self

    def _check_risks(self) -> None:
        """Checks that each permitted risk has an epsilon, and that the methods can guarantee it."""
        risks = [risk for token in self.epsilons if (risk := find_risk(token)) is not None]
        for risk in risks:
            for name in self.datasets:
                try:
                    risk.to_epsilon(self.dataset_delta(name))
                except PrivacyError as error:
                    raise ValueError(f"epsilons: {error}") from None
        for name, method in self.methods.items():
            if risks and method.private and method.private_choices is not None:
                unpriced = describe_unpriced(method.private_choices)
                raise ValueError(
                    f"methods.{name}: no epsilon covers {unpriced}, so no risk can be guaranteed, "
                    f"but epsilons has {risks[0]}; remove the method or the risk"
                )

    def _check_releases(self) -> None:
        for name, release in self.releases.items():
            where = f"releases.{name}"
            self._check_names(f"{where}.dataset", [release.dataset], self.datasets)
            self._check_names(f"{where}.backbone", [release.backbone], self.backbones)
            self._check_names(f"{where}.method", [release.method], self.methods)
            chain = [name]
            while (before := self.releases[chain[-1]].predecessor) in self.releases:
                if before in chain:
                    raise ValueError(
                        f"{where}.predecessor: {', '.join([*chain, before])}: each is the "
                        "predecessor of the one before, in a circle; remove one predecessor"
                    )
                chain.append(before)
        limits = self.privacy.max_epsilon
        if isinstance(limits, Mapping):
            self._check_names("privacy.max_epsilon", limits, self.datasets)

    def _check_overlap(self, overlap: OverlapOptions) -> None:
        for name in overlap.public:
            if name not in self.public_datasets:
                raise ValueError(f"overlap.public: {name!r} is not under public_datasets; add it")
        for name, backbone in self.backbones.items():
            if backbone.random_crops:
                raise ValueError(
                    f"overlap: backbone {name} crops training images at random, so that copies of "
                    "one picture look different; run the check with `crop: centre`"
                )

    def _check_tracking(self) -> None:
        if self.tracking.uri and self.tracking.uri.startswith("http") and self.study == "study":
            raise ValueError(
                "study: missing; an unnamed study is called 'study', and studies of the same name "
                "replace each other's runs on a server; write a name"
            )

    @staticmethod
    def _check_names(where: str, names: Iterable[str], known: Mapping[str, Any]) -> None:
        for name in names:
            if name not in known:
                raise ValueError(
                    f"{where}: {name!r} is not in this study; write a name of this study"
                )

    def published_names(self) -> dict[str, str]:
        """Returns each dataset's name in published results, or an `unpublished_name`."""
        return {
            name: self.papers.datasets.get(name)
            or (None if options.subsample else options.catalog)
            or unpublished_name(name)
            for name, options in self.datasets.items()
        }

    def part_names(self) -> dict[str, str]:
        """Returns `published_names`, but with the whole dataset's name for a subsampled dataset."""
        whole = {
            name: options.catalog or unpublished_name(name)
            for name, options in self.datasets.items()
        }
        return whole | self.papers.datasets

    def paper_names(self) -> set[str]:
        """Returns the datasets' names in published results, also names of whole datasets."""
        return {*self.published_names().values(), *self.part_names().values()}

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

    def whole_datasets(self) -> dict[str, str]:
        """Maps each dataset with a `subsample` to its full version, if the study has it."""
        datasets = self.all_datasets()
        tables = {
            name: canonical_json(options.without_subsample().preparation_params())
            for name, options in datasets.items()
        }
        whole = {tables[name]: name for name in reversed(datasets) if not datasets[name].subsample}
        return {
            name: whole[tables[name]]
            for name, options in datasets.items()
            if options.subsample and tables[name] in whole
        }

    def dataset_delta(self, dataset: str) -> float:
        delta = self.datasets[dataset].delta
        return self.delta if delta is None else delta

    def allows_delta_above(self, dataset: str) -> bool:
        allowed = self.datasets[dataset].allow_delta_above_one_over_n
        return self.allow_delta_above_one_over_n if allowed is None else allowed

    def max_epsilon(self, dataset: str) -> float | None:
        """Returns the limit on a dataset's releases: total epsilon per unit; None for no limit."""
        limits = self.privacy.max_epsilon
        return limits.get(dataset) if isinstance(limits, Mapping) else limits

    @property
    def max_risk(self) -> Risk | None:
        """The limit on an attack's risk, given all releases of a dataset; None for no limit."""
        limit = self.privacy.max_risk
        return None if limit is None else limit.to_risk()

    def dataset_promise(self, dataset: str) -> PromiseFacts:
        """Returns the facts on which a dataset's guarantee depends, without counts of copies."""
        return promise_facts(self.datasets[dataset])

    def dataset_unit(self, dataset: str) -> Unit:
        """Returns a dataset's unit of privacy, by default the study's."""
        options = self.datasets[dataset]
        by_columns: Unit = "patient" if options.names_units() else "image"
        return options.named_unit() or self.privacy.unit or by_columns

    def dataset_patients(self, dataset: str) -> dict[str, int | None] | None:
        """Returns the `images` per patient if the unit is one image of a patient.

        Returns None if patients are the unit, or are not named.
        """
        options = self.datasets[dataset]
        if not options.names_units() or self.dataset_unit(dataset) == "patient":
            return None
        return {"images": options.images_per_patient()}

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
        """Lists the cells of some datasets, by default of all."""
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
