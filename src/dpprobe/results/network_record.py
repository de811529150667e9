"""The record of one fine-tuned network (one seed of a cell): the network's files and inputs.

A cell's privacy statement also covers the cell's networks. All code that writes or reads a network
uses this module's names. Snakemake imports this module whenever it starts, so its imports are fast.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from dpprobe.errors import DataError
from dpprobe.files.plain_files import sha256_file
from dpprobe.files.records import Record
from dpprobe.results.cell_record import CellName

logger = logging.getLogger("dpprobe")

NETWORKS_FOLDER = "networks"
RECORD_FILE = "result.json"
STATE_FILE = "network.safetensors"
SCORES_FILE = "scores.npy"
HISTORY_FILE = "history.json"
# result.json contains the hashes of a network's other files, and is written last.
PAYLOAD_FILES = (STATE_FILE, SCORES_FILE, HISTORY_FILE)
NETWORK_FILES = (RECORD_FILE, *PAYLOAD_FILES)


class NetworkRecord(Record):
    """A network's `result.json`.

    Attributes:
      fingerprint: hash of all inputs that determine the contents of the network's cell.
      device: the kind of device that drew the noise in training; part of the fingerprint.
      options: the method's options, as written in the study file.
      chosen: the values that a search chose; empty without a search.
      steps: the number of noisy steps taken.
      files: SHA-256 of each other file of the network.
    """

    format: Literal["dpprobe-network"] = "dpprobe-network"
    format_version: Literal[1] = 1
    cell: CellName
    index: int
    fingerprint: str
    device: str
    options: dict[str, Any]
    chosen: dict[str, Any]
    trained: int
    steps: int
    seconds: float
    files: dict[str, str]


def network_folder(networks: Path | str, cell: Sequence[str], index: int) -> Path:
    """Returns the folder of a seed's network; `cell` is (dataset, backbone, method, epsilon)."""
    dataset, backbone, method, epsilon = cell
    return Path(networks, dataset, backbone, method, f"eps-{epsilon}", f"seed-{index}")


def whole_network_record(folder: Path) -> NetworkRecord | None:
    """Returns the record of a network; None if a file is missing or damaged."""
    try:
        record = NetworkRecord.read(folder / RECORD_FILE)
        damaged = [
            name for name, digest in record.files.items() if sha256_file(folder / name) != digest
        ]
    except FileNotFoundError:
        return None
    except DataError as error:
        if (folder / RECORD_FILE).exists():
            logger.warning("%s; the network is trained again", error)
        return None
    if damaged:
        logger.warning("%s: %s damaged; the network is trained again", folder, ", ".join(damaged))
        return None
    return record
