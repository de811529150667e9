"""Makes a release: one head with fresh noise, booked in the ledger, packed into a bundle.

The order makes a crash at any moment safe:

1. All that can be checked is checked, and nothing is written.
2. The release is booked in the ledger of its dataset, which is on the disk before step 3.
3. The first random word is drawn: the head is trained, and tested if asked for.
4. The bundle is written into a hidden folder that names the entry, then renamed to `.staged`.
5. The ledger closes the entry, with the digest of the staged bundle.
6. The files are copied to their place. The hidden folder stays: the next run restores from it files
   that a person or Snakemake removed from the bundle.

After a crash between 2 and 4 the entry is open, and it has no whole bundle. A new head would be a
second release, so the next run refuses until a person abandons the entry; then it removes what is
left. After a crash between 4 and 6 the next run continues with the staged bundle, without drawing
anything. A release is final: a run that finds its bundle keeps it, whatever has changed since.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dpprobe.artifacts import (
    PARTIAL_SUFFIX,
    atomic_path,
    hash_value,
    read_json,
    require_room,
    sha256_file,
    when_there_is_room,
)
from dpprobe.data.options import DatasetOptions, Headline
from dpprobe.errors import ConfigError, DataError, PrivacyError, StoreError, WaitingError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.auto import describe_choice, is_undecided
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.fit import check_plan, fit_heads
from dpprobe.heads.fitted import Heads
from dpprobe.heads.normalisation import CENTRE
from dpprobe.heads.options import MethodOptions
from dpprobe.options import resolve_path
from dpprobe.privacy.calibration import calibrate
from dpprobe.privacy.entropy import SEEDED, Entropy, SystemEntropy
from dpprobe.privacy.plan import Mechanism, Patients, Plan
from dpprobe.privacy.risk import read_budget
from dpprobe.privacy.running_sums import Factorisation, RunningSums
from dpprobe.privacy.target import Target
from dpprobe.release import bundle as files
from dpprobe.release.audit_evidence import read_evidence
from dpprobe.release.bundle import BackboneFacts, BundleFacts, CardFacts, read_bundle
from dpprobe.release.calibration import Calibration
from dpprobe.release.calibration_release import (
    calibrate_from_counts,
    calibrate_head,
    calibration_mechanisms,
    calibration_words,
    check_calibration_size,
    compose_test_price,
)
from dpprobe.release.cohorts import Chain, cohort_path, read_chain, write_cohort
from dpprobe.release.evaluation import (
    check_telling,
    composition_words,
    evaluate_heads,
    evaluation_mechanisms,
    fewest_of_a_class,
)
from dpprobe.release.leak_check import check_published
from dpprobe.release.ledger import (
    Booking,
    Entry,
    Ledger,
    Limits,
    Part,
    tell_of_entry,
)
from dpprobe.release.monitor import find_directions
from dpprobe.release.monitor_release import (
    check_monitor_size,
    count_typical,
    moment_name,
    monitor_head,
    monitor_mechanisms,
    monitor_words,
)
from dpprobe.release.packing import describe_head, pack_head
from dpprobe.release.release_choice_price import choice_block
from dpprobe.release.release_statement import published_options, release_statement
from dpprobe.release.signing import read_private_key
from dpprobe.release.site_part import SitePart
from dpprobe.release.unit_hashes import Units, find_tables
from dpprobe.release.usefulness import check_metric, check_usefulness
from dpprobe.release.verification.predecessors import identify_bundle
from dpprobe.sites.agreement import Agreement, Offer
from dpprobe.sites.exchange import ANOTHER_NAME, Exchange, keep_agreement
from dpprobe.sites.shared_sums import SharedSums, SumsMissing
from dpprobe.sites.site_folder import lock_folder, site_folder
from dpprobe.study.options import EvaluateOptions, ReleaseOptions, SitesOptions
from dpprobe.study.release_data import public_subsample, release_delta, release_delta_fault
from dpprobe.study.study import Study
from dpprobe.study.study_checks import release_faults
from dpprobe.training.fit_inputs import FitInputs
from dpprobe.training.job_features import JobFeatures, read_job_features
from dpprobe.training.plan_file import check_price, plan_method
from dpprobe.training.public_file_check import PrivateData
from dpprobe.versions import code_version

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("dpprobe")

# The number of a release's only head; nothing derives from it.
_HEAD = 0
# Options of a release that change nothing of its head.
NOT_OF_THE_HEAD = {"card", "sign_key", "allow_useless"}
DOCUMENTS_BYTES = 1_000_000  # of a bundle without its weights
_POLL_SECONDS = 2.0  # between looks at the other sites' files

Block = dict[str, Any] | None  # of a statement


def make_release(
    study: Study,
    name: str,
    *,
    train: Path,
    test: Path,
    output: Path,
    cache: Path,
    audit: Path | None = None,
    benchmark: Path | None = None,
) -> None:
    """Makes a release of a study, leaves a finished one unchanged, or finishes an interrupted one.

    `audit` is the record of an audit, and `benchmark` the `metrics.json`, of the study's cell of
    the same method and epsilon. Nothing is booked if an error shows beforehand.
    """
    task = ReleaseTask(
        study=study, name=name, train=train, test=test, output=output, cache=cache, audit=audit,
        benchmark=benchmark,
    )  # fmt: skip
    task.run(wait_minutes=task.options.sites.wait_minutes if task.options.sites else 0)


@dataclass(frozen=True, kw_only=True)
class ReleaseTask:
    """A release of a study, with the files that it reads and writes."""

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

    @cached_property
    def asked_method(self) -> MethodOptions:
        """The method as the study has it, before `auto` chooses."""
        options = self.options
        return self.study.methods[options.method].fill_paths(
            dataset=options.dataset, backbone=options.backbone
        )

    @cached_property
    def predecessor(self) -> dict[str, str] | None:
        """Name and digest of the release that this one replaces; None without one."""
        folder = self._predecessor_folder()
        return None if folder is None else identify_bundle(folder)

    def _predecessor_folder(self) -> Path | None:
        named = self.options.predecessor
        if named is None:
            return None
        in_study = named in self.study.releases
        return self.output.with_name(named) if in_study else resolve_path(named)

    @cached_property
    def chain(self) -> Chain | None:
        """The cohorts before this one; None without `cohort`."""
        if self.options.cohort is None:
            return None
        factorisation = Factorisation.make(self.options.horizon)
        if (folder := self._predecessor_folder()) is None:
            return Chain(factorisation=factorisation)
        before = read_bundle(folder).facts
        chain = read_chain(Path(self.study.data_dir), dataset=before.dataset, release=before.name)
        if chain.factorisation != factorisation:
            raise ConfigError(
                f"release {self.name}: horizon {self.options.horizon}, but that of {before.name} "
                f"is {chain.factorisation.horizon}; write the same"
            )
        return chain

    @cached_property
    def running(self) -> RunningSums | None:
        """The sums that the fit adds to; raises unless the release fits its chain."""
        if self.chain is None:
            return None
        if fault := self.method.cohort_fault:
            raise ConfigError(f"release {self.name}: method {self.options.method}: {fault}")
        return self.chain.start(
            self.method.running_sums or (),
            dataset=self.options.dataset,
            n=self.plan.n,
            binds=self._chain_binds(),
        )

    def _chain_binds(self) -> dict[str, str]:
        store = self.stores[0]
        return {
            "method": hash_value(published_options(self.method)),
            "backbone": hash_value(self._backbone_facts()),
            "class list": hash_value(list(store.class_names)),
            "epsilon or delta": hash_value([each.to_dict() for each in self.plan.mechanisms]),
            "unit of privacy": hash_value([self.unit, self.dataset.unit_name()]),
        }

    @cached_property
    def method(self) -> MethodOptions:
        return self.asked_method.resolve_choice(self.facts, exact=True)

    @cached_property
    def facts(self) -> DataFacts:
        return self.inputs.read_facts(self.target)

    def _facts_by_backbone(self) -> dict[str, DataFacts]:
        """Returns name, weights and preprocessing of each backbone with features of the dataset."""
        split, facts = self.train.parent, {self.options.backbone: self.facts}
        for name in self.study.backbones:
            # <features>/<dataset>/<backbone>/train/manifest.json
            manifest = split.parent.with_name(name) / split.name / self.train.name
            if name not in facts:
                with suppress(StoreError):
                    facts[name] = replace(self.facts, dimension=FeatureStore(manifest).dimension)
        return facts

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger.of_dataset(Path(self.study.data_dir), self.options.dataset)

    @cached_property
    def stores(self) -> tuple[FeatureStore, FeatureStore]:
        return FeatureStore(self.train), FeatureStore(self.test)

    @cached_property
    def unit(self) -> Literal["image", "patient"]:
        return self.study.dataset_unit(self.options.dataset)

    @cached_property
    def inputs(self) -> FitInputs:
        """The training examples; those of several sites count with all units of all sites."""
        agreement = self.agreement
        return FitInputs(self.stores[0], self.unit, None if agreement is None else agreement.n)

    # of several sites

    @cached_property
    def site(self) -> SitePart | None:
        """This site's part of a release of several sites; None for other releases."""
        if self.options.sites is None:
            return None
        return SitePart(
            release=self.name,
            options=self.options.sites,
            private=site_folder(self.ledger.path.parent, self.name),
            terms=self._list_terms(self.options.sites),
        )

    @cached_property
    def agreement(self) -> Agreement | None:
        """The offers of all sites; WaitingError before all are there."""
        if self.site is None:
            return None
        return self.site.read_agreement(n=self._own_n, test_n=self._own_test_n)

    @cached_property
    def exchange(self) -> Exchange | None:
        if self.site is None or self.agreement is None:
            return None
        return self.site.open_exchange(self.agreement)

    @property
    def _own_n(self) -> int:
        return FitInputs(self.stores[0], self.unit).n

    @property
    def _own_test_n(self) -> int:
        return FitInputs(self.stores[1], self.unit).n

    def _list_terms(self, sites: SitesOptions) -> dict[str, Any]:
        """Returns the terms that must be equal at all sites, named as an error names them."""
        store = self.stores[0]
        method = self.asked_method
        evaluate, calibrate, monitor = (
            each and each.model_dump(mode="json")
            for each in (self.options.evaluate, self.options.calibrate, self.options.monitor)
        )
        return {
            "members": dict(sites.members),
            "aggregator": sites.aggregator,
            "colluders": sites.colluders,
            "release": self.name,
            "class list": list(store.class_names),
            "kind of labels": "several" if store.multi_label else "one",
            "dimension": store.dimension,
            "unit of privacy": self.unit,
            "backbone": hash_value(self._backbone_facts()),
            "method": published_options(method),
            "public files": [sha256_file(Path(path)) for path in method.input_files()],
            "epsilon": self.options.token,
            "delta": self.delta,
            "accountant": self.study.accountant,
            "version of dpprobe": code_version(),
            "split rule": self.dataset.public_split().rule,
            "subsample": public_subsample(self.dataset),
            "cohort": self.options.cohort,
            "horizon": self.options.horizon,
            "images per patient": self.study.dataset_patients(self.options.dataset),
            "evaluate": evaluate,
            "calibrate": calibrate,
            "monitor": monitor,
        }

    def _backbone_facts(self) -> list[Any]:
        store = self.stores[0]
        return [store.weights_sha256, dict(store.backbone_options), dict(store.preprocessing)]

    def make_offer(self) -> tuple[Offer, Path]:
        """Writes this site's signed offer into the exchange."""
        if self.site is None:
            raise ConfigError(f"release {self.name}: has no `sites`, so there is nothing to offer")
        with lock_folder(self.site.private):
            self._drop_abandoned()
            self._check_study()
            if (entry := self.ledger.entry_of(self.name)) is None:
                self.site.drop_agreement()
            return self.site.make_offer(n=self._own_n, test_n=self._own_test_n, entry=entry)

    def run(self, *, wait_minutes: float = 0) -> None:
        """Makes the release, or finishes it; waits so long for other sites' files."""
        if self.site is None:
            self._finish_or_make()
            return
        deadline, booked = time.monotonic() + 60 * wait_minutes, self.ledger.entry_of(self.name)
        last = ""
        while True:
            try:
                with lock_folder(self.site.private):
                    self._finish_or_make()
                    if self.site.folder.is_dir():  # somebody may still wait for a message
                        self.site.send_all_again()
                    self.site.drop_secret()
                return
            except WaitingError as waiting:
                if time.monotonic() >= deadline:
                    raise
                if str(waiting) != last:
                    logger.info("waiting: %s", waiting)
                last = str(waiting)
            time.sleep(_POLL_SECONDS)
            self._forget_agreement()
            entry = self.ledger.entry_of(self.name)
            if booked is not None and (entry is None or entry.number != booked.number):
                raise PrivacyError(
                    f"release {self.name}: its entry {booked.number} was abandoned while it waited"
                )
            booked = entry

    def _finish_or_make(self) -> None:
        if not self.finish_earlier():
            self.make_release()

    def _forget_agreement(self) -> None:
        """Drops values that depend on the offers of all sites."""
        plans = ("plan", "test_plan", "calibration_plan", "monitor_plan", "test_price")
        for name in ("agreement", "exchange", "inputs", "facts", "method", *plans):
            vars(self).pop(name, None)

    @cached_property
    def delta(self) -> float:
        return release_delta(self.study, self.name)

    @property
    def metric(self) -> Headline:
        """The published test metric, never the dataset's: that may follow from labels."""
        return self.options.evaluate.published if self.options.evaluate else "accuracy"

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
        return self._price_shares(plan)

    @cached_property
    def test_plan(self) -> Plan | None:
        if self.options.evaluate is None:
            return None
        store = self.stores[1]
        mechanisms = evaluation_mechanisms(
            self.metric, classes=store.num_classes, multi_label=store.multi_label
        )
        return self._plan_test(mechanisms, self.options.evaluate.epsilon)

    @cached_property
    def calibration_plan(self) -> Plan | None:
        """The plan of a calibration; None without one, and if it uses the counts of the AUC."""
        store, options = self.stores[1], self.options
        if options.calibrate is None or options.calibrate.epsilon is None:
            return None
        mechanisms = calibration_mechanisms(
            classes=store.num_classes, multi_label=store.multi_label
        )
        return self._plan_test(mechanisms, options.calibrate.epsilon)

    @cached_property
    def monitor_plan(self) -> Plan | None:
        if self.options.monitor is None:
            return None
        dimension = self.stores[0].dimension
        typical = count_typical(self.plan, self.method.normalize, dimension)
        mechanisms = monitor_mechanisms(unusual=typical > 0)
        return self._plan_test(mechanisms, self.options.monitor.epsilon)

    @cached_property
    def test_price(self) -> Plan | None:
        """One plan of all that reads the test units; None if nothing does."""
        return self._compose_price(self.test_plan, self.calibration_plan, self.monitor_plan)

    def _compose_price(self, *plans: Plan | None) -> Plan | None:
        together = compose_test_price(*plans)
        return None if together is None else self._price_shares(together)

    def _price_shares(self, plan: Plan) -> Plan:
        return plan if self.site is None else self.site.price_shares(plan)

    def _plan_test(self, mechanisms: tuple[Mechanism, ...], epsilon: float) -> Plan:
        target = Target(
            n=self._own_test_n if self.agreement is None else self.agreement.test_n,
            unit=self.unit,
            epsilon=epsilon,
            delta=self.delta,
            accountant="pld",  # exact, and what `verify` uses: nothing here samples
        )
        plan = calibrate(mechanisms, target, cache=self.cache)
        check_price(plan)
        return self._price_shares(plan)

    def _hash_data(self) -> str:
        train, test = self.stores
        return hash_value([train.fingerprint, test.fingerprint])

    def _hash_options(self, evaluate: EvaluateOptions | None) -> str:
        release = self.options.model_copy(update={"evaluate": evaluate})
        others = NOT_OF_THE_HEAD if release.cohort else NOT_OF_THE_HEAD | {"predecessor"}
        options = {
            "release": release.model_dump(mode="json", exclude=others),
            # A release is final, even if a later rule of `auto` would choose otherwise.
            "options": self.asked_method.identity_options(),
            "public": [sha256_file(Path(path)) for path in self.asked_method.input_files()],
            "unit": self.unit,
            "delta": self.delta,
            "accountant": self.study.accountant,
            "split": self.dataset.public_split().key,
        }
        return hash_value(options)

    @property
    def dataset(self) -> DatasetOptions:
        return self.study.datasets[self.options.dataset]

    def make_booking(self) -> Booking:
        parts = [Part.from_plan("train", self.plan)]
        if self.test_price is not None:
            parts.append(Part.from_plan("test", self.test_price))
        return Booking(
            release=self.name,
            study=self.study.study,
            unit=self.unit,
            split=self._ledger_split(),
            parts=tuple(parts),
            identity=f"{self._hash_options(self.options.evaluate)} {self._hash_data()}",
            column=self.dataset.unit_name() if self.unit == "patient" else None,
            same_units_as=self.dataset.same_units_as,
            place=None
            if self.chain is None
            else self.chain.name_place(self.options.dataset, self.name),
            sites=None
            if self.site is None or self.agreement is None
            else self.site.name_promise(self.agreement),
        )

    def list_units(self) -> Units:
        """Names the units of the release, to be compared with other datasets'."""
        tables = find_tables(
            self.ledger.path.parent, fingerprint=self.stores[0].dataset_fingerprint
        )
        if tables is None:
            logger.warning(
                "release %s: the split tables in %s are missing or belong to other data, so only "
                "names of units are compared with other datasets, not images",
                self.name, self.ledger.path.parent,
            )  # fmt: skip
        named = self.dataset.public_split().names_rows
        names = {store.split: store.units or store.ids for store in self.stores if named}
        return Units(names=names, tables=tables)

    def _ledger_split(self) -> str:
        """Returns a key that two releases share only if each unit is on the same side in both."""
        split = self.dataset.public_split()
        if split.follows_names:
            return split.key
        return f"{split.key}, data {self.stores[0].dataset_fingerprint}"

    # the remains of an earlier run

    def _drop_abandoned(self) -> None:
        """Removes the remaining files of abandoned entries, because nobody may see their heads."""
        for entry in self.ledger.read_entries():
            if entry.state != "abandoned" or entry.booking.release != self.name:
                continue
            self._cohort_path(entry).unlink(missing_ok=True)
            for folder in (self._staged_folder(entry), self._partial_folder(entry)):
                if folder.exists():
                    shutil.rmtree(folder)
                    logger.info(
                        "release %s: %s removed, because its entry is abandoned", self.name, folder
                    )

    def finish_earlier(self) -> bool:
        """Keeps or finishes the release of an earlier run; False if there is none.

        Raises PrivacyError for one that can neither be kept nor finished.
        """
        self._drop_abandoned()
        entry = self.ledger.entry_of(self.name)
        if entry is None and self.site is not None:
            self.site.drop_agreement()
        if entry is None:
            self._check_listed()
            return False
        self._check_same(entry)
        if entry.state == "closed" and _has_digest(self.output, entry.digest):
            logger.info(
                "release %s: unchanged, because a release is final (entry %d)",
                self.name,
                entry.number,
            )
            self._touch_files()
            return True
        staged = self._staged_folder(entry)
        if _is_whole(staged) and entry.state == "open":
            self._close_entry(entry, staged)
            logger.info("release %s: completed from the files of an earlier run", self.name)
            self._publish_bundle(staged)
            return True
        if entry.state == "closed" and _has_digest(staged, entry.digest):
            self._publish_bundle(staged)
            return True
        if entry.state == "open" and self.site is not None:
            return False  # its noise is fixed by its secret, so it may continue
        raise PrivacyError(self._explain_stuck(entry))

    def _check_listed(self) -> None:
        """Refuses if the ledger lacks a bundle of the dataset: it was lost or replaced."""
        known = {entry.digest for entry in self.ledger.read_entries()}
        for sums in self.output.parent.glob(f"*/{files.SUMS_FILE}"):
            try:
                of = read_json(sums.with_name(files.FACTS_FILE)).get("dataset")
            except (OSError, ValueError, AttributeError):
                continue  # no bundle that anybody could use
            if of == self.options.dataset and files.bundle_digest(sums.parent) not in known:
                raise PrivacyError(
                    f"{sums.parent}: a release from {of} that {self.ledger.path} does not list; "
                    "restore the ledger, which records the spent budget; or move the bundle "
                    "elsewhere if it belongs to other data"
                )

    def _check_telling(self, plan: Plan) -> None:
        store = self.stores[1]
        check_telling(plan, classes=2 if store.multi_label else store.num_classes)
        if self.metric != "accuracy":
            logger.warning(
                "release %s: its test result needs at least %d of the %d test %s in each class. "
                "With fewer, its epsilon is spent without a result. Your counts are private, so "
                "dpprobe does not look at them here; `dpprobe init` prints them",
                self.name, math.ceil(fewest_of_a_class(plan)), plan.n, f"{plan.unit}s",
            )  # fmt: skip

    def _check_same(self, entry: Entry) -> None:
        options, data = entry.booking.identity.split()
        asked = self.options.evaluate
        spelt = [asked]
        if asked and self.metric == "accuracy":  # the default, so it need not be written
            spelt = [asked.model_copy(update={"metric": each}) for each in (None, "accuracy")]
        if options not in map(self._hash_options, spelt):
            raise PrivacyError(
                f"release {self.name}: entry {entry.number} of {self.ledger.path} was made with "
                "other options; a release is final: give this one another name"
            )
        if data != self._hash_data():
            if entry.state == "open" and self.site is not None:
                raise PrivacyError(
                    f"release {self.name}: its data or features changed after it was recorded as "
                    f"entry {entry.number} of {self.ledger.path}; change them back"
                )
            logger.warning(
                "release %s: its data or features changed after it was made, but a release is "
                "final; for a head of the new data, make a release with another name",
                self.name,
            )

    def _explain_stuck(self, entry: Entry) -> str:
        if entry.state == "closed":
            return (
                f"release {self.name}: made (entry {entry.number} of {self.ledger.path}), and its "
                f"bundle is neither at {self.output} nor in {self._staged_folder(entry)}: restore "
                f"a copy whose {files.SUMS_FILE} has the SHA-256 {entry.digest}, or make a new "
                "release with another name, which spends its epsilon again"
            )
        return f"release {self.name}: {self.ledger.explain_open(entry)}, then run again"

    def _touch_files(self) -> None:
        for path in self.output.iterdir():
            os.utime(path)

    def _staged_folder(self, entry: Entry) -> Path:
        return self.output.with_name(f".{self.name}.entry-{entry.number}.staged")

    def _cohort_path(self, entry: Entry) -> Path:
        return cohort_path(self.ledger.path.parent, self.name, entry.number)

    def _partial_folder(self, entry: Entry) -> Path:
        return self._staged_folder(entry).with_suffix(".partial")

    def _publish_bundle(self, staged: Path) -> None:
        """Copies a closed bundle, or its missing files, to its place."""
        self.output.mkdir(exist_ok=True)
        ready = {path.name: path for path in staged.iterdir()}
        for path in self.output.iterdir():
            if path.name.endswith(PARTIAL_SUFFIX):  # of a copy that was cut short
                path.unlink()
            elif path.name not in ready or path.read_bytes() != ready[path.name].read_bytes():
                raise PrivacyError(
                    f"{path}: differs from release {self.name} as it was made; delete it and run "
                    f"again, which restores the bundle from {staged}"
                )
        for name in sorted(ready, key=lambda name: name == files.SUMS_FILE):
            if not (self.output / name).exists():
                with atomic_path(self.output / name) as temporary:
                    shutil.copyfile(ready[name], temporary)
        self._touch_files()
        logger.info("release %s: %s", self.name, self.output)

    # a new one

    def make_release(self) -> None:
        """Checks, books, trains, packs and publishes."""
        self._check_study()
        if fault := release_delta_fault(self.study, self.name, self.plan.n):
            raise PrivacyError(fault)
        if self.plan.patients is not None:
            self.inputs.check_patients(self.plan.patients.images)
        if not self.options.allow_useless:
            self._check_usefulness()
        if self.options.evaluate:
            check_metric(self.name, self.metric, self.stores[0].labels)
        evidence = read_evidence(self.audit, self.plan) if self.audit else None
        late = any(map(is_undecided, self.study.methods.values()))
        choice = choice_block(
            self.study,
            dataset=self.options.dataset,
            plan=self.plan,
            n=self.plan.n,
            cache=self.cache,
            facts=self._facts_by_backbone() if late else None,
        )
        self._warn_of_copies()
        if self.site is not None and self.exchange is not None:
            self._check_site(self.site, self.exchange)
        key = resolve_path(self.options.sign_key) if self.options.sign_key else None
        if key:
            read_private_key(key)
        if self.test_plan is not None:
            self._check_telling(self.test_plan)
        if self.options.calibrate is not None and (plan := self.calibration_plan or self.test_plan):
            check_calibration_size(plan)
        if self.monitor_plan is not None:
            check_monitor_size(self.monitor_plan)
        private = PrivateData.of_study(
            self.study,
            dataset=self.options.dataset,
            backbone=self.options.backbone,
            class_names=self.stores[0].class_names,
            manifests=(self.train, self.test),
        )
        inputs = replace(self.inputs, public=private.check_public(self.method))
        if self.running is not None:
            columns = self.stores[0].dimension + 1
            require_room(
                self.ledger.path.parent, 2 * 8 * columns * (columns + self.stores[0].num_classes)
            )
        features = read_job_features(
            inputs,
            self.stores[1],
            device="cpu",
            memory_mb=self.study.features.memory_mb,
            headline=self.metric if self.options.evaluate else "accuracy",
        )
        backbone = self._reference_backbone()
        check_published(
            {
                "backbone": backbone.model_dump(mode="json"),
                "method": published_options(self.method),
                "card": self.options.card.model_dump(mode="json"),
                "predecessor": self.predecessor or {},
            }
        )
        self.output.parent.mkdir(parents=True, exist_ok=True)
        require_room(self.output.parent, DOCUMENTS_BYTES)
        entry = self._find_open() or self.ledger.book_release(
            self.make_booking(),
            Limits(
                # the limit is at the dataset's delta, whatever delta a release has
                delta=self.study.dataset_delta(self.options.dataset),
                max_epsilon=self.study.max_epsilon(self.options.dataset),
                max_risk=self.study.max_risk,
            ),
            units=self.list_units(),
            other_units_than=self.dataset.other_units_than,
            datasets=self.study.datasets,
        )
        logger.info("release %s: recorded as entry %d", self.name, entry.number)
        if self.site is not None and self.agreement is not None:
            keep_agreement(self.site.private, self.agreement)
        with tell_of_entry(f"{entry.number} of {self.ledger.path}"):
            heads, sites, measured = self._draw_head(features)
            self._keep_cohort(heads, entry)
            staged = self._staged_folder(entry)

            facts = self._describe_bundle(backbone, heads)
            statement = self._state_promise(
                facts, *measured, choice=choice, evidence=evidence, entry=entry, sites=sites
            )
            when_there_is_room(
                staged.parent,
                sum(each.nbytes for each in heads.released_arrays().values())
                + heads.weights.nbytes + DOCUMENTS_BYTES,
                lambda: pack_head(
                    self._partial_folder(entry), staged, facts, heads,
                    statement=statement, sign_key=key,
                ),
            )  # fmt: skip
            self._close_entry(entry, staged)
            self._publish_bundle(staged)

    def _check_study(self) -> None:
        """Raises ConfigError for a fault of the release, before a site's offer and any booking."""
        store = self.stores[0]
        faults = release_faults(
            self.study, self.name, multi_label=store.multi_label, classes=store.num_classes
        )
        if faults:
            raise ConfigError("\n".join(faults))

    def _find_open(self) -> Entry | None:
        """Returns the open entry of a release of several sites, which resumes with its secret.

        Raises PrivacyError if it was booked for another agreement.
        """
        entry = None if self.site is None else self.ledger.entry_of(self.name)
        if entry is not None and entry.booking.sites != self.make_booking().sites:
            raise PrivacyError(
                f"release {self.name}: entry {entry.number} of {self.ledger.path} is of another "
                f"agreement of the sites; {ANOTHER_NAME}"
            )
        return entry

    def _check_site(self, site: SitePart, exchange: Exchange) -> None:
        """Checks that this site can take part, before it books."""
        if fault := self.method.sites_fault(self.plan.n):
            raise ConfigError(f"release {self.name}: {fault}")
        site.require_secret(exchange.agreement)
        exchange.check_messages()

    def _check_usefulness(self) -> None:
        """Looks at the benchmark; for a later cohort, whose benchmark has new rows only, plans."""
        facts, running = self.facts, self.running
        if self.site is not None:
            check_usefulness(self.name, benchmark=None, facts=facts)
            return
        if running is None or not running.earlier:
            check_usefulness(self.name, benchmark=self.benchmark, facts=facts)
            return
        # mu is nearly proportional to epsilon
        epsilon = facts.epsilon / running.noise_growth
        total = replace(facts, n=running.total, epsilon=epsilon)
        check_usefulness(self.name, benchmark=None, facts=total)

    def _keep_cohort(self, heads: Heads, entry: Entry) -> None:
        if self.running is None or self.chain is None:
            return
        write_cohort(
            self._cohort_path(entry), self.chain, self.running.make_cohort(heads.weights[0]),
            label=str(self.options.cohort), binds=self._chain_binds(),
        )  # fmt: skip

    def _close_entry(self, entry: Entry, staged: Path) -> None:
        try:
            self.ledger.close_entry(entry.number, files.bundle_digest(staged))
        except PrivacyError:
            shutil.rmtree(staged)  # abandoned while its job was at work
            raise

    def _warn_of_copies(self) -> None:
        """Warns of pictures that belong to several units, without their number."""
        copies = (self.stores[0].copies or {}).get(self.unit)
        if copies and copies["rows"]:
            logger.warning(
                "release %s: training rows repeat the picture of another %s: the guarantee for "
                "such a picture is the weaker guarantee for a group; for the full guarantee, "
                "remove the copies listed in problems.csv beside the split tables, and make a "
                "release with another name",
                self.name, "row" if self.unit == "image" else "patient",
            )  # fmt: skip

    def _draw_head(self, features: JobFeatures) -> tuple[Heads, Block, list[Block]]:
        """Draws all that is random: the head, and its test result, calibration and tables, if any.

        With several sites this is the total of what all have sent, and the second value says so.
        """
        site, exchange = self.site, self.exchange
        if site is None or exchange is None:
            heads, *blocks = self._fit_and_measure(features, SystemEntropy(), None)
            return heads, None, blocks
        features = replace(features, agreed_test_n=exchange.agreement.test_n)
        while True:
            rounds = exchange.read_rounds()
            if exchange.has_sent(number := len(rounds) + 1):
                site.send_all_again()
                site.require_round(exchange, number)
                continue
            shared = site.open_sums(exchange.agreement, rounds, self.method.running_sums or ())
            try:
                # the sites share no random numbers but public ones, such as initial weights
                heads, *blocks = self._fit_and_measure(features, SEEDED, shared)
            except SumsMissing as missing:
                site.send_sums(exchange, rounds, missing)
            else:
                return heads, site.describe(shared, exchange.agreement, unit=self.unit), blocks

    def _fit_and_measure(
        self, features: JobFeatures, entropy: Entropy, shared: SharedSums | None
    ) -> tuple[Heads, Block, Block, Block]:
        kept: dict[str, torch.Tensor] | None = {} if self.options.monitor else None
        heads = fit_heads(
            self.method,
            features.train,
            self.plan,
            [_HEAD],
            entropy=entropy,
            running=self.running,
            shared=shared,
            kept=kept,
        )
        calibrated = self._calibrate_head(heads, features, shared)
        calibration = Calibration.from_block(calibrated) if calibrated else None
        evaluation = self._evaluate_head(heads, features, calibration, shared)
        if self.options.calibrate and calibrated is None and evaluation and self.test_plan:
            calibrated = calibrate_from_counts(evaluation, self.test_plan)
        if kept is not None:
            heads = self._add_directions(heads, kept)
        watched = self._monitor_head(heads, features, calibrated, shared)
        return heads, evaluation, calibrated, watched

    def _add_directions(self, heads: Heads, kept: Mapping[str, torch.Tensor]) -> Heads:
        """Adds the directions that the released moments show; they cost nothing more."""
        centre, name = heads.transforms[0].arrays.get(CENTRE), moment_name(self.plan)
        typical = find_directions(
            None if centre is None else centre.cpu().numpy(),
            kept[name] if name else None,
            dimension=self.stores[0].dimension,
        )
        return heads if typical is None else replace(heads, typical=typical[None])

    def _monitor_head(
        self, heads: Heads, features: JobFeatures, calibrated: Block, shared: SharedSums | None
    ) -> Block:
        if self.monitor_plan is None or self.test_price is None:
            return None
        link = self.method.link_on(features.multi_label)
        return monitor_head(
            heads,
            features,
            self.monitor_plan,
            SystemEntropy(),
            probe_norm=self._reference_backbone().probe["norm"],
            calibration=Calibration.from_block(calibrated) if calibrated else None,
            link="softmax" if calibrated else link,
            composition=monitor_words(self.unit, self.monitor_plan, self.test_price),
            shared=shared,
        )

    def _calibrate_head(
        self, heads: Heads, features: JobFeatures, shared: SharedSums | None
    ) -> dict[str, Any] | None:
        plan = self.calibration_plan
        together = self._compose_price(self.test_plan, plan)
        if plan is None or together is None:
            return None
        words = calibration_words(self.unit, plan, together)
        return calibrate_head(
            heads, features, plan, SystemEntropy(), composition=words, shared=shared
        )

    def _evaluate_head(
        self,
        heads: Heads,
        features: JobFeatures,
        calibration: Calibration | None,
        shared: SharedSums | None,
    ) -> dict[str, Any] | None:
        if self.test_plan is None:
            return None
        return evaluate_heads(
            heads,
            features,
            self.test_plan,
            SystemEntropy(),
            metric=self.metric,
            link=self.method.link_on(features.multi_label),
            composition=composition_words(
                self.plan, self.test_plan, split=self.dataset.public_split().rule
            ),
            calibration=calibration,
            keep_counts=self.options.calibrate is not None,
            shared=shared,
        )

    def _describe_bundle(self, backbone: BackboneFacts, heads: Heads) -> BundleFacts:
        store = self.stores[0]
        return BundleFacts(
            name=self.name,
            study=self.study.study,
            dataset=self.options.dataset,
            dpprobe=code_version(),
            class_names=store.class_names,
            multi_label=store.multi_label,
            dimension=store.dimension,
            backbone=backbone,
            head=describe_head(
                self.method, heads, method=self.options.method, multi_label=store.multi_label
            ),
            card=CardFacts(**self.options.card.model_dump()),
        )

    def _state_promise(
        self,
        facts: BundleFacts,
        evaluation: Mapping[str, Any] | None,
        calibration: Mapping[str, Any] | None,
        monitor: Mapping[str, Any] | None,
        *,
        choice: Mapping[str, Any],
        evidence: Mapping[str, Any] | None,
        entry: Entry,
        sites: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        return release_statement(
            self.plan,
            method=self.options.method,
            options=self.method,
            study=self.study.study,
            public_data=facts.backbone.public_data,
            file_hashes={path: sha256_file(Path(path)) for path in self.method.input_files()},
            evaluation=evaluation,
            choice=choice,
            ledger=self.ledger.compute_spent(self.delta).to_block(
                entry=entry.number, unit=self.unit, delta=self.delta
            ),
            evidence=evidence,
            subsample=public_subsample(self.dataset),
            chosen_from=describe_choice(self.method, self.facts),
            parts=facts.hash_parts(),
            calibration=calibration,
            predecessor=self.predecessor,
            cohort=None
            if self.chain is None
            else self.chain.describe(str(self.options.cohort), n=self.plan.n, unit=self.unit),
            monitor=monitor,
            sites=sites,
        )

    def _reference_backbone(self) -> BackboneFacts:
        store = self.stores[0]
        first = store.shards[0]
        header = store.read_header(first)
        if header.precision is None or first.probe is None:
            raise DataError(
                f"{store.path.with_name(first.file)}: an earlier dpprobe wrote it, without "
                "recording the precision of the forward pass; delete it and run again"
            )
        options = self.study.backbones[self.options.backbone]
        checkpoint = getattr(options, "checkpoint", None)
        return BackboneFacts(
            name=self.options.backbone,
            options=dict(store.backbone_options),
            checkpoint=checkpoint and Path(checkpoint).name,
            weights_sha256=store.weights_sha256,
            architecture=store.architecture,
            pretrained_tag=store.pretrained_tag,
            trained=store.trained,
            preprocessing=dict(store.preprocessing),
            precision=header.precision,
            dtype=header.dtype,
            probe=dict(first.probe),
            versions=dict(header.versions),
        )


def _is_whole(folder: Path) -> bool:
    return (folder / files.SUMS_FILE).is_file() and not files.damaged_files(folder)


def _has_digest(folder: Path, digest: str | None) -> bool:
    return _is_whole(folder) and files.bundle_digest(folder) == digest
