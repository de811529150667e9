"""Compares two finished heads on a dataset's private test units, with one ledger entry.

The steps have the order of `release.make`, so that a crash at any moment is safe:

1. Bundles, features and limits are checked, and nothing is written.
2. The comparison is booked in the ledger of the dataset. Only the test units' epsilon grows.
3. Noise is drawn, and the record is written into a hidden file named after the entry.
4. The ledger closes the entry, with the hash of the record.
5. The record is copied to `<results_dir>/comparisons/<name>/comparison.json`.

A later run of an equal comparison returns the record, and draws no noise.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpprobe.errors import PrivacyError
from dpprobe.files.atomic_writes import atomic_path
from dpprobe.files.disk_errors import require_room
from dpprobe.files.json_files import RECORD_HASH, write_record
from dpprobe.privacy.entropy import SystemEntropy
from dpprobe.release.asked_comparison import AskedComparison
from dpprobe.release.asked_release import (
    count_promise,
    list_units,
    read_joined_limits,
    read_limits,
)
from dpprobe.release.bundle import bundle_digest
from dpprobe.release.compared_heads import share_right
from dpprobe.release.comparison import POWER, Noise, ReleasedSums, least_difference, release_sums
from dpprobe.release.comparison_record import has_hash, make_record, read_whole
from dpprobe.release.comparison_words import describe_result, round_up
from dpprobe.release.ledger.ledger_file import Entry, tell_of_entry
from dpprobe.release.release_folders import ReleaseFolders
from dpprobe.results.unit_counts import unit_codes
from dpprobe.study.reserved_names import RELEASES
from dpprobe.study.study_checks import dataset_faults
from dpprobe.training.fit_inputs import read_labels

logger = logging.getLogger("dpprobe")

HOPELESS = 0.2  # a comparison that cannot detect this difference is not worth its epsilon
_RECORD_BYTES = 100_000


class ComparisonTask(AskedComparison):
    """Makes a comparison, or returns the record of an earlier run."""

    def check_before(self, *, anyway: bool = False) -> None:
        """Runs all checks that precede a booking; `anyway` permits a comparison without power."""
        promise = count_promise(self.study, self.dataset, self.stores[0])
        faults = [*dataset_faults(self.study, self.dataset), promise.tested_fault()]
        for fault in filter(None, faults):
            raise PrivacyError(f"{self.title}: {fault}")
        if promise.count_copies(self.unit, tested=True):
            logger.warning(
                "%s: test rows repeat the picture of another %s; repeated pictures have the weaker "
                "guarantee for a group",
                self.title,
                "row" if self.unit == "image" else "patient",
            )
        self._check_heads()
        self.ledger.check_room(
            self.make_booking(),
            read_limits(self.study, self.dataset),
            joined_limits=read_joined_limits(self.study, self.dataset),
        )
        least = least_difference(Noise.of_plan(self.plan), self.metric, disagreement=HOPELESS)
        if not anyway and least > HOPELESS:
            raise PrivacyError(
                f"{self.title}: a difference would be found with probability {POWER:.0%} only from "
                f"{round_up(100 * least):.1f} points upwards, if the heads disagree on "
                f"{HOPELESS:.0%} of the test {self.words.many}. No epsilon was spent. Choose a "
                "larger --epsilon, use more test units, or add --anyway"
            )

    def _check_heads(self) -> None:
        """Refuses heads that were trained on another split, because the test units may include
        their training units; warns of heads whose split is unknown."""
        made = {entry.digest: entry for entry in self.ledger.read_entries() if entry.digest}
        for bundle in self.bundles:
            entry = made.get(bundle_digest(bundle.folder))
            if entry is None:
                logger.warning(
                    "%s: %s is not in %s; if it was trained on these test %s, it seems better than "
                    "it is",
                    self.title,
                    bundle.folder,
                    self.ledger.path,
                    self.words.many,
                )
            elif entry.booking.split != self.split:
                raise PrivacyError(
                    f"{self.title}: {bundle.folder} was trained on another split "
                    f"({entry.booking.split}) than today's ({self.split}), so its training "
                    f"{self.words.many} may be among the test {self.words.many}; compare heads of "
                    "one split"
                )

    def find_earlier(self) -> Mapping[str, Any] | None:
        """Finishes an earlier run and returns its record; None if there was no run.

        Raises PrivacyError if an earlier run's record can neither be returned nor finished.
        """
        for each in self.ledger.read_entries():
            if each.state == "abandoned" and each.booking.release == self.title:
                self._staged(each).unlink(missing_ok=True)
        entry = self.ledger.entry_of(self.title)
        if entry is None:
            self._check_listed()
            return None
        if entry.booking.identity.split()[0] != self.hash_options():
            raise PrivacyError(
                f"{self.title}: entry {entry.number} of {self.ledger.path} compared other heads, "
                "or with other options; give this comparison another --name"
            )
        staged = self._staged(entry)
        if entry.state == "open":
            if read_whole(staged) is None:
                raise PrivacyError(f"{self.title}: {self.ledger.explain_open(entry)}")
            self._close_entry(entry, staged)
        elif not has_hash(staged, entry.digest):
            if not has_hash(self.output, entry.digest):
                raise PrivacyError(
                    f"{self.title}: made (entry {entry.number} of {self.ledger.path}), but its "
                    f"record is neither {self.output} nor {staged}; restore the file with record "
                    f"hash {entry.digest}, or pass another --name, which spends epsilon again"
                )
            return read_whole(self.output)
        self._publish(staged)
        return read_whole(staged)

    def _check_listed(self) -> None:
        """Raises PrivacyError for results of this dataset that a lost ledger does not list."""
        releases = Path(self.study.results_dir) / RELEASES / self.name
        entries = self.ledger.read_entries()
        ReleaseFolders(self.title, releases, self.ledger.path).check_listed(self.dataset, entries)
        if self.output.exists():
            raise PrivacyError(
                f"{self.output}: a comparison that {self.ledger.path} does not list; restore the "
                "ledger, which records the spent budget, or pass another --name"
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
                self.title,
                self.ledger.path.parent,
                self.study.datasets[self.dataset],
                self.stores[0],
            ),
            other_units_than=self.study.datasets[self.dataset].other_units_than,
            datasets=self.study.datasets,
            joined_limits=read_joined_limits(self.study, self.dataset),
        )
        logger.info("%s: recorded as entry %d", self.title, entry.number)
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
