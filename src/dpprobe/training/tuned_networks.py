"""Makes a cell from its seeds' networks, with the same files as other cells.

`heads.safetensors` has the last layer of each network, for the features of that network. Each
network has a separate folder.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dpprobe.errors import DataError
from dpprobe.results.network_record import (
    HISTORY_FILE,
    SCORES_FILE,
    STATE_FILE,
    NetworkRecord,
    whole_network_record,
)
from dpprobe.training.cell_contents import CellContents
from dpprobe.training.network_cell import NetworkFiles, is_of, network_task
from dpprobe.training.tasks import OpenedJob

_HISTORY_KEYS = ("step", "epoch", "train_loss", "test_accuracy", "test_auc")


def gather_networks(opened: OpenedJob, files: NetworkFiles) -> None:
    """Brings a cell of networks up to date; raises DataError for a missing or damaged network."""
    (method,) = opened.methods
    cell = opened.request.name_cell(method)
    folders = [files.network(cell.key, index) for index in range(opened.request.asked.seeds)]
    records = []
    for folder in folders:
        record = whole_network_record(folder)
        if record is None:
            raise DataError(f"{folder}: incomplete network; delete the folder and run again")
        records.append(record)
    task = network_task(opened, files, device=_device_kind(folders, records))
    for index, (folder, record) in enumerate(zip(folders, records, strict=True)):
        if not is_of(record, task, index, folder):
            raise DataError(
                f"{folder}: this network belongs to another version of the cell; delete the folder "
                "and run again"
            )
    if not task.is_current():
        # imports torch, which takes seconds
        from dpprobe.training.job_features import read_job_features

        features = read_job_features(
            opened.inputs, opened.stores[1], device="cpu", memory_mb=0, headline=task.headline
        )
        task.store_cell(_read_contents(folders, records), features)
    task.publish_cell()


def _device_kind(folders: Sequence[Path], records: Sequence[NetworkRecord]) -> str:
    """Returns the kind of device that trained all seeds; raises DataError if seeds differ, because
    noise depends on the device."""
    for folder, record in zip(folders, records, strict=True):
        if record.device != records[0].device:
            raise DataError(
                f"{folder}: trained on {record.device}, but {folders[0]} on {records[0].device}; "
                "delete one of the two folders and run again on the other's kind of device"
            )
    return records[0].device


def _read_contents(folders: Sequence[Path], records: Sequence[NetworkRecord]) -> CellContents:
    import torch  # late, with all that imports it, as in `gather_networks`
    from safetensors.torch import load_file

    from dpprobe.finetune.fine_tuned_network import split_state

    files = [split_state(load_file(folder / STATE_FILE)) for folder in folders]
    states, statistics = zip(*files, strict=True)
    heads = [
        torch.cat([state["head.weight"], state["head.bias"][:, None]], 1).numpy()
        for state in states
    ]
    searched = [record.chosen for record in records if record.chosen]
    return CellContents(
        indices=tuple(range(len(records))),
        weights=np.stack(heads).astype(np.float32),
        arrays={
            name: np.stack([each[name].numpy() for each in statistics]) for name in statistics[0]
        },
        scores=np.stack([np.load(folder / SCORES_FILE) for folder in folders]),
        history=[
            {"seed_index": index, **{key: row[key] for key in _HISTORY_KEYS if key in row}}
            for index, folder in enumerate(folders)
            for row in json.loads((folder / HISTORY_FILE).read_text(encoding="utf-8"))
        ],
        chosen=tuple(searched),
        seconds=sum(record.seconds for record in records),
    )
