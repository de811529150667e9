"""A cell in a training job: its inputs, its folders, and its state.

A cell is up to date if its files are complete, and current features, options and plan yield its
fingerprint and privacy statement.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpprobe.data.options import Headline
from dpprobe.errors import DataError, DiskError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.files.disk_errors import when_there_is_room
from dpprobe.files.json_files import read_json, write_json
from dpprobe.files.plain_files import read_bounded, sha256_file
from dpprobe.files.result_store import locate_partial, locate_stored, publish_files
from dpprobe.heads.auto import describe_choice
from dpprobe.heads.fit_device import FitPlace
from dpprobe.heads.fitted import CLASS_PRIORS, STUDENT_GAIN
from dpprobe.heads.options import MethodOptions
from dpprobe.json_values import hash_value
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.randomness import cell_seed
from dpprobe.privacy.statement import Declared, Statement
from dpprobe.privacy.target import Target
from dpprobe.results import metrics, uncertainty
from dpprobe.results.cell_files import CELL_FILES, METRICS_FILE, PAYLOAD_FILES, STATEMENT_FILE
from dpprobe.results.cell_record import (
    CellName,
    CellRecord,
    MetricSummary,
    SplitCounts,
    find_disagreement,
    parse_cell,
)
from dpprobe.results.halves import half_values
from dpprobe.results.unit_counts import class_counts, count_units, unit_codes
from dpprobe.training.fit_inputs import FitInputs

if TYPE_CHECKING:
    from dpprobe.training.cell_contents import CellContents
    from dpprobe.training.job_features import JobFeatures

logger = logging.getLogger("dpprobe")

RECORDS_BYTES = 100_000  # approximate bytes of a cell's files without weights and scores


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The values that a study sets for every cell, independent of the method.

    Attributes:
      study: the study's name.
      seeds: the number of heads; a cell has seeds 0 to `seeds` - 1.
      study_seed: the seed of the bootstrap over test examples; cells derive their seeds from it.
      metric: the headline metric that the study sets for the dataset; None for the default.
    """

    study: str
    seeds: int
    study_seed: int
    mode: str = "benchmark"
    metric: Headline | None = None


@dataclass(frozen=True, kw_only=True)
class CellTask:
    """A cell of a job: its data, options and plan, and its folders.

    Attributes:
      place: the devices of the fit, "auto" as in the study.
      allows: the bounds on attacks that the calibration stored; None if it stored none.
      near_duplicates: the counts of the near-duplicate check against public data, or NOT_RUN.
      headline: the metric that represents the cell.
      results: the study's results folder, with the store of finished cells.
      identity: all values that determine a cell; its fingerprint and seeds derive from them.
    """

    name: CellName
    asked: Asked
    options: MethodOptions
    place: FitPlace
    plan: Plan
    epsilon_all_heads: float
    allows: Mapping[str, Any] | None
    near_duplicates: Mapping[str, Any] | str
    train: FeatureStore
    headline: Headline
    results: Path
    identity: Mapping[str, Any]

    @property
    def published(self) -> Path:
        """The cell's folder among the results."""
        return self.name.folder(self.results / "cells")

    @property
    def stored(self) -> Path:
        """The cell's folder in the store."""
        return locate_stored(self.results, self.fingerprint)

    @cached_property
    def fingerprint(self) -> str:
        return hash_value(self.identity)

    @property
    def link(self) -> metrics.Link:
        """The function that turns the cell's scores into probabilities."""
        return self.options.link_on(self.train.multi_label)

    def derive_seed(self, index: int) -> int:
        """Derives seed number `index` from the cell's identity, so that cells share no seed."""
        return cell_seed(self.identity, index)

    @cached_property
    def statement(self) -> dict[str, Any]:
        """The privacy statement, as read from its file."""
        facts = FitInputs(self.train, self.plan.unit).read_facts(
            Target.of_plan(self.plan), metric=self.asked.metric
        )
        values = Statement(
            plan=self.plan,
            method=self.name.method,
            options=self.options.model_dump(mode="json"),
            mode=self.asked.mode,
            seeds=[self.derive_seed(index) for index in range(self.asked.seeds)],
            public_data={
                "backbone": self.train.backbone,
                "backbone_options": self.train.backbone_options,
                "trained": self.train.trained,
                "weights_sha256": self.train.weights_sha256,
                "near_duplicate_check": self.near_duplicates,
            },
            epsilon_all_heads=self.epsilon_all_heads,
            declared=Declared(
                study=self.asked.study,
                files=self.options.public_files(),
                hashes={path: sha256_file(Path(path)) for path in self.options.input_files()},
            ),
            private_choices=self.options.private_choices,
            priced_normalisation=self.options.normalize.priced,
            released_priors=self.options.releases_priors,
            released_gain=self.options.has_student,
            engine_limits=self.options.engine_limits,
            network=self.options.tunes_network,
            chosen_from=describe_choice(self.options, facts),
            allows=self.allows,
            copies=(self.train.copies or {}).get(self.plan.unit),
        )
        return dict(json.loads(json.dumps(values.to_dict(), allow_nan=False)))

    def is_current(self) -> bool:
        """Returns True if the store has all seeds of the cell, evaluated as the study requires."""
        record = whole_cell(self.stored, self.fingerprint)
        return (
            record is not None
            and not disagrees_with(record, self)
            and [seed["index"] for seed in record.seeds] == list(range(self.asked.seeds))
            and record.headline == self.headline
            and record.metric_named == (self.asked.metric is not None)
            and read_json(self.stored / STATEMENT_FILE) == self.statement
        )

    def find_reusable(self) -> CellContents | None:
        """Returns the seeds of an earlier run with the cell's fingerprint; None without one."""
        from dpprobe.training.cell_contents import read_contents  # late: imports pyarrow

        record = whole_cell(self.stored, self.fingerprint)
        return None if record is None else read_contents(self.stored, record)

    def store_cell(self, contents: CellContents, features: JobFeatures) -> None:
        """Writes a cell to the store; raises DiskError if the disk remains full for an hour."""
        self.stored.parent.mkdir(parents=True, exist_ok=True)
        needed = contents.weights.nbytes + contents.scores.nbytes + RECORDS_BYTES
        when_there_is_room(
            self.stored.parent, needed, lambda: self._write_stored(contents, features)
        )

    def _write_stored(self, contents: CellContents, features: JobFeatures) -> None:
        from dpprobe.training.cell_contents import write_contents  # late, as above

        shutil.rmtree(self._partial_folder, ignore_errors=True)
        try:
            self._partial_folder.mkdir()
            options = self.options.model_dump(mode="json")
            write_contents(
                self._partial_folder, contents, features, name=self.name, options=options
            )
            write_json(self._partial_folder / STATEMENT_FILE, self.statement)
            self._make_record(contents, features).write(
                self._partial_folder / METRICS_FILE,
                *(self._partial_folder / name for name in PAYLOAD_FILES),
            )
            shutil.rmtree(self.stored, ignore_errors=True)
            self._partial_folder.replace(self.stored)
        finally:
            shutil.rmtree(self._partial_folder, ignore_errors=True)

    def publish_cell(self) -> None:
        """Links the files of the stored cell into its final folder.

        Raises DiskError if the cell's files have changed since they were written.
        """
        if not self.is_current():
            raise DiskError(
                f"{self.stored}: the files in this folder changed between writing and reading, "
                "which happens on mounted buckets that do not rename a folder in one step; choose "
                "a results_dir on another file system: docs/storage.md"
            )
        publish_files(self.stored, self.published, CELL_FILES)

    @property
    def _partial_folder(self) -> Path:
        return locate_partial(self.stored)

    def _make_record(self, contents: CellContents, features: JobFeatures) -> CellRecord:
        plan = self.plan
        seeds, summary = _evaluate_seeds(self, contents, features)
        files = {name: sha256_file(self._partial_folder / name) for name in PAYLOAD_FILES}
        noise = [mechanism.noise_multiplier for mechanism in plan.mechanisms]
        return CellRecord(
            cell=self.name,
            head=self.options.head,
            private=plan.private,
            fingerprint=self.fingerprint,
            content_hash=hash_value(
                {"fingerprint": self.fingerprint, "files": files, "headline": self.headline}
            ),
            delta=plan.delta if plan.private else None,
            noise_multiplier=noise[0] if plan.private and len(noise) == 1 else None,
            realised_epsilon=plan.realised_epsilon if self.statement["private"] else None,
            options=self.options.model_dump(mode="json"),
            rows=SplitCounts(train=features.train.rows, test=len(features.test_labels)),
            units=_count_patients(self.train, features),
            unit=plan.unit,
            n=plan.n,
            accountant=plan.accountant if plan.private else None,
            study_seed=self.asked.study_seed,
            dimension=features.train.dimension,
            class_names=list(features.class_names),
            multi_label=features.multi_label,
            headline=self.headline,
            metric_named=self.asked.metric is not None,
            test_counts=class_counts(features.test_labels, len(features.class_names)),
            constant_accuracy=metrics.constant_accuracy(
                features.test_labels, units=features.test_units
            ),
            auc_labels=len(features.ranked),
            seeds=seeds,
            summary=summary,
            files=files,
            # Private searches record no time, which would reveal the random number of trials.
            seconds=None if plan.selection else round(contents.seconds, 3),
        )


def _evaluate_seeds(
    task: CellTask, contents: CellContents, features: JobFeatures
) -> tuple[list[dict[str, Any]], dict[str, MetricSummary]]:
    halves = features.test_halves(task.headline)
    first = features.evaluate(contents.scores[0], link=task.link)
    seeds: list[dict[str, Any]] = []
    for index, scores in zip(contents.indices, contents.scores, strict=True):
        evaluation = features.evaluate(scores, link=task.link) if seeds else first
        halved = half_values(task.headline, evaluation, halves=halves)
        seeds.append({"index": index, **evaluation.compute_metrics(), "halves": halved})
    for seed, chosen in zip(seeds, contents.chosen, strict=bool(contents.chosen)):
        seed["chosen"] = dict(chosen)
    if (priors := contents.arrays.get(CLASS_PRIORS)) is not None:
        for seed, each in zip(seeds, priors, strict=True):
            seed[CLASS_PRIORS] = each.tolist()
    if (gains := contents.arrays.get(STUDENT_GAIN)) is not None:
        for seed, (gain, threshold) in zip(seeds, gains.tolist(), strict=True):
            seed["student"] = {"gain": gain, "threshold": threshold, "used": gain > threshold}
    summary = uncertainty.summarise_records(seeds, first, seed=task.asked.study_seed)
    return seeds, {name: MetricSummary(**entry) for name, entry in summary.items()}


def _count_patients(train: FeatureStore, features: JobFeatures) -> SplitCounts | None:
    """Counts the patients of both splits; None if the dataset does not name patients."""
    trained, tested = count_units(unit_codes(train.units)), count_units(features.test_units)
    if trained is None or tested is None:
        return None
    return SplitCounts(train=trained, test=tested)


def disagrees_with(record: CellRecord, task: CellTask) -> bool:
    """Returns True if planning would reject the record: then a job must rewrite the cell."""
    private = task.plan.private
    difference = find_disagreement(
        record.model_dump(mode="json"),
        options=task.options.model_dump(mode="json"),
        seeds=task.asked.seeds,
        study_seed=task.asked.study_seed,
        delta=task.plan.delta if private else None,
        accountant=task.plan.accountant if private else None,
        unit=task.plan.unit,
    )
    return difference is not None


def whole_cell(folder: Path, expected: str) -> CellRecord | None:
    """Returns a cell's record; None unless fingerprint (`expected`) and files are as recorded.

    Raises DataError if a newer dpprobe wrote the cell.
    """
    try:
        record = parse_cell(read_bounded(folder / METRICS_FILE))
        if record.fingerprint != expected:
            return None
        damaged = [
            name for name, digest in record.files.items() if sha256_file(folder / name) != digest
        ]
    except FileNotFoundError:
        return None
    except DataError as error:  # a newer dpprobe wrote the cell, which is not overwritten
        raise DataError(f"{folder}: {error}") from None
    except ValueError as error:
        logger.warning("%s: unreadable (%s); the cell is trained again", folder, error)
        return None
    if damaged:
        logger.warning("%s: %s damaged; the cell is trained again", folder, ", ".join(damaged))
        return None
    return record
