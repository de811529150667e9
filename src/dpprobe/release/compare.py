"""Answers which of two finished heads is better on a dataset's private test units: one booking.

The steps have the order of `release.make`, so that a crash at any moment is safe:

1. Bundles, features and limits are checked, and nothing is written.
2. The comparison is booked in the ledger of the dataset. Test units pay, training units do not.
3. Noise is drawn, and the record is written into a hidden file named after the entry.
4. The ledger closes the entry, with the hash of the record.
5. The record is copied to `<results_dir>/comparisons/<name>/comparison.json`.

A later run of an equal comparison returns the record, and draws no noise.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpprobe.artifacts import (
    RECORD_HASH,
    atomic_path,
    check_not_newer,
    hash_value,
    read_whole_record,
    require_room,
    write_record,
)
from dpprobe.backbones.feature_digest import probes_agree
from dpprobe.errors import ConfigError, DataError, PrivacyError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.scoring import one_head, score_rows
from dpprobe.options import NAME_PATTERN
from dpprobe.privacy.entropy import SystemEntropy
from dpprobe.privacy.noise_calibration import calibrate
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.statement_words import format_epsilon, format_small
from dpprobe.privacy.target import Target
from dpprobe.privacy.unit_words import UnitWords, unit_words
from dpprobe.release.asked_release import (
    count_promise,
    hash_data,
    list_units,
    name_split,
    read_limits,
)
from dpprobe.release.bundle import Bundle, bundle_digest
from dpprobe.release.comparison import (
    DIFFERENCE,
    POWER,
    Difference,
    comparison_mechanisms,
    estimate_difference,
    least_difference,
    release_difference,
)
from dpprobe.release.counted_units import find_usable, priced_values
from dpprobe.release.ledger.ledger import Ledger
from dpprobe.release.ledger.ledger_file import Booking, Entry, Part, tell_of_entry
from dpprobe.release.release_folders import ReleaseFolders
from dpprobe.release.verification.verify import read_verified
from dpprobe.results.metrics import right_predictions
from dpprobe.results.study_files import StudyFiles
from dpprobe.results.unit_counts import unit_codes
from dpprobe.study.reserved_names import COMPARISONS, RELEASES
from dpprobe.study.run_command import run_command
from dpprobe.study.study import Study
from dpprobe.study.study_checks import dataset_faults
from dpprobe.training.fit_inputs import FitInputs, read_labels
from dpprobe.training.job_features import STREAMED_ROWS
from dpprobe.training.plan_file import check_price

logger = logging.getLogger("dpprobe")

FORMAT, FORMAT_VERSION = "dpprobe-comparison", 1
RECORD_FILE = "comparison.json"
HOPELESS = 0.2  # the smallest difference in accuracy that is found is larger: nothing is learned
_FEW_DISAGREE = 0.1  # the share of disagreement of a typical pair of heads, for the stated power
_LONGEST_NAME = 164  # two names of releases, and `_vs_`
_RECORD_BYTES = 100_000

Stores = tuple[FeatureStore, FeatureStore]


@dataclass(frozen=True, kw_only=True)
class ComparisonTask:
    """A comparison of two verified bundles on a dataset of a study.

    Attributes:
      bundles: the heads A and B.
      disagreement: the largest share of test units on which A and B disagree; 1, or assumed.
      call: the options of `dpprobe run` that name the study's files, for messages.
    """

    study: Study
    bundles: tuple[Bundle, Bundle]
    dataset: str
    name: str
    epsilon: float
    disagreement: float = 1.0
    call: Sequence[str] = ()

    @classmethod
    def open_bundles(
        cls,
        study: Study,
        first: Path,
        second: Path,
        *,
        epsilon: float,
        dataset: str | None = None,
        name: str | None = None,
        disagreement: float = 1.0,
        call: Sequence[str] = (),
    ) -> ComparisonTask:
        """Verifies both bundles; `dataset` and `name` follow from the bundles if absent.

        Raises:
          DataError: if a bundle does not verify.
          ConfigError: for heads that cannot be compared, or an unknown dataset.
        """
        a, b = bundles = (read_verified(first), read_verified(second))
        _check_pair(a, b)
        if dataset is None and a.facts.dataset != b.facts.dataset:
            raise ConfigError(
                f"{first} is from dataset {a.facts.dataset}, {second} from {b.facts.dataset}; "
                "write --dataset NAME, the dataset to compare them on"
            )
        chosen = dataset or a.facts.dataset
        if chosen not in study.datasets:
            raise ConfigError(
                f"dataset {chosen}: not in the study, which has {', '.join(study.datasets)}; write "
                "--dataset NAME"
            )
        called = name or f"{a.facts.name}_vs_{b.facts.name}"
        if not re.fullmatch(NAME_PATTERN, called) or len(called) > _LONGEST_NAME:
            raise ConfigError(
                f"comparison {called!r}: write --name with lower-case letters, digits and "
                f"underscores, at most {_LONGEST_NAME} characters"
            )
        if not 0 < disagreement <= 1:
            raise ConfigError(f"--disagreement {disagreement:g}: write a share above 0, at most 1")
        return cls(
            study=study,
            bundles=bundles,
            dataset=chosen,
            name=called,
            epsilon=epsilon,
            disagreement=disagreement,
            call=call,
        )

    # data

    @property
    def _title(self) -> str:
        return f"comparison {self.name}"

    @property
    def output(self) -> Path:
        return Path(self.study.results_dir) / COMPARISONS / self.name / RECORD_FILE

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger.of_dataset(Path(self.study.data_dir), self.dataset)

    @cached_property
    def unit(self) -> str:
        return self.study.dataset_unit(self.dataset)

    @property
    def words(self) -> UnitWords:
        return unit_words(self.unit, vectors=self.bundles[0].facts.backbone.takes_vectors)

    @cached_property
    def stores(self) -> tuple[Stores, Stores]:
        """The stored features of both splits, for each bundle's backbone."""
        first, second = (self._open_stores(bundle) for bundle in self.bundles)
        for one, other in zip(first, second, strict=True):
            same = one.ids == other.ids and one.dataset_fingerprint == other.dataset_fingerprint
            if not same or not np.array_equal(one.labels, other.labels):
                raise DataError(
                    f"{other.path}: its {one.split} rows are not those of {one.path}; run "
                    f"`{self._features_command}`, which makes the features of one dataset again"
                )
        return first, second

    @property
    def _features_command(self) -> str:
        return run_command(*self.call, targets=["features"])

    def _open_stores(self, bundle: Bundle) -> Stores:
        backbone = bundle.facts.backbone.name
        if backbone not in self.study.backbones:
            raise ConfigError(
                f"{bundle.folder}: its backbone {backbone} is not in the study, which has "
                f"{', '.join(self.study.backbones)}; add it under `backbones`"
            )
        files = StudyFiles(self.study, results=self.study.results_dir)
        paths = [Path(files.locate_manifest(self.dataset, backbone, s)) for s in ("train", "test")]
        for path in paths:
            if not path.is_file():
                raise DataError(
                    f"{path}: no stored features of backbone {backbone}; run "
                    f"`{self._features_command}`"
                )
        train, test = (FeatureStore(path) for path in paths)
        _check_store(bundle, test)
        return train, test

    @cached_property
    def split(self) -> str:
        return name_split(self.study.datasets[self.dataset], self.stores[0][0])

    @cached_property
    def plan(self) -> Plan:
        """The noise for the test units; raises PrivacyError if none meets epsilon and delta."""
        target = Target(
            n=FitInputs(self.stores[0][1], self.unit).n,
            epsilon=self.epsilon,
            delta=self.study.dataset_delta(self.dataset),
            accountant="pld",  # exact without sampling
            unit=self.unit,
        )
        cache = Path(self.study.results_dir) / "calibration"
        plan = calibrate(comparison_mechanisms(), target, cache=cache)
        check_price(plan)
        return plan

    @property
    def _deviation(self) -> float:
        return self.plan.find_mechanism(DIFFERENCE).noise_scale

    def _least(self, disagreement: float) -> float:
        return least_difference(
            self.plan.n, self._deviation, disagreement=disagreement, assumed=self.disagreement
        )

    # before anything is spent

    def describe_plan(self) -> list[str]:
        """Describes cost, noise and power; all numbers are public."""
        plan, unit = self.plan, self.words
        a, b = (bundle.facts.name for bundle in self.bundles)
        noise = self._deviation / plan.n
        lines = [
            f"Is B ({b}) better than A ({a}) on the {plan.n:,} test {unit.many} of {self.dataset}?",
            f"Cost: epsilon {format_epsilon(plan.realised_epsilon)} at delta "
            f"{format_small(plan.delta)} for each test {unit.one}; training {unit.many} pay "
            "nothing.",
            f"Noise: standard deviation {self._deviation:.3g} test {unit.many}, "
            f"{100 * noise:.2g} points of accuracy.",
            f"Smallest difference that is found with probability {POWER:.0%} (two-sided, 5%):",
        ]
        for share in sorted({min(_FEW_DISAGREE, self.disagreement), self.disagreement}):
            least = self._least(share)
            beyond = ", so none is found" if least > share else ""
            lines.append(
                f"  {_up(100 * least):.1f} points if A and B disagree on {100 * share:g}% of the "
                f"test {unit.many}{beyond}"
            )
        return lines

    def check_before(self, *, anyway: bool = False) -> None:
        """Runs all checks that precede a booking; `anyway` permits a comparison without power."""
        promise = count_promise(self.study, self.dataset, self.stores[0])
        faults = [*dataset_faults(self.study, self.dataset), promise.tested_fault()]
        for fault in filter(None, faults):
            raise PrivacyError(f"{self._title}: {fault}")
        if promise.count_copies(self.unit, tested=True):
            logger.warning(
                "%s: test rows repeat the picture of another %s; repeated pictures have the weaker "
                "guarantee for a group",
                self._title,
                "row" if self.unit == "image" else "patient",
            )
        self._check_heads()
        self.ledger.check_room(self.make_booking(), read_limits(self.study, self.dataset))
        if not anyway and (least := self._least(self.disagreement)) > HOPELESS:
            raise PrivacyError(
                f"{self._title}: only a difference of {_up(100 * least):.1f} points or more would "
                f"be found with probability {POWER:.0%}, so nothing would be learned. No epsilon "
                "was spent. Write a larger --epsilon, use more test units, assume a smaller "
                "--disagreement from public knowledge, or add --anyway"
            )

    def _check_heads(self) -> None:
        """Refuses heads that were trained on another split, whose test units may be these heads'
        training units; warns of heads whose split is unknown."""
        made = {entry.digest: entry for entry in self.ledger.read_entries() if entry.digest}
        for bundle in self.bundles:
            entry = made.get(bundle_digest(bundle.folder))
            if entry is None:
                logger.warning(
                    "%s: %s is not in %s; if it was trained on these test %s, it seems better than "
                    "it is",
                    self._title,
                    bundle.folder,
                    self.ledger.path,
                    self.words.many,
                )
            elif entry.booking.split != self.split:
                raise PrivacyError(
                    f"{self._title}: {bundle.folder} was trained on another split "
                    f"({entry.booking.split}) than today's ({self.split}), so its training "
                    f"{self.words.many} may be among the test {self.words.many}; compare heads of "
                    "one split"
                )

    def make_booking(self) -> Booking:
        promise = self.study.dataset_promise(self.dataset)
        return Booking(
            release=self._title,  # with a space, which no release's name has
            study=self.study.study,
            unit=self.unit,
            split=self.split,
            parts=(Part.from_plan("test", self.plan),),
            identity=f"{self._hash_options()} {hash_data(self.stores[0])}",
            column=promise.unit_column if self.unit == "patient" else None,
            same_units_as=promise.same_units_as,
        )

    def _hash_options(self) -> str:
        return hash_value(
            {
                "heads": [bundle_digest(bundle.folder) for bundle in self.bundles],
                "dataset": self.dataset,
                "epsilon": self.epsilon,
                "disagreement": self.disagreement,
                "unit": self.unit,
                "delta": self.study.dataset_delta(self.dataset),
            }
        )

    # the comparison

    def find_earlier(self) -> Mapping[str, Any] | None:
        """Returns the record of an earlier run, which it finishes; None if there was no run.

        Raises PrivacyError for a comparison that can neither be returned nor finished.
        """
        for each in self.ledger.read_entries():
            if each.state == "abandoned" and each.booking.release == self._title:
                self._staged(each).unlink(missing_ok=True)
        entry = self.ledger.entry_of(self._title)
        if entry is None:
            self._check_listed()
            return None
        if entry.booking.identity.split()[0] != self._hash_options():
            raise PrivacyError(
                f"{self._title}: entry {entry.number} of {self.ledger.path} compared other heads, "
                "or with other options; give this comparison another --name"
            )
        staged = self._staged(entry)
        if entry.state == "open":
            if _read_whole(staged) is None:
                raise PrivacyError(f"{self._title}: {self.ledger.explain_open(entry)}")
            self._close_entry(entry, staged)
        elif not _has_hash(staged, entry.digest):
            if not _has_hash(self.output, entry.digest):
                raise PrivacyError(
                    f"{self._title}: made (entry {entry.number} of {self.ledger.path}), but its "
                    f"record is neither {self.output} nor {staged}; restore the file with "
                    f"record hash {entry.digest}, or write another --name, which spends epsilon "
                    "again"
                )
            return _read_whole(self.output)
        self._publish(staged)
        return _read_whole(staged)

    def _check_listed(self) -> None:
        """Raises PrivacyError for results of this dataset that a lost ledger does not list."""
        releases = Path(self.study.results_dir) / RELEASES / self.name
        entries = self.ledger.read_entries()
        ReleaseFolders(self._title, releases, self.ledger.path).check_listed(self.dataset, entries)
        if self.output.exists():
            raise PrivacyError(
                f"{self.output}: a comparison that {self.ledger.path} does not list; restore the "
                "ledger, which records the spent budget, or write another --name"
            )

    def run(self) -> Mapping[str, Any]:
        """Books and makes the comparison, after `check_before`; returns its record."""
        test, codes = [stores[1] for stores in self.stores], None
        if self.unit == "patient":
            codes = unit_codes(test[0].units)
        pairs = zip(self.bundles, test, strict=True)
        first, second = (share_right(bundle, store) for bundle, store in pairs)
        self.output.parent.mkdir(parents=True, exist_ok=True)
        require_room(self.output.parent, _RECORD_BYTES)
        entry = self.ledger.book_release(
            self.make_booking(),
            read_limits(self.study, self.dataset),
            units=list_units(
                self._title,
                self.ledger.path.parent,
                self.study.datasets[self.dataset],
                self.stores[0],
            ),
            other_units_than=self.study.datasets[self.dataset].other_units_than,
            datasets=self.study.datasets,
        )
        logger.info("%s: recorded as entry %d", self._title, entry.number)
        with tell_of_entry(f"{entry.number} of {self.ledger.path}"):
            released = release_difference(first, second, codes, self.plan, SystemEntropy())
            staged = self._staged(entry)
            write_record(staged, self._make_record(released, entry))
            self._close_entry(entry, staged)
            self._publish(staged)
        record = _read_whole(staged)
        assert record is not None
        return record

    def _make_record(self, released: float, entry: Entry) -> dict[str, Any]:
        found = estimate_difference(
            released, self.plan.n, self._deviation, disagreement=self.disagreement
        )
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "name": self.name,
            "study": self.study.study,
            "dataset": self.dataset,
            "heads": [
                {"name": bundle.facts.name, "sha256": bundle_digest(bundle.folder)}
                for bundle in self.bundles
            ],
            "entry": entry.number,
            "metric": "accuracy",
            "unit": self.unit,
            **priced_values(self.plan),
            "disagreement": self.disagreement,
            "released": released,
            "difference": found.value,
            "interval": [found.low, found.high],
        }

    def _staged(self, entry: Entry) -> Path:
        return self.output.with_name(f".entry-{entry.number}.json")

    def _close_entry(self, entry: Entry, staged: Path) -> None:
        record = _read_whole(staged)
        assert record is not None
        try:
            self.ledger.close_entry(entry.number, record[RECORD_HASH])
        except PrivacyError:
            staged.unlink()  # the entry was abandoned while this job ran
            raise

    def _publish(self, staged: Path) -> None:
        with atomic_path(self.output) as temporary:
            temporary.write_bytes(staged.read_bytes())

    def describe_result(self, record: Mapping[str, Any]) -> list[str]:
        """States which head is better, with the interval and what it covers."""
        a, b = (head["name"] for head in record["heads"])
        low, high = record["interval"]
        better = Difference(record["difference"], low, high).better
        ends = f"{math.floor(1000 * low) / 10:+.1f} to {math.ceil(1000 * high) / 10:+.1f}"
        verdict = {
            1: f"B ({b}) is better than A ({a})",
            0: f"A ({a}) is better than B ({b})",
            None: f"No difference was found between A ({a}) and B ({b})",
        }[better]
        unit, share = self.words, record["disagreement"]
        assumed = (
            f", if A and B disagree on at most {100 * share:g}% of them, as was assumed"
            if share < 1
            else ""
        )
        lines = [
            f"{verdict}: accuracy of B minus A {100 * record['difference']:+.1f} points (95% CI "
            f"{ends}).",
            f"The interval covers the noise and the choice of the {record['n']:,} test "
            f"{unit.many}{assumed}.",
        ]
        if better is None:
            lines.append("This does not show that A and B are equally good.")
        return [*lines, f"{self.output}: entry {record['entry']} of {self.ledger.path}"]


def share_right(bundle: Bundle, store: FeatureStore) -> npt.NDArray[np.float64]:
    """Returns the share of each row's labels that a head has right, [rows]; NaN for null rows."""
    heads = one_head(bundle.weights, bundle.arrays, bundle.facts.head.read_options().normalize)
    labels, shares = read_labels(store), np.full(store.rows, np.nan)
    for start, block in store.read_blocks(STREAMED_ROWS):
        scores = score_rows(heads, block)[0]
        if bundle.calibration is not None:
            scores = bundle.calibration.rescale(scores)
        stop = start + len(block)
        right = right_predictions(scores, labels[start:stop], link=bundle.link)
        each = right.reshape(len(right), -1).mean(axis=1)
        shares[start:stop] = np.where(find_usable(scores), each, np.nan)
    return shares


def _check_pair(first: Bundle, second: Bundle) -> None:
    ours, theirs = first.facts, second.facts
    if (ours.class_names, ours.multi_label) != (theirs.class_names, theirs.multi_label):
        raise ConfigError(
            f"{first.folder} has classes {_name_classes(first)}, {second.folder} has "
            f"{_name_classes(second)}; compare heads of the same classes in the same order"
        )
    if bundle_digest(first.folder) == bundle_digest(second.folder):
        raise ConfigError(f"{second.folder}: the same head as {first.folder}; name another bundle")


def _name_classes(bundle: Bundle) -> str:
    names = bundle.facts.class_names
    more = "" if len(names) <= 5 else f" and {len(names) - 5} more"
    return f"{', '.join(names[:5])}{more}"


def _check_store(bundle: Bundle, store: FeatureStore) -> None:
    """Raises DataError unless a store has the features that a bundle's head was trained on."""
    facts, first = bundle.facts, store.shards[0]
    backbone = facts.backbone
    fault = None
    if store.weights_sha256 != backbone.weights_sha256:
        fault = f"weights have SHA-256 {store.weights_sha256}, not {backbone.weights_sha256}"
    elif store.dimension != facts.dimension:
        fault = f"dimension is {store.dimension}, not {facts.dimension}"
    elif store.preprocessing != backbone.loaded_preprocessing:
        fault = "preprocessing differs"
    elif store.read_header(first).dtype != backbone.dtype:
        fault = f"features are stored as {store.read_header(first).dtype}, not {backbone.dtype}"
    elif first.probe is None or not probes_agree(first.probe, backbone.probe):
        fault = "features of the test image differ"
    elif (tuple(store.class_names), store.multi_label) != (facts.class_names, facts.multi_label):
        fault = "classes differ"
    if fault:
        raise DataError(
            f"{store.path}: not features for {bundle.folder}: {fault}; extract features with the "
            "backbone of the bundle"
        )


def _read_whole(path: Path) -> Mapping[str, Any] | None:
    """Reads a comparison's record; None if missing or damaged, DataError for a newer version."""
    try:
        record = read_whole_record(path)
    except (OSError, ValueError):
        return None
    if not (isinstance(record, dict) and record.get("format") == FORMAT and RECORD_HASH in record):
        return None
    check_not_newer(path, record, kind=FORMAT, version=FORMAT_VERSION)
    return record


def _has_hash(path: Path, digest: str | None) -> bool:
    record = _read_whole(path)
    return record is not None and record[RECORD_HASH] == digest


def _up(points: float) -> float:
    return math.ceil(10 * points - 1e-9) / 10
