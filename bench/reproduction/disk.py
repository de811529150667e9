"""Files that a study fetches and keeps: what a run for published numbers takes of a disk.

Sizes are products: rows by numbers per image by two bytes, as features and activations are stored;
parameters by four, as weights are fetched. A size that no source states is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from dpprobe.errors import ConfigError
from dpprobe.heads.registry import NETWORKS
from dpprobe.study import catalog
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study
from reproduction.facts import FILE, Facts, Network

ROOT = Path(__file__).resolve().parents[2]
STORED_BYTES, WEIGHT_BYTES = 2, 4
GIGABYTE = 1e9


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A study's files, in gigabytes.

    Attributes:
      fetched: by dataset; None where its size is not stated.
      weights: of all networks; 0 where none is fetched.
      features: of all datasets and backbones.
      activations: that enter trained blocks; 0 where no method reads any.
      networks: trained on one dataset and backbone, a search's trials among them.
    """

    study: str
    fetched: dict[str, float | None]
    weights: float
    features: float
    activations: float
    networks: int

    @property
    def kept(self) -> float:
        """Features and activations together."""
        return self.features + self.activations


def measure_disk(file: str, facts: Facts) -> Disk:
    """Computes what a study of the project fetches and keeps.

    Raises:
      ConfigError: if the facts lack one of its networks.
    """
    values = yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))
    study = load_study(values)
    rows = sum(sum(count_tables(study, dataset)) for dataset in study.datasets)
    sizes = {name: _network(study, name, facts) for name in study.backbones}
    cuts = _cut_numbers(study, list(sizes.values()))
    # several backbones of a study may be one model at several sizes of images
    models = {getattr(study.backbones[name], "model", name): size for name, size in sizes.items()}
    parameters = sum(size.parameters for size in models.values())
    return Disk(
        study=file,
        fetched={
            name: facts.downloads[name].gigabytes if name in facts.downloads else None
            for name in (values["datasets"][dataset].get("catalog") for dataset in study.datasets)
            if name is not None
        },
        weights=WEIGHT_BYTES * parameters / GIGABYTE,
        features=sum(
            STORED_BYTES * size.features * _count_vectors(study, name) / GIGABYTE
            for name, size in sizes.items()
        ),
        activations=STORED_BYTES * rows * cuts / GIGABYTE,
        networks=count_networks(study),
    )


def _count_vectors(study: Study, backbone: str) -> int:
    """Counts the feature vectors of a backbone: one an image, and one for each stored crop."""
    crops = study.backbones[backbone].stored_crops
    return sum(
        train * (1 + crops) + test
        for train, test in (count_tables(study, dataset) for dataset in study.datasets)
    )


def count_tables(study: Study, dataset: str) -> tuple[int, int]:
    """Counts the images of each of a dataset's tables, by what it expects or the catalog."""
    options = study.datasets[dataset]
    train, test = options.expect.train, options.expect.test
    if train is None and dataset in catalog.dataset_names():
        sizes = catalog.dataset_entry(dataset).sizes
        train, test = sizes.train, sizes.test
    part = options.subsample
    if part is not None and part.per_class is not None and options.expect.classes is not None:
        train = part.per_class * options.expect.classes
    return train or 0, test or 0


def count_networks(study: Study) -> int:
    """Counts the networks that a study trains on one dataset and backbone, searches included."""
    total = 0
    for epsilon in study.job_epsilons():
        for name in study.job_methods(epsilon):
            options = study.methods[name].model_dump()
            if options["head"] in NETWORKS:
                total += study.seeds + ((options.get("search") or {}).get("trials") or 0)
    return total


def _network(study: Study, backbone: str, facts: Facts) -> Network:
    options = study.backbones[backbone]
    model = getattr(options, "model", None)
    if model is None:  # no weights: pixels, scattering
        return Network(features=options.computed_dimension or 0, parameters=0)
    if model not in facts.networks:
        raise ConfigError(f"{FILE}: networks: no {model!r}; add its sizes")
    return facts.networks[model]


def _cut_numbers(study: Study, networks: Sequence[Network]) -> int:
    """Counts the numbers per image that are stored where blocks are trained, over all cuts."""
    cuts = {getattr(method, "cut_blocks", None) for method in study.methods.values()} - {None}
    return len(cuts) * sum(network.cut or 0 for network in networks)
