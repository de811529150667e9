"""A release as a study requests it: its options, its data, and what identifies both."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from dpprobe.data.options import DatasetOptions
from dpprobe.data.promise_facts import PromiseFacts, promise_facts
from dpprobe.features.feature_store import FeatureStore
from dpprobe.files.plain_files import sha256_file
from dpprobe.heads.options import MethodOptions
from dpprobe.json_values import hash_value
from dpprobe.options import resolve_path
from dpprobe.release.ledger.ledger import Ledger
from dpprobe.release.ledger.ledger_limits import Limits
from dpprobe.release.ledger.ledger_units import Units, find_tables, list_names
from dpprobe.study.options import ReleaseOptions
from dpprobe.study.release_data import release_delta
from dpprobe.study.study import Study

logger = logging.getLogger("dpprobe")

# Release options that do not affect the head.
NOT_OF_THE_HEAD = {"card", "sign_key", "allow_useless"}


@dataclass(frozen=True, kw_only=True)
class AskedRelease:
    """A release of a study, with the files that it reads and writes.

    Attributes:
      audit: the audit record of the study's cell with the same method and epsilon.
      benchmark: `metrics.json` of the study's cell with the same method and epsilon.
    """

    study: Study
    name: str
    train: Path
    test: Path
    output: Path
    cache: Path
    audit: Path | None = None
    benchmark: Path | None = None

    @cached_property
    def options(self) -> ReleaseOptions:
        return self.study.releases[self.name]

    @property
    def dataset(self) -> DatasetOptions:
        return self.study.datasets[self.options.dataset]

    @cached_property
    def delta(self) -> float:
        return release_delta(self.study, self.name)

    @cached_property
    def unit(self) -> Literal["image", "patient"]:
        return self.study.dataset_unit(self.options.dataset)

    @cached_property
    def promise(self) -> PromiseFacts:
        """The facts about the dataset on which the guarantee depends, with counts of copies."""
        return count_promise(self.study, self.options.dataset, self.stores)

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger.of_dataset(Path(self.study.data_dir), self.options.dataset)

    @cached_property
    def stores(self) -> tuple[FeatureStore, FeatureStore]:
        return FeatureStore(self.train), FeatureStore(self.test)

    @cached_property
    def asked_method(self) -> MethodOptions:
        """The method's options as written in the study; `auto` is not resolved yet."""
        options = self.options
        return self.study.methods[options.method].fill_paths(
            dataset=options.dataset, backbone=options.backbone
        )

    def locate_predecessor(self) -> Path | None:
        named = self.options.predecessor
        if named is None:
            return None
        in_study = named in self.study.releases
        return self.output.with_name(named) if in_study else resolve_path(named)


# functions for a dataset's releases and comparisons


def count_promise(
    study: Study, dataset: str, stores: tuple[FeatureStore, FeatureStore]
) -> PromiseFacts:
    """Returns the facts about a dataset on which a guarantee depends, with counts of copies."""
    counted, tested, options = stores[0].promise, stores[1], study.datasets[dataset]
    named = options.named_ids() is not None
    return replace(
        promise_facts(options),
        copies=counted.copies,
        test_copies=tested.copies,
        copies_across=counted.copies_across,
        ids_across=len({*stores[0].ids} & {*tested.ids}) if named else None,
    )


def read_limits(study: Study, dataset: str) -> Limits:
    """Returns the limits on a dataset's total cost, at the dataset's delta, not a release's."""
    return Limits(
        delta=study.dataset_delta(dataset),
        max_epsilon=study.max_epsilon(dataset),
        max_risk=study.max_risk,
    )


def read_joined_limits(study: Study, dataset: str) -> dict[str, Limits]:
    """Returns the limits of the study's other datasets, each at its own delta."""
    return {name: read_limits(study, name) for name in study.datasets if name != dataset}


def name_split(dataset: DatasetOptions, store: FeatureStore) -> str:
    """Returns a key of the split; splits with equal keys put each unit on the same side."""
    split = dataset.public_split()
    if split.follows_names:
        return split.key
    return f"{split.key}, data {store.dataset_fingerprint}"


def list_units(
    of: str, folder: Path, dataset: DatasetOptions, stores: tuple[FeatureStore, FeatureStore]
) -> Units:
    """Lists the units of the dataset with its ledger in `folder`; `of` names it in warnings."""
    tables = find_tables(folder, fingerprint=stores[0].dataset_fingerprint)
    if tables is None:
        logger.warning(
            "%s: the split tables in %s are missing or belong to other data, so only "
            "names of units and ids are compared with other datasets, not images",
            of,
            folder,
        )
    named = dataset.named_ids() is not None
    names = {store.split: list_names(store.units, store.ids, named=named) for store in stores}
    return Units(names=names, tables=tables)


def hash_data(stores: tuple[FeatureStore, FeatureStore]) -> str:
    return hash_value([store.fingerprint for store in stores])


def hash_options(asked: AskedRelease, release: ReleaseOptions) -> str:
    """Hashes all options that affect a release's head or its measurements."""
    others = NOT_OF_THE_HEAD if release.cohort else NOT_OF_THE_HEAD | {"predecessor"}
    options = {
        "release": release.model_dump(mode="json", exclude=others),
        # `auto` stays unresolved: a release remains final if a later version chooses another head.
        "options": asked.asked_method.identity_options(),
        "public": [sha256_file(Path(path)) for path in asked.asked_method.input_files()],
        "unit": asked.unit,
        "delta": asked.delta,
        "accountant": asked.study.accountant,
        "split": asked.dataset.public_split().key,
    }
    return hash_value(options)
