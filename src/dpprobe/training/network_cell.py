"""Identifies a cell whose seeds are fine-tuned networks, and decides which seeds are reused.

This module does not import the training code, so jobs whose network is up to date end quickly.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dpprobe.backbones.options import BackboneOptions
from dpprobe.errors import DpprobeError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.files.result_store import locate_stored, publish_files
from dpprobe.json_values import first_difference
from dpprobe.privacy.private_mark import check_unmarked
from dpprobe.results.network_record import (
    NETWORK_FILES,
    NetworkRecord,
    network_folder,
    whole_network_record,
)
from dpprobe.results.search_record import read_searched_values
from dpprobe.study.study import Study
from dpprobe.training.cell_task import CellTask
from dpprobe.training.tasks import JobFiles, OpenedJob, Request, open_job
from dpprobe.versions import VERSIONS

logger = logging.getLogger("dpprobe")


@dataclass(frozen=True, kw_only=True)
class NetworkFiles(JobFiles):
    """The files of the networks of one (dataset, backbone, method)."""

    backbone: BackboneOptions
    cuts: tuple[Path, Path] | None = None  # manifests of both splits' activations at the cut
    tables: tuple[Path, Path] | None = None  # both split tables, if training reads images
    choice: Path | None = None  # the record of a search over options

    @classmethod
    def of_rule(cls, study: Study, backbone: str, given: Any) -> NetworkFiles:
        """Returns the files that the input of a Snakemake rule names."""
        choice = getattr(given, "choice", None)
        return cls.of_input(
            study,
            given,
            backbone=study.backbones[backbone],
            cuts=_path_pair(given.cuts),
            tables=_path_pair(getattr(given, "tables", ())),
            choice=Path(choice) if choice else None,
        )

    @cached_property
    def chosen(self) -> Mapping[str, Any]:
        """The values that a search chose; empty without a search."""
        return read_searched_values(self.choice)

    def network(self, cell: tuple[str, str, str, str], index: int) -> Path:
        return network_folder(self.results / "networks", cell, index)

    @cached_property
    def cut_stores(self) -> tuple[FeatureStore, FeatureStore] | None:
        if self.cuts is None:
            return None
        train, test = self.cuts
        return FeatureStore(train), FeatureStore(test)


def keep_network(opened: OpenedJob, files: NetworkFiles, *, index: int, device: str) -> bool:
    """Links a seed's network from the store into its folder; returns False if there is none."""
    task = network_task(opened, files, device=device)
    folder = files.network(task.name.key, index)
    stored = locate_stored(task.results, task.fingerprint, index=index)
    record = whole_network_record(stored)
    if record is None or not is_of(record, task, index, stored):
        return False
    logger.info(
        "%s: seed %d reused, because nothing that it depends on has changed",
        task.name.method,
        index,
    )
    publish_files(stored, folder, NETWORK_FILES)
    # A job that was killed just after publishing its network has left a checkpoint.
    shutil.rmtree(checkpoint_folder(folder), ignore_errors=True)
    return True


def checkpoint_folder(network: Path) -> Path:
    return network.with_name(f".{network.name}.checkpoint")


def open_network_job(request: Request, files: NetworkFiles) -> OpenedJob:
    """Reads and checks the inputs of networks; raises DpprobeError if the method has no plan."""
    for path in files.backbone.input_files():
        check_unmarked(Path(path), option="checkpoint", written=path)
    opened = open_job(request, files)
    for method, reason in opened.failure_reasons.items():
        raise DpprobeError(f"{method}: {reason}")
    return opened


def network_task(opened: OpenedJob, files: NetworkFiles, *, device: str) -> CellTask:
    """Returns the cell whose seeds are a job's networks."""
    (method,) = opened.methods
    cut = [store.fingerprint for store in files.cut_stores or ()] or None
    network = {"version": VERSIONS["fine_tuning"], "cut": cut}
    more = {"network": network, "chosen": dict(files.chosen)}
    return opened.make_task(method, device=device, more=more)


def is_of(record: NetworkRecord, task: CellTask, index: int, folder: Path) -> bool:
    """Returns True if a record belongs to the task's cell and to seed `index`."""
    wanted = {
        "fingerprint": task.fingerprint,
        "index": index,
        "options": task.options.model_dump(mode="json"),
    }
    difference = first_difference({name: getattr(record, name) for name in wanted}, wanted)
    if difference and difference.place != "fingerprint":
        logger.warning("%s: its record says %s: %s", folder, difference.place, difference.first)
    return difference is None


def _path_pair(paths: Sequence[str]) -> tuple[Path, Path] | None:
    if not paths:
        return None
    train, test = map(Path, paths)
    return train, test
