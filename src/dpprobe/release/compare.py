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
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dpprobe.data.promise_facts import promise_facts
from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.files.atomic_writes import atomic_path
from dpprobe.files.disk_errors import require_room
from dpprobe.files.json_files import RECORD_HASH, write_record
from dpprobe.json_values import hash_value
from dpprobe.options import NAME_PATTERN
from dpprobe.privacy.entropy import SystemEntropy
from dpprobe.privacy.noise_calibration import calibrate
from dpprobe.privacy.plan import Plan
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
from dpprobe.release.compared_heads import (
    Bundles,
    Stores,
    check_pair,
    open_stores,
    share_right,
    stated_frequencies,
)
from dpprobe.release.comparison import (
    POWER,
    Metric,
    Noise,
    ReleasedSums,
    comparison_mechanisms,
    least_difference,
    mean_frequencies,
    release_sums,
)
from dpprobe.release.comparison_record import has_hash, make_record, read_whole
from dpprobe.release.comparison_words import (
    describe_imbalance,
    describe_plan,
    describe_result,
    round_up,
)
from dpprobe.release.ledger.ledger import Ledger
from dpprobe.release.ledger.ledger_file import Booking, Entry, Part, tell_of_entry
from dpprobe.release.release_folders import ReleaseFolders
from dpprobe.release.verification.verify import read_verified
from dpprobe.results.unit_counts import unit_codes
from dpprobe.study.reserved_names import COMPARISON_FILE, COMPARISONS, RELEASES
from dpprobe.study.study import Study
from dpprobe.study.study_checks import dataset_faults
from dpprobe.training.fit_inputs import FitInputs, read_labels
from dpprobe.training.plan_file import check_price

logger = logging.getLogger("dpprobe")

HOPELESS = 0.2  # if heads that differ by this much are not told apart, nothing is learned
_LONGEST_NAME = 164  # two names of releases, and `_vs_`
_RECORD_BYTES = 100_000


@dataclass(frozen=True, kw_only=True)
class ComparisonTask:
    """A comparison of two verified bundles on a dataset of a study.

    Attributes:
      bundles: the heads A and B.
      macro: compare by macro accuracy, not by accuracy.
      call: the options of `dpprobe run` that name the study's files, for messages.
    """

    study: Study
    bundles: tuple[Bundle, Bundle]
    dataset: str
    name: str
    epsilon: float
    macro: bool = False
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
        macro: bool = False,
        call: Sequence[str] = (),
    ) -> ComparisonTask:
        """Verifies both bundles; `dataset` and `name` follow from the bundles if absent.

        Raises:
          DataError: if a bundle does not verify.
          ConfigError: for heads that cannot be compared, or an unknown dataset.
        """
        a, b = bundles = (read_verified(first), read_verified(second))
        check_pair(a, b)
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
        if macro:
            _check_macro(bundles, chosen)
        return cls(
            study=study,
            bundles=bundles,
            dataset=chosen,
            name=called,
            epsilon=epsilon,
            macro=macro,
            call=call,
        )

    # data

    @property
    def _title(self) -> str:
        return f"comparison {self.name}"

    @property
    def output(self) -> Path:
        return Path(self.study.results_dir) / COMPARISONS / self.name / COMPARISON_FILE

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
        return open_stores(self.study, self.dataset, self.bundles, call=self.call)

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

    @cached_property
    def metric(self) -> Metric:
        """The metric, with the mean of the classes' frequencies that the bundles state."""
        return Metric(mean_frequencies(self._stated) if self.macro else ())

    @cached_property
    def _stated(self) -> list[tuple[float, ...]]:
        return stated_frequencies(self.bundles, self.dataset)

    # before anything is spent

    def describe_plan(self) -> list[str]:
        """Describes cost, noise and power; all numbers are public."""
        names = [bundle.facts.name for bundle in self.bundles]
        lines = describe_plan(self.plan, self.metric, names, self.dataset, self.words)
        return lines if self.macro else [*lines, *describe_imbalance(self._stated)]

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
        least = least_difference(Noise.of_plan(self.plan), self.metric, disagreement=HOPELESS)
        if not anyway and least > HOPELESS:
            raise PrivacyError(
                f"{self._title}: only a difference of {round_up(100 * least):.1f} points or more "
                f"would be found with probability {POWER:.0%}, if the heads disagree on "
                f"{HOPELESS:.0%} of the test {self.words.many}, so nothing would be learned. No "
                "epsilon was spent. Write a larger --epsilon, use more test units, or add --anyway"
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
        promise = promise_facts(self.study.datasets[self.dataset])
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
                "metric": self.metric.name,
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
            if read_whole(staged) is None:
                raise PrivacyError(f"{self._title}: {self.ledger.explain_open(entry)}")
            self._close_entry(entry, staged)
        elif not has_hash(staged, entry.digest):
            if not has_hash(self.output, entry.digest):
                raise PrivacyError(
                    f"{self._title}: made (entry {entry.number} of {self.ledger.path}), but its "
                    f"record is neither {self.output} nor {staged}; restore the file with "
                    f"record hash {entry.digest}, or write another --name, which spends epsilon "
                    "again"
                )
            return read_whole(self.output)
        self._publish(staged)
        return read_whole(staged)

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
        weights = self.metric.weigh_labels(read_labels(test[0])) if self.macro else None
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
            released = release_sums(
                first, second, codes, self.plan, SystemEntropy(), class_weights=weights
            )
            staged = self._staged(entry)
            write_record(staged, self._make_record(released, entry))
            self._close_entry(entry, staged)
            self._publish(staged)
        record = read_whole(staged)
        assert record is not None
        return record

    def _make_record(self, released: ReleasedSums, entry: Entry) -> dict[str, Any]:
        return make_record(
            self.bundles,
            self.metric,
            self.plan,
            released,
            name=self.name,
            study=self.study.study,
            dataset=self.dataset,
            unit=self.unit,
            entry=entry.number,
        )

    def _staged(self, entry: Entry) -> Path:
        return self.output.with_name(f".entry-{entry.number}.json")

    def _close_entry(self, entry: Entry, staged: Path) -> None:
        record = read_whole(staged)
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
        """States which head is better, and where the record and the booking are."""
        booked = f"{self.output}: entry {record['entry']} of {self.ledger.path}"
        return [*describe_result(record, self.words), booked]


def _check_macro(bundles: Bundles, dataset: str) -> None:
    """Raises ConfigError unless heads have one label per image and state classes' frequencies."""
    if bundles[0].facts.multi_label:
        raise ConfigError(
            "--metric macro_accuracy: it needs one label per image, but these heads have several; "
            "write --metric accuracy"
        )
    if not stated_frequencies(bundles, dataset):
        raise ConfigError(
            "--metric macro_accuracy: neither bundle states the classes' frequencies in "
            f"{dataset}; compare a release with `class_priors` or with `balanced: true`, or write "
            "--metric accuracy"
        )
