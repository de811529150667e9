"""Makes a release: one head with fresh noise, an entry in the ledger, and a bundle.

The order of steps makes a crash at any moment of a release safe:

1. All checks run, and nothing is written.
2. The release is booked in the ledger of its dataset, which is on the disk before step 3.
3. Noise is drawn: the head is trained, and measured on the test units if the study asks for this.
4. The bundle is written into a hidden folder named after the entry, then renamed to `.staged`.
5. The ledger closes the entry, with the digest of the staged bundle.
6. The bundle's files are copied to the release's folder. The hidden folder stays, so that the next
   run can restore files that a person or Snakemake removed from the bundle.

After a crash between steps 2 and 4 the entry is open, without a complete bundle. A new head would
be a second release, so the next run refuses until a person abandons the entry. A run after the
abandonment removes the entry's files. After a crash between steps 4 and 6 the next run continues
with the staged bundle, and draws no noise. A release is final: a run that finds a complete bundle
leaves the bundle unchanged, even if options or data have changed.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpprobe.devices import resolve_device
from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.files.disk_errors import require_room, when_there_is_room
from dpprobe.files.plain_files import sha256_file
from dpprobe.heads.auto import describe_choice
from dpprobe.heads.device_sums import require_exact_products
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.fitted import Heads
from dpprobe.options import resolve_path
from dpprobe.privacy.entropy import Entropy, SystemEntropy
from dpprobe.privacy.releases import Shared
from dpprobe.release.asked_release import AskedRelease, hash_data, hash_options, read_limits
from dpprobe.release.bundle import BundleFacts, CardFacts, bundle_digest, published_options
from dpprobe.release.documents.release_statement import describe_test_units, release_statement
from dpprobe.release.leak_check import check_published
from dpprobe.release.ledger.ledger_file import Entry, tell_of_entry
from dpprobe.release.packing import describe_head, pack_head
from dpprobe.release.release_folders import ReleaseFolders, note_releases
from dpprobe.release.transport import Blocks, Draw
from dpprobe.release.usefulness import check_usefulness
from dpprobe.shown_text import join_lines
from dpprobe.study.release_data import release_delta_fault, release_delta_warning
from dpprobe.study.study_checks import release_faults
from dpprobe.training.job_features import JobFeatures, read_job_features
from dpprobe.training.public_file_check import PrivateData
from dpprobe.versions import code_version

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("dpprobe")

# The seed number of a release's only head, from which no random number derives.
_HEAD = 0
DOCUMENTS_BYTES = 1_000_000  # disk space for a bundle without its weights


class ReleaseTask(AskedRelease):
    """Makes a release of a study, or finishes an interrupted release; keeps a finished release.

    A failed check books nothing in the ledger.
    """

    @cached_property
    def folders(self) -> ReleaseFolders:
        return ReleaseFolders(self.name, self.output, self.ledger.path)

    def run(self, *, wait_minutes: float | None = 0) -> None:
        """Makes or finishes the release; None waits for other sites as the option `sites` says."""
        self.transport.run(self._finish_or_make, wait_minutes)

    def make_offer(self) -> tuple[Any, Path]:
        """Writes this site's signed offer to the other sites; returns the offer and its file."""
        return self.transport.make_offer(self._prepare_offer)

    def _prepare_offer(self) -> None:
        self._drop_abandoned()
        self._check_study()

    def _finish_or_make(self) -> None:
        if not self.finish_earlier():
            self.make_release()

    # files of an earlier run

    def _drop_abandoned(self) -> None:
        """Removes files of this release's abandoned entries, whose heads nobody may see."""
        for entry in self.ledger.read_entries():
            if entry.state == "abandoned" and entry.booking.release == self.name:
                for steps in self.steps.values():
                    steps.drop(entry)
                self.folders.drop(entry)

    def finish_earlier(self) -> bool:
        """Keeps or finishes the release of an earlier run; False if a release must be made.

        Raises PrivacyError for a release that can neither be kept nor finished.
        """
        self._drop_abandoned()
        entry, folders = self.ledger.entry_of(self.name), self.folders
        if entry is None:
            self.transport.note_unbooked()
            folders.check_listed(self.options.dataset, self.ledger.read_entries())
            return False
        self._check_same(entry)
        if entry.state == "closed" and folders.has_digest(folders.output, entry.digest):
            logger.info(
                "release %s: unchanged, because a release is final (entry %d)",
                self.name,
                entry.number,
            )
            folders.touch_files()
            return True
        staged = folders.staged(entry)
        if entry.state == "open" and folders.is_whole(staged):
            self._close_entry(entry, staged)
            logger.info("release %s: completed from the files of an earlier run", self.name)
            folders.publish(staged)
            return True
        if entry.state == "closed" and folders.has_digest(staged, entry.digest):
            folders.publish(staged)
            return True
        if entry.state == "open" and self.transport.resumes:
            return False
        if entry.state == "closed":
            raise PrivacyError(folders.explain_lost(entry))
        stuck = self.ledger.explain_open(entry)
        raise PrivacyError(f"release {self.name}: {stuck}, then run again")

    def _check_same(self, entry: Entry) -> None:
        options, data = entry.booking.identity.split()
        if options != hash_options(self, self.options):
            raise PrivacyError(
                f"release {self.name}: entry {entry.number} of {self.ledger.path} was made with "
                "other options; a release is final: give this one another name"
            )
        if data != hash_data(self.stores):
            if entry.state == "open" and self.transport.resumes:
                raise PrivacyError(
                    f"release {self.name}: its data or features changed after it was recorded as "
                    f"entry {entry.number} of {self.ledger.path}; change them back"
                )
            logger.warning(
                "release %s: its data or features changed after it was made, but a release is "
                "final; for a head of the new data, make a release with another name",
                self.name,
            )

    # a new release

    def make_release(self) -> None:
        blocks = self._check_all()
        features = self._read_features()
        check_published(
            {
                "backbone": self.backbone.model_dump(mode="json"),
                "method": published_options(self.method),
                "card": self.options.card.model_dump(mode="json"),
                "predecessor": blocks.get("predecessor") or {},
            }
        )
        self.output.parent.mkdir(parents=True, exist_ok=True)
        require_room(self.output.parent, DOCUMENTS_BYTES)
        entry = self.transport.find_open() or self._book()
        logger.info("release %s: recorded as entry %d", self.name, entry.number)
        self.transport.note_booked()
        with tell_of_entry(f"{entry.number} of {self.ledger.path}"):
            draw = self.transport.draw_head(self._fit_and_measure, features)
            for steps in self.steps.values():
                steps.keep(draw.heads, entry)
            blocks |= {name: block for name, block in draw.blocks.items() if block is not None}
            staged = self.folders.staged(entry)
            self._pack(draw.heads, blocks, entry, staged)
            self._close_entry(entry, staged)
            self.folders.publish(staged)

    def _check_study(self) -> None:
        """Raises ConfigError for faulty release options, before a site's offer and any booking."""
        store = self.stores[0]
        faults = release_faults(
            self.study,
            self.name,
            multi_label=store.multi_label,
            classes=store.num_classes,
            class_names=store.class_names,
        )
        if faults:
            raise ConfigError(join_lines(faults))

    def _check_all(self) -> Blocks:
        """Runs the checks that need no features; returns the statement blocks known so far."""
        self._check_study()
        if fault := release_delta_fault(self.study, self.name, self.plan.n):
            raise PrivacyError(fault)
        if warning := release_delta_warning(self.study, self.name, self.plan.n):
            logger.warning("release %s: %s", self.name, warning)
        if self.test_price is not None and (fault := self.promise.tested_fault()):
            raise PrivacyError(f"release {self.name}: {fault}")
        if self.plan.patients is not None:
            self.inputs.check_patients(self.plan.patients.images)
        if not self.options.allow_useless:
            told = [each for one in self.steps.values() if (each := one.count_useful()) is not None]
            check_usefulness(
                self.name,
                benchmark=None if told else self.benchmark,
                facts=told[0] if told else self.facts,
                # only `auto` may balance a release and not its cell, or the reverse
                balanced=self.method.releases_priors if self.asked_method.is_undecided else None,
            )
        in_order = sorted(self.steps.items(), key=lambda item: item[1].slow)
        checked = {name: steps.check() for name, steps in in_order}
        _warn_of_copies(self)
        return {name: block for name, block in checked.items() if block is not None}

    def _read_features(self) -> JobFeatures:
        """Reads both splits, after comparing the training examples with all public files."""
        train, test = self.stores
        private = PrivateData.of_study(
            self.study,
            dataset=self.options.dataset,
            backbone=self.options.backbone,
            class_names=train.class_names,
            manifests=(self.train, self.test),
        )
        features = read_job_features(
            replace(self.inputs, public=private.check_public(self.method)),
            test,
            device="cpu",
            memory_mb=self.study.features.memory_mb,
            headline=self.options.test_metric or "accuracy",
        )
        place = self.inputs.place_fit(self.method, self.study.device)
        features.train.exact_device = resolve_device(place.exact_sums)
        require_exact_products(features.train.exact_device)
        return replace(features, agreed_test_n=self.transport.agreed_test_n)

    def _book(self) -> Entry:
        note_releases(self.ledger.path, self.output.parent)
        return self.ledger.book_release(
            self.make_booking(),
            read_limits(self.study, self.options.dataset),
            units=self.list_units(),
            other_units_than=self.dataset.other_units_than,
            datasets=self.study.datasets,
        )

    def _close_entry(self, entry: Entry, staged: Path) -> None:
        try:
            self.ledger.close_entry(entry.number, bundle_digest(staged))
        except PrivacyError:
            shutil.rmtree(staged)  # the entry was abandoned while this job ran
            raise

    # training and measurements

    def _fit_and_measure(
        self, features: JobFeatures, entropy: Entropy, shared: Shared | None
    ) -> Draw:
        """Trains the head and measures it for all release parts; draws all noise."""
        parts = self.steps.values()
        sums = (each.continue_sums() for each in parts)
        moments: dict[str, torch.Tensor] = {}
        heads = fit_heads(
            self.method,
            features.train,
            self.plan,
            [_HEAD],
            entropy=entropy,
            running=next((each for each in sums if each is not None), None),
            shared=shared,
            kept=moments,
        )
        for each in parts:
            heads = each.extend_head(heads, moments)
        draw = Draw(heads=heads, features=features, open_entropy=SystemEntropy, shared=shared)
        while waiting := [name for name in self.steps if name not in draw.blocks]:
            ready = (n for n in waiting if not {*self.steps[n].needs()} & {*waiting})
            name = next(ready)
            draw.blocks[name] = self.steps[name].measure(draw)
        return draw

    # the bundle

    def _pack(self, heads: Heads, blocks: Blocks, entry: Entry, staged: Path) -> None:
        for name, steps in self.steps.items():
            if (block := steps.state(entry)) is not None:
                blocks[name] = block
        facts, sign_key = _describe_bundle(self, heads), self.options.sign_key
        statement = _state_promise(self, facts, blocks, entry)
        when_there_is_room(
            staged.parent,
            sum(each.nbytes for each in heads.released_arrays().values())
            + heads.weights.nbytes
            + DOCUMENTS_BYTES,
            lambda: pack_head(
                self.folders.partial(entry),
                staged,
                facts,
                heads,
                statement=statement,
                sign_key=resolve_path(sign_key) if sign_key else None,
            ),
        )


def _warn_of_copies(task: AskedRelease) -> None:
    """Warns of images that occur in several units, without stating their number."""
    tested = task.test_price is not None
    for split in ("training", "test") if tested else ("training",):
        if task.promise.count_copies(task.unit, tested=split == "test"):
            logger.warning(
                "release %s: %s rows repeat the picture of another %s. Repeated pictures have the "
                "weaker guarantee for a group. For the full guarantee, remove the copies listed in "
                "problems.csv beside the split tables, and make a release with another name",
                task.name,
                split,
                "row" if task.unit == "image" else "patient",
            )
    if tested and task.promise.test_copies is None:
        logger.warning(
            "release %s: nobody counted copies among the test rows, because an earlier version of "
            "dpprobe wrote %s; delete this file and run the study again to count them",
            task.name,
            Path(task.study.data_dir) / task.options.dataset / "dataset.json",
        )


def _describe_bundle(task: AskedRelease, heads: Heads) -> BundleFacts:
    store, options = task.stores[0], task.options
    return BundleFacts(
        name=task.name,
        study=task.study.study,
        dataset=options.dataset,
        dpprobe=code_version(),
        class_names=store.class_names,
        multi_label=store.multi_label,
        dimension=store.dimension,
        backbone=task.backbone,
        head=describe_head(
            task.method, heads, method=options.method, multi_label=store.multi_label
        ),
        card=CardFacts(**options.card.model_dump()),
    )


def _state_promise(
    task: AskedRelease, facts: BundleFacts, blocks: Blocks, entry: Entry
) -> dict[str, Any]:
    compared = task.promise.compared
    if compared == ("bytes",) and entry.booking.pixels and not task.dataset.holds_vectors:
        compared = ("bytes", "pixels")  # hashed for the ledger
    return release_statement(
        task.plan,
        task.method,
        facts,
        file_hashes={path: sha256_file(Path(path)) for path in task.method.input_files()},
        subsample=task.promise.subsample,
        chosen_from=describe_choice(task.method, task.facts),
        blocks=blocks,
        test_units=None
        if (tested := task.test_price) is None
        else describe_test_units(n=tested.n, rule=task.promise.split_rule, compared=compared),
    )
