"""Selects the figures that compare datasets, backbones or images, if a study has enough of them."""

from __future__ import annotations

from typing import Any

from dpprobe.data.subsample import without_subsample
from dpprobe.heads.options import MethodOptions
from dpprobe.json_values import canonical_json
from dpprobe.privacy.limits import INFINITE
from dpprobe.study.ablations import same_but_size
from dpprobe.study.imbalance import rare_classes
from dpprobe.study.study import Study

# Comparisons within one dataset, and comparisons across all datasets.
DATASET_COMPARISONS = ("by_backbone", "by_resolution", "real_labels")
STUDY_COMPARISONS = ("datasets", "deltas")


def dataset_comparisons(study: Study, dataset: str) -> list[str]:
    if not has_guarantee(study):
        return []
    made = {
        "by_backbone": len(study.backbones) > 1,
        "by_resolution": bool(same_but_size(describe_backbones(study))),
        "real_labels": getattr(study.datasets[dataset], "accepted_labels", None) is not None,
    }
    return [name for name in DATASET_COMPARISONS if made[name]]


def describe_backbones(study: Study) -> dict[str, dict[str, Any]]:
    """Returns each backbone's options that determine its features."""
    return {name: backbone.extraction_params() for name, backbone in study.backbones.items()}


def study_comparisons(study: Study) -> list[str]:
    if not has_guarantee(study):
        return []
    made = {"datasets": len(compared_datasets(study)) > 1, "deltas": bool(delta_groups(study))}
    return [name for name in STUDY_COMPARISONS if made[name]]


def has_guarantee(study: Study) -> bool:
    return bool(list_guaranteed(study))


def list_guaranteed(study: Study) -> dict[str, MethodOptions]:
    """Returns the methods whose cells have a guarantee at some epsilon."""
    if not set(study.job_epsilons()) - {INFINITE}:
        return {}
    return {
        name: method
        for name, method in study.methods.items()
        if method.private and method.private_choices is None
    }


def compared_datasets(study: Study) -> list[str]:
    """Lists one dataset per distinct set of images, without the datasets added by `imbalance`."""
    rare = {item.name for item in rare_classes(study.imbalance)}
    first: dict[str, str] = {}
    for name, key in _describe_images(study).items():
        if name not in rare:
            first.setdefault(key, name)
    return list(first.values())


def delta_groups(study: Study) -> list[list[str]]:
    """Groups datasets that have equal images but different deltas."""
    groups: dict[str, list[str]] = {}
    for name, key in _describe_images(study).items():
        groups.setdefault(key, []).append(name)
    return [
        group for group in groups.values() if len({study.dataset_delta(name) for name in group}) > 1
    ]


def _describe_images(study: Study) -> dict[str, str]:
    return {
        name: canonical_json(options.preparation_params())
        for name, options in study.datasets.items()
    }


def whole_datasets(study: Study) -> dict[str, str]:
    """Maps each dataset with a `subsample` to its full version, if the study has it."""
    datasets = study.all_datasets()
    tables = {
        name: canonical_json(without_subsample(options).preparation_params())
        for name, options in datasets.items()
    }
    whole = {tables[name]: name for name in reversed(datasets) if not datasets[name].subsample}
    return {
        name: whole[tables[name]]
        for name, options in datasets.items()
        if options.subsample and tables[name] in whole
    }
