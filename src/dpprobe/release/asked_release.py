"""A release as a study requests it: its options, data, plans, and place in the ledger."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from dpprobe.backbones import external, joined, local_folders
from dpprobe.backbones.feature_digest import NO_PROBE
from dpprobe.data.options import DatasetOptions
from dpprobe.data.promise_facts import PromiseFacts
from dpprobe.data.sources import embeddings
from dpprobe.errors import DataError, PrivacyError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.files.plain_files import sha256_file
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.plan_check import check_plan
from dpprobe.json_values import hash_value
from dpprobe.options import resolve_path
from dpprobe.privacy.noise_calibration import calibrate
from dpprobe.privacy.plan import Mechanism, Patients, Plan
from dpprobe.privacy.risk import read_budget
from dpprobe.privacy.target import Target
from dpprobe.release.bundle import ARRAY, POOL, BackboneFacts
from dpprobe.release.counted_units import compose_test_price
from dpprobe.release.ledger.ledger import Ledger
from dpprobe.release.ledger.ledger_file import Booking, Part
from dpprobe.release.ledger.ledger_prices import Limits
from dpprobe.release.ledger.ledger_units import Units, find_tables
from dpprobe.release.transport import Transport
from dpprobe.release_part_registry import load_parts, load_steps
from dpprobe.study.options import ReleaseOptions
from dpprobe.study.release_data import release_delta
from dpprobe.study.study import Study
from dpprobe.training.fit_inputs import FitInputs
from dpprobe.training.plan_file import check_price, plan_method

logger = logging.getLogger("dpprobe")

# Release options that do not affect the head.
NOT_OF_THE_HEAD = {"card", "sign_key", "allow_useless"}


@dataclass(frozen=True, kw_only=True)
class AskedRelease:
    """A release of a study, with the files that it reads and writes.

    Attributes:
      audit: the record of an audit, from the study's cell of equal method and epsilon.
      benchmark: `metrics.json` of the study's cell of equal method and epsilon.
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
        """The dataset's facts on which the guarantee depends, with the counts of copies."""
        return count_promise(self.study, self.options.dataset, self.stores)

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger.of_dataset(Path(self.study.data_dir), self.options.dataset)

    @cached_property
    def stores(self) -> tuple[FeatureStore, FeatureStore]:
        return FeatureStore(self.train), FeatureStore(self.test)

    # release parts

    @cached_property
    def steps(self) -> Mapping[str, Any]:
        """The `PartSteps` of all release parts that the release has, by name."""
        steps: dict[str, Any] = {}
        declared = load_parts()
        for name, make_steps in load_steps().items():
            options = declared[name].options if name in declared else None
            asked = None if options is None else self.options.block(options)
            if asked is not None or options is None:
                steps[name] = make_steps(self, asked)
        return steps

    @cached_property
    def transport(self) -> Transport:
        opened = (steps.open_transport() for steps in self.steps.values())
        return next((each for each in opened if each is not None), Transport())

    def forget_agreed(self) -> None:
        """Drops cached values that depend on unit counts of other sites, which may still change."""
        for name in ("inputs", "facts", "method", "plan", "plans", "test_price"):
            vars(self).pop(name, None)

    # the method and its data

    @cached_property
    def asked_method(self) -> MethodOptions:
        """The method's options as written in the study; `auto` is not resolved yet."""
        options = self.options
        return self.study.methods[options.method].fill_paths(
            dataset=options.dataset, backbone=options.backbone
        )

    @cached_property
    def method(self) -> MethodOptions:
        return self.asked_method.resolve_choice(self.facts, exact=True)

    @cached_property
    def inputs(self) -> FitInputs:
        """This machine's training examples; the number of units is the total of all sites."""
        return FitInputs(self.stores[0], self.unit, self.transport.agreed_n)

    @cached_property
    def facts(self) -> DataFacts:
        """The facts with the metric that the release publishes, never the dataset's metric."""
        return self.inputs.read_facts(self.target, metric=self.options.test_metric)

    @cached_property
    def backbone(self) -> BackboneFacts:
        store = self.stores[0]
        if not store.members:
            return self._describe_backbone(store, self.options.backbone)
        members = tuple(self._describe_backbone(each, each.backbone) for each in store.members)
        return BackboneFacts(
            name=self.options.backbone,
            options=dict(store.backbone_options),
            checkpoint=None,
            weights_sha256=None,
            architecture=None,
            pretrained_tag=None,
            trained=store.trained,
            preprocessing={},
            precision=members[0].precision,
            dtype=joined.DTYPE,
            probe=dict(NO_PROBE),
            versions={key: value for one in members for key, value in one.versions.items()},
            members=members,
        )

    def _describe_backbone(self, store: FeatureStore, name: str) -> BackboneFacts:
        first = store.shards[0]
        header = store.read_header(first)
        if header.precision is None or first.probe is None:
            raise DataError(
                f"{store.path.with_name(first.file)}: an earlier dpprobe wrote this file without "
                "recording the precision of the forward pass; delete the file and run again"
            )
        options = self.study.backbones[name]
        checkpoint = getattr(options, "checkpoint", None)
        folder = local_folders.folder_name(getattr(options, "model", "")) if store.trained else None
        return BackboneFacts(
            name=name,
            options=dict(store.backbone_options),
            checkpoint=Path(checkpoint).name if checkpoint else folder,
            weights_sha256=store.weights_sha256,
            architecture=store.architecture,
            pretrained_tag=store.pretrained_tag,
            trained=store.trained,
            preprocessing={**store.preprocessing, **self._describe_vectors(name)},
            precision=header.precision,
            dtype=header.dtype,
            probe=dict(first.probe),
            versions=dict(header.versions),
        )

    def _describe_vectors(self, name: str) -> dict[str, str]:
        """Says how files became vectors, so that new files are read in the same way."""
        dataset, options = self.study.datasets[self.options.dataset], self.study.backbones[name]
        if not isinstance(dataset, embeddings.Options) or not isinstance(options, external.Options):
            return {}
        array = dataset.vectors.get(options.choose_vectors(name, dataset.vector_names()))
        told = {POOL: dataset.pool, ARRAY: array}
        return {key: value for key, value in told.items() if value is not None}

    def hash_backbone(self) -> str:
        store = self.stores[0]
        facts = [store.weights_sha256, dict(store.backbone_options), dict(store.preprocessing)]
        return hash_value([*facts, *(dict(member.preprocessing) for member in store.members)])

    def locate_predecessor(self) -> Path | None:
        named = self.options.predecessor
        if named is None:
            return None
        in_study = named in self.study.releases
        return self.output.with_name(named) if in_study else resolve_path(named)

    # plans

    @property
    def target(self) -> Target:
        patients = self.study.dataset_patients(self.options.dataset)
        return Target(
            n=self.inputs.n,
            unit=self.inputs.unit,
            epsilon=read_budget(self.options.token),
            delta=self.delta,
            accountant=self.study.accountant,
            patients=Patients(**patients) if patients else None,
        )

    @cached_property
    def plan(self) -> Plan:
        plan = plan_method(self.method, self.target, cache=self.cache)
        check_plan(self.method, plan)
        check_price(plan)
        return self.transport.price_shares(plan)

    @cached_property
    def plans(self) -> Mapping[str, Plan]:
        """The plans for what release parts measure on the test units, by part."""
        plans = {name: steps.plan_test_units() for name, steps in self.steps.items()}
        return {name: plan for name, plan in plans.items() if plan is not None}

    @cached_property
    def test_price(self) -> Plan | None:
        """One plan of all mechanisms that read the test units; None if no mechanism does."""
        return self.compose_price(*self.plans)

    def compose_price(self, *parts: str) -> Plan | None:
        """Returns one plan for all that the named release parts measure on the test units."""
        together = compose_test_price(*(self.plans.get(name) for name in parts))
        return None if together is None else self.transport.price_shares(together)

    def plan_test(self, mechanisms: tuple[Mechanism, ...], epsilon: float) -> Plan:
        agreed = self.transport.agreed_test_n
        try:
            target = Target(
                n=FitInputs(self.stores[1], self.unit).n if agreed is None else agreed,
                epsilon=epsilon,
                delta=self.delta,
                accountant="pld",  # exact without sampling; `dpprobe verify` also uses PLD
                unit=self.unit,
            )
        except PrivacyError as error:
            raise PrivacyError(f"release {self.name}: test {self.unit}s: {error}") from None
        plan = calibrate(mechanisms, target, cache=self.cache)
        check_price(plan)
        return self.transport.price_shares(plan)

    # the ledger

    def make_booking(self) -> Booking:
        parts = [Part.from_plan("train", self.plan)]
        if self.test_price is not None:
            parts.append(Part.from_plan("test", self.test_price))
        more: dict[str, Any] = {}
        for steps in self.steps.values():
            more |= steps.describe_booking()
        return Booking(
            release=self.name,
            study=self.study.study,
            unit=self.unit,
            split=name_split(self.dataset, self.stores[0]),
            parts=tuple(parts),
            identity=f"{hash_options(self, self.options)} {hash_data(self.stores)}",
            column=self.promise.unit_column if self.unit == "patient" else None,
            same_units_as=self.promise.same_units_as,
            **more,
        )

    def list_units(self) -> Units:
        """Lists the release's units, for the comparison with units of other datasets."""
        folder = self.ledger.path.parent
        return list_units(f"release {self.name}", folder, self.dataset, self.stores)


# what a dataset's releases and comparisons share


def count_promise(
    study: Study, dataset: str, stores: tuple[FeatureStore, FeatureStore]
) -> PromiseFacts:
    """Returns a dataset's facts on which a guarantee depends, with the counts of copies."""
    counted, tested = stores[0].promise, stores[1]
    return replace(
        study.dataset_promise(dataset),
        copies=counted.copies,
        test_copies=tested.copies,
        copies_across=counted.copies_across,
    )


def read_limits(study: Study, dataset: str) -> Limits:
    """Returns the limits on a dataset's total, at the dataset's delta, whatever a release has."""
    return Limits(
        delta=study.dataset_delta(dataset),
        max_epsilon=study.max_epsilon(dataset),
        max_risk=study.max_risk,
    )


def name_split(dataset: DatasetOptions, store: FeatureStore) -> str:
    """Returns a key of the split: equal keys put each unit on an equal side (train or test)."""
    split = dataset.public_split()
    if split.follows_names:
        return split.key
    return f"{split.key}, data {store.dataset_fingerprint}"


def list_units(
    of: str, folder: Path, dataset: DatasetOptions, stores: tuple[FeatureStore, FeatureStore]
) -> Units:
    """Lists the units of a dataset whose ledger is in `folder`; `of` names what is booked."""
    tables = find_tables(folder, fingerprint=stores[0].dataset_fingerprint)
    if tables is None:
        logger.warning(
            "%s: the split tables in %s are missing or belong to other data, so only "
            "names of units are compared with other datasets, not images",
            of,
            folder,
        )
    named = dataset.public_split().names_rows
    names = {store.split: store.units or store.ids for store in stores if named}
    return Units(names=names, tables=tables)


def hash_data(stores: tuple[FeatureStore, FeatureStore]) -> str:
    return hash_value([store.fingerprint for store in stores])


def hash_options(task: AskedRelease, release: ReleaseOptions) -> str:
    """Hashes all options that affect a release's head or its measurements."""
    others = NOT_OF_THE_HEAD if release.cohort else NOT_OF_THE_HEAD | {"predecessor"}
    options = {
        "release": release.model_dump(mode="json", exclude=others),
        # A release stays final if a later version of `auto` would choose another head.
        "options": task.asked_method.identity_options(),
        "public": [sha256_file(Path(path)) for path in task.asked_method.input_files()],
        "unit": task.unit,
        "delta": task.delta,
        "accountant": task.study.accountant,
        "split": task.dataset.public_split().key,
    }
    return hash_value(options)
