"""The keys of a study, and the values that each key accepts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, create_model

from dpprobe.analysis_registry import load_analyses
from dpprobe.backbones.options import BackboneOptions
from dpprobe.backbones.registry import FAMILIES
from dpprobe.data.options import DatasetOptions
from dpprobe.data.registry import SOURCES
from dpprobe.errors import ConfigError
from dpprobe.heads.registry import AnyMethod
from dpprobe.options import AtMost, Folder, Name, Options, by_registry
from dpprobe.privacy.accountants import StudyAccountant
from dpprobe.privacy.limits import LARGEST_EPSILON, SMALLEST_DELTA, SMALLEST_EPSILON, epsilon_value
from dpprobe.privacy.risk import budget_token, budget_words, find_risk
from dpprobe.study import catalog
from dpprobe.study.copies import CopyOptions
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
        raise ValueError(f"{value!r}: must be a list, such as [0.5, 1, 2, inf]")
    if not value:
        raise ValueError("empty: write at least one, such as [0.5, 1, 2, inf]")
    if len(value) > _MOST_EPSILONS:
        raise ValueError(
            f"{len(value):,} epsilons: at most {_MOST_EPSILONS:,} are allowed: each trains every "
            "method again; use fewer"
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
                f"can be calibrated; choose {remedy}"
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


if TYPE_CHECKING:
    _Analysed = _Beginning
else:
    _Analysed = _with_analyses(_Beginning)


class StudyKeys(_Analysed):
    """All keys of a study, each checked separately."""

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
