"""The datasets that the block `imbalance` adds to a study: one class is rare in each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from dpprobe.data.options import DatasetOptions
from dpprobe.study.options import ImbalanceOptions


@dataclass(frozen=True, kw_only=True)
class RareClass:
    """A dataset in which one class is rare.

    Attributes:
      dataset: the dataset with all images of the class.
      class_name: the rare class; `fraction` is the share of its images that is kept.
    """

    name: str
    dataset: str
    class_name: str
    fraction: float


def rare_classes(options: ImbalanceOptions | None, *datasets: str) -> list[RareClass]:
    """Lists the datasets that `imbalance` adds for some datasets, or for all; may be empty."""
    if options is None:
        return []
    return [
        RareClass(
            name=_dataset_name(dataset, class_name, fraction),
            dataset=dataset,
            class_name=class_name,
            fraction=fraction,
        )
        for dataset in options.datasets
        if not datasets or dataset in datasets
        for class_name in options.classes
        for fraction in sorted(options.fractions, reverse=True)
        if fraction < 1
    ]


def _dataset_name(dataset: str, class_name: str, fraction: float) -> str:
    """Returns a dataset name for paths, such as cifar10_cat_0p05."""
    words = re.sub(r"[^a-z0-9]+", "_", class_name.lower()).strip("_") or "class"
    return f"{dataset}_{words}_{f'{fraction:g}'.replace('.', 'p')}"


def with_rare_classes(values: Any) -> Any:
    """Adds datasets with a rare class to a study's values; ValueError if a name is taken."""
    if not isinstance(values, Mapping) or not isinstance(values.get("datasets"), Mapping):
        return values
    if values.get("imbalance") is None:
        return values
    try:
        options = ImbalanceOptions.model_validate(values["imbalance"])
    except ValidationError:
        return values  # the check of the block reports the error
    added: dict[str, Any] = {}
    for rare in rare_classes(options):
        whole = values["datasets"].get(rare.dataset)
        if not isinstance(whole, Mapping) or whole.get("subsample"):
            continue  # `imbalance_faults` reports the fault
        if rare.name in added or rare.name in values["datasets"]:
            raise ValueError(
                f"imbalance: {rare.name} would be the name of two datasets; rename one of your "
                "datasets"
            )
        part = {"fractions": {rare.class_name: rare.fraction}, "seed": options.seed}
        added[rare.name] = {**whole, "subsample": part}
    return {**values, "datasets": {**values["datasets"], **added}} if added else values


def imbalance_faults(
    options: ImbalanceOptions | None, datasets: Mapping[str, DatasetOptions]
) -> Iterator[str]:
    """Yields the faults that are visible in the study file; reads no file of a dataset."""
    for name in options.datasets if options else ():
        if name not in datasets:
            yield f"datasets: {name!r} is not in this study; use a dataset of this study"
        elif datasets[name].subsample:
            yield f"datasets: {name} already has a subsample; name the whole dataset"
