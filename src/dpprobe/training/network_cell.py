"""The cell whose seeds networks are: its identity, and which of them are kept.

Nothing here imports what trains a network: jobs that find theirs current start fast.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dpprobe.artifacts import first_difference
from dpprobe.backbones.options import BackboneOptions
from dpprobe.devices import identity_device
from dpprobe.errors import DpprobeError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.privacy.private_mark import check_unmarked
from dpprobe.results.network_record import (
    NETWORK_FILES,
    NetworkRecord,
    network_folder,
    whole_network_record,
)
from dpprobe.results.search_record import read_searched_values
from dpprobe.training.cell_task import CellTask
from dpprobe.training.tasks import Job, OpenedJob, open_job
from dpprobe.versions import VERSIONS

logger = logging.getLogger("dpprobe")


@dataclass(frozen=True, kw_only=True)
class NetworkFiles:
    """The files of one (dataset, backbone, method).

    Attributes:
      cuts: manifests of both splits' activations at the cut, if any.
      tables: both split tables, if images are read.
    """

    backbone: BackboneOptions
    train: Path
    test: Path
    cuts: tuple[Path, Path] | None = None
    tables: tuple[Path, Path] | None = None

    @classmethod
    def of_input(cls, backbone: BackboneOptions, given: Any) -> NetworkFiles:
        return cls(
            backbone=backbone,
            train=Path(given.train),
            test=Path(given.test),
            cuts=_path_pair(given.cuts),
            tables=_path_pair(getattr(given, "tables", ())),
        )

    @cached_property
    def cut_stores(self) -> tuple[FeatureStore, FeatureStore] | None:
        if self.cuts is None:
            return None
        train, test = self.cuts
        return FeatureStore(train), FeatureStore(test)

    def network_identity(self) -> dict[str, Any]:
        """Returns what decides a network beside features, options and plan."""
        stores = self.cut_stores
        return {
            "version": VERSIONS["fine_tuning"],
            "cut": [store.fingerprint for store in stores] if stores else None,
        }


def keep_network(
    job: Job,
    *,
    index: int,
    files: NetworkFiles,
    plans: Path,
    cells: Path,
    networks: Path,
    device: str,
    choice: Path | None = None,
    tables: Path | None = None,
) -> bool:
    """Returns True if a seed's network is current, and marks its files as seen by this run.

    Arguments and errors as `network_job.tune_network`.
    """
    opened = open_network_job(
        job, files=files, plans=plans, cells=cells, tables=tables, overlap=None
    )
    task = network_task(
        opened, files, device=identity_device(device), chosen=read_searched_values(choice)
    )
    folder = network_folder(networks, task.name.key, index)
    record = whole_network_record(folder)
    if record is None or not is_of(record, task, index, folder):
        return False
    logger.info("%s: seed %d kept, nothing it depends on has changed", task.name.method, index)
    for name in NETWORK_FILES:
        (folder / name).touch()
    # Left by a job that was killed once it had published.
    shutil.rmtree(checkpoint_folder(folder), ignore_errors=True)
    return True


def checkpoint_folder(network: Path) -> Path:
    return network.with_name(f".{network.name}.checkpoint")


def open_network_job(
    job: Job,
    *,
    files: NetworkFiles,
    plans: Path,
    cells: Path,
    tables: Path | None,
    overlap: Path | None,
) -> OpenedJob:
    """Reads and checks the inputs of networks; arguments as `tune_network`.

    Raises:
      DpprobeError: with the reason, if the method has no plan.
    """
    for path in files.backbone.input_files():
        check_unmarked(Path(path), option="checkpoint", written=path)
    opened = open_job(
        job, train=files.train, test=files.test, plans=plans, cells=cells, overlap=overlap,
        tables=tables,
    )  # fmt: skip
    for method, reason in opened.failure_reasons.items():
        raise DpprobeError(f"{method}: {reason}")
    return opened


def network_task(
    opened: OpenedJob, files: NetworkFiles, *, device: str, chosen: Mapping[str, Any]
) -> CellTask:
    """Returns the cell whose seeds are a job's networks, with its identity."""
    (method,) = opened.job.methods
    return opened.make_task(
        method, device=device, more={"network": files.network_identity(), "chosen": dict(chosen)}
    )


def is_of(record: NetworkRecord, task: CellTask, index: int, folder: Path) -> bool:
    """Returns True if a record belongs to this cell and seed."""
    wanted = {
        "fingerprint": task.fingerprint, "index": index,
        "options": task.options.model_dump(mode="json"),
    }  # fmt: skip
    difference = first_difference({name: getattr(record, name) for name in wanted}, wanted)
    if difference and difference.place != "fingerprint":
        logger.warning("%s: its record says %s: %s", folder, difference.place, difference.first)
    return difference is None


def _path_pair(paths: Sequence[str]) -> tuple[Path, Path] | None:
    if not paths:
        return None
    train, test = map(Path, paths)
    return train, test
