"""Makes a release: one head with fresh noise, an entry in the ledger, and a bundle.

The order of steps makes a crash at any moment of a release safe:

1. All checks run, and nothing is written.
2. The release is booked in the ledger of its dataset, which is on the disk before step 3.
3. Noise is drawn: the head is trained, and measured on test units if the study requests this.
4. The bundle is written into a hidden folder named after the entry, then renamed to `.staged`.
5. The ledger closes the entry, with the digest of the staged bundle.
6. The bundle's files are copied to the release's folder. The hidden folder is not removed, so the
   next run can restore files that a person or Snakemake removed from the bundle.

After a crash between steps 2 and 4 the entry is open, without a complete bundle. A new head would
be a second release, so later runs refuse until a person abandons the entry. The run after that
removes the entry's files. After a crash between steps 4 and 6 the next run continues
with the staged bundle, and draws no noise. A release is final: a run that finds a complete bundle
leaves the bundle unchanged, even if options or data have changed.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpprobe.code_version import code_version
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
from dpprobe.release.asked_release import (
    AskedRelease,
    hash_data,
    hash_options,
    list_units,
    read_joined_limits,
    read_limits,
)
from dpprobe.release.bundle import (
    BundleFacts,
    CardFacts,
    bundle_digest,
    published_options,
)
from dpprobe.release.described_backbone import describe_backbone
from dpprobe.release.documents.release_statement import describe_test_units, release_statement
from dpprobe.release.leak_check import check_published
from dpprobe.release.ledger.ledger_file import Entry, tell_of_entry
from dpprobe.release.packing import describe_head, pack_head
from dpprobe.release.planned_release import PlannedRelease
from dpprobe.release.release_folders import ReleaseFolders, note_releases
from dpprobe.release.transport import Blocks, Draw, Transport
from dpprobe.release.usefulness import check_usefulness
from dpprobe.release_part_registry import load_asked
from dpprobe.shown_text import join_lines
from dpprobe.study.release_data import release_delta_fault, release_delta_warning
from dpprobe.study.study_checks import release_faults
from dpprobe.training.job_features import JobFeatures, read_job_features
from dpprobe.training.public_file_check import PrivateData

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("dpprobe")

# The seed number of a release's only head; no random number derives from this seed.
_HEAD = 0
DOCUMENTS_BYTES = 1_000_000  # bytes of disk space for a bundle without weights


class ReleaseTask(AskedRelease):
    """Makes a release, or finishes an interrupted one; does not change a finished release.

    A failed check books nothing in the ledger.
    """

    @cached_property
    def folders(self) -> ReleaseFolders:
        return ReleaseFolders(self.name, self.output, self.ledger.path)

    @cached_property
    def transport(self) -> Transport:
        asked = load_asked(self.options)
        opened = (steps.open_transport(self, options) for _, steps, options in asked)
        return next((each for each in opened if each is not None), Transport())

    def plan_release(self) -> PlannedRelease:
        """Plans the release for the current agreement of sites, which may change during a wait."""
        return PlannedRelease(release=self, transport=self.transport)

    def run(self, *, wait_minutes: float | None = 0) -> None:
        """Makes or finishes the release; `wait_minutes` None waits as long as `sites` states."""
        self.transport.run(self._finish_or_make, wait_minutes)

    def make_offer(self) -> tuple[Any, Path]:
        """Writes this site's signed offer to the other sites; returns the offer and its file."""
        return self.transport.make_offer(self._prepare_offer)

    def _prepare_offer(self) -> None:
        self._drop_abandoned()
        _check_study(self)

    def _finish_or_make(self) -> None:
        if not self.finish_earlier():
            self.make_release()

    # files of an earlier run

    def _drop_abandoned(self) -> None:
        """Removes files of this release's abandoned entries, because nobody may see their heads."""
        for entry in self.ledger.read_entries():
            if entry.state == "abandoned" and entry.booking.release == self.name:
                for steps in self.plan_release().steps.values():
                    steps.drop(entry)
                self.folders.drop(entry)

    def finish_earlier(self) -> bool:
        """Keeps or finishes the release of an earlier run; returns False if there is none.

        Raises PrivacyError if the earlier release can neither be kept nor finished.
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
        planned = self.plan_release()
        blocks = _check_release(planned)
        features = _read_features(planned)
        check_published(
            {
                "backbone": describe_backbone(self).model_dump(mode="json"),
                "method": published_options(planned.method),
                "card": self.options.card.model_dump(mode="json"),
                "predecessor": blocks.get("predecessor") or {},
            }
        )
        self.output.parent.mkdir(parents=True, exist_ok=True)
        require_room(self.output.parent, DOCUMENTS_BYTES)
        entry = planned.agreed.find_open() or _book_release(planned)
        logger.info("release %s: recorded as entry %d", self.name, entry.number)
        planned.agreed.note_booked()
        with tell_of_entry(f"{entry.number} of {self.ledger.path}"):
            fit = partial(_fit_and_measure, planned)
            draw = planned.agreed.draw_head(fit, features, planned.method)
            for steps in planned.steps.values():
                steps.keep(draw.heads, entry)
            blocks |= {name: block for name, block in draw.blocks.items() if block is not None}
            staged = self.folders.staged(entry)
            facts, statement = _describe_bundle(planned, draw.heads, blocks, entry)
            sign_key = self.options.sign_key
            when_there_is_room(
                staged.parent,
                sum(each.nbytes for each in draw.heads.released_arrays().values())
                + draw.heads.weights.nbytes
                + DOCUMENTS_BYTES,
                lambda: pack_head(
                    self.folders.partial(entry),
                    staged,
                    facts,
                    draw.heads,
                    statement=statement,
                    sign_key=resolve_path(sign_key) if sign_key else None,
                ),
            )
            self._close_entry(entry, staged)
            self.folders.publish(staged)

    def _close_entry(self, entry: Entry, staged: Path) -> None:
        try:
            self.ledger.close_entry(entry.number, bundle_digest(staged))
        except PrivacyError:
            shutil.rmtree(staged)  # the entry was abandoned while this job ran
            raise


# the steps of a new release


def _check_study(asked: AskedRelease) -> None:
    """Raises ConfigError for wrong release options, before a site's offer and before a booking."""
    store = asked.stores[0]
    faults = release_faults(
        asked.study,
        asked.name,
        multi_label=store.multi_label,
        classes=store.num_classes,
        class_names=store.class_names,
    )
    if faults:
        raise ConfigError(join_lines(faults))


def _check_release(planned: PlannedRelease) -> Blocks:
    """Runs the checks that need no features; returns the statement blocks known so far."""
    asked = planned.release
    _check_study(asked)
    if fault := release_delta_fault(asked.study, asked.name, planned.plan.n):
        raise PrivacyError(fault)
    if warning := release_delta_warning(asked.study, asked.name, planned.plan.n):
        logger.warning("release %s: %s", asked.name, warning)
    if planned.test_price is not None and (fault := asked.promise.tested_fault()):
        raise PrivacyError(f"release {asked.name}: {fault}")
    if planned.plan.patients is not None:
        planned.inputs.check_patients(planned.plan.patients.images)
    if not asked.options.allow_useless:
        told = [each for one in planned.steps.values() if (each := one.count_useful()) is not None]
        check_usefulness(
            asked.name,
            benchmark=None if told else asked.benchmark,
            facts=told[0] if told else planned.facts,
            # only with `auto` may a release balance classes and its cell not, or vice versa
            balanced=planned.method.releases_priors if asked.asked_method.is_undecided else None,
        )
    planned.agreed.check(planned.method, planned.plan.n)
    in_order = sorted(planned.steps.items(), key=lambda item: item[1].slow)
    checked = {name: steps.check() for name, steps in in_order}
    _warn_of_copies(asked, tested=planned.test_price is not None)
    return {name: block for name, block in checked.items() if block is not None}


def _read_features(planned: PlannedRelease) -> JobFeatures:
    """Reads both splits, after comparing the training examples with all public files."""
    asked = planned.release
    train, test = asked.stores
    private = PrivateData.of_study(
        asked.study,
        dataset=asked.options.dataset,
        backbone=asked.options.backbone,
        class_names=train.class_names,
        manifests=(asked.train, asked.test),
    )
    features = read_job_features(
        replace(planned.inputs, public=private.check_public(planned.method)),
        test,
        device="cpu",
        memory_mb=asked.study.features.memory_mb,
        headline=asked.options.test_metric or "accuracy",
    )
    place = planned.inputs.place_fit(planned.method, asked.study.device)
    features.train.exact_device = resolve_device(place.exact_sums)
    require_exact_products(features.train.exact_device)
    return replace(features, public_test_n=planned.agreed.test_n)


def _book_release(planned: PlannedRelease) -> Entry:
    asked = planned.release
    note_releases(asked.ledger.path, asked.output.parent)
    folder = asked.ledger.path.parent
    return asked.ledger.book_release(
        planned.make_booking(),
        read_limits(asked.study, asked.options.dataset),
        units=list_units(f"release {asked.name}", folder, asked.dataset, asked.stores),
        other_units_than=asked.dataset.other_units_than,
        datasets=asked.study.datasets,
        joined_limits=read_joined_limits(asked.study, asked.options.dataset),
    )


def _fit_and_measure(
    planned: PlannedRelease, features: JobFeatures, entropy: Entropy, shared: Shared | None
) -> Draw:
    """Trains the head and makes the measurements of all release parts; draws all noise."""
    parts = planned.steps.values()
    sums = (each.continue_sums() for each in parts)
    moments: dict[str, torch.Tensor] = {}
    heads = fit_heads(
        planned.method,
        features.train,
        planned.plan,
        [_HEAD],
        entropy=entropy,
        running=next((each for each in sums if each is not None), None),
        shared=shared,
        kept=moments,
    )
    for each in parts:
        heads = each.extend_head(heads, moments)
    draw = Draw(heads=heads, features=features, open_entropy=SystemEntropy, shared=shared)
    while waiting := [name for name in planned.steps if name not in draw.blocks]:
        ready = (n for n in waiting if not {*planned.steps[n].needs()} & {*waiting})
        name = next(ready)
        draw.blocks[name] = planned.steps[name].measure(draw)
    return draw


def _warn_of_copies(asked: AskedRelease, *, tested: bool) -> None:
    """Warns of images that occur in several units, without stating their number."""
    for split in ("training", "test") if tested else ("training",):
        if asked.promise.count_copies(asked.unit, tested=split == "test"):
            logger.warning(
                "release %s: %s rows repeat the picture of another %s. Repeated pictures have the "
                "weaker guarantee for a group. For the full guarantee, remove the copies listed in "
                "problems.csv next to the split tables, and make a release with another name",
                asked.name,
                split,
                "row" if asked.unit == "image" else "patient",
            )
    if tested and asked.promise.test_copies is None:
        logger.warning(
            "release %s: nobody counted copies among the test rows, because an earlier version of "
            "dpprobe wrote %s; delete this file and run the study again to count them",
            asked.name,
            Path(asked.study.data_dir) / asked.options.dataset / "dataset.json",
        )


def _describe_bundle(
    planned: PlannedRelease, heads: Heads, blocks: Blocks, entry: Entry
) -> tuple[BundleFacts, dict[str, Any]]:
    """Returns the content of `bundle.json` and the privacy statement."""
    asked, method, tested = planned.release, planned.method, planned.test_price
    store, options, promise = asked.stores[0], asked.options, asked.promise
    facts = BundleFacts(
        name=asked.name,
        study=asked.study.study,
        dataset=options.dataset,
        dpprobe=code_version(),
        class_names=store.class_names,
        multi_label=store.multi_label,
        dimension=store.dimension,
        backbone=describe_backbone(asked),
        head=describe_head(method, heads, method=options.method, multi_label=store.multi_label),
        card=CardFacts(**options.card.model_dump()),
    )
    stated = {name: steps.state(entry) for name, steps in planned.steps.items()}
    compared = promise.compared
    if compared == ("bytes",) and entry.booking.pixels and not asked.dataset.holds_vectors:
        compared = ("bytes", "pixels")  # hashed for the ledger
    return facts, release_statement(
        planned.plan,
        method,
        facts,
        file_hashes={path: sha256_file(Path(path)) for path in method.input_files()},
        subsample=promise.subsample,
        chosen_from=describe_choice(method, planned.facts),
        blocks=blocks | {name: block for name, block in stated.items() if block is not None},
        test_units=None
        if tested is None
        else describe_test_units(n=tested.n, rule=promise.split_rule, compared=compared),
    )
