"""Checkpoints of training: one file, complete or absent, from which a restarted job resumes.

A checkpoint contains the states of seeded random generators, which reproduce the noise on private
gradients. So checkpoints are for benchmarks, never for releases. A mark in the file
(`privacy.private_mark`) keeps any study from using the checkpoint as a public file.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from dpprobe.files.atomic_writes import PARTIAL_SUFFIX, atomic_path
from dpprobe.privacy.private_mark import KEY

logger = logging.getLogger("dpprobe")

FORMAT = "dpprobe-checkpoint"
FORMAT_VERSION = 1
FILE = "checkpoint.safetensors"


@dataclass(frozen=True, kw_only=True)
class State:
    """The state on which the next training steps depend; `values` are JSON-compatible."""

    tensors: Mapping[str, torch.Tensor]
    values: Mapping[str, Any]


@dataclass(kw_only=True)
class Checkpoints:
    """The checkpoints of one training run; each replaces the previous checkpoint.

    Attributes:
      fingerprint: the hash of the training's inputs; checkpoints with another hash are ignored.
      minutes: the time between two checkpoints; 0 for a checkpoint after every step.
    """

    folder: Path
    fingerprint: str
    minutes: float = 5.0
    _last: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._last = time.monotonic()

    @property
    def path(self) -> Path:
        return self.folder / FILE

    def is_due(self) -> bool:
        return time.monotonic() - self._last >= 60 * self.minutes

    def save_state(self, state: State) -> None:
        """Writes a state; if the process is killed meanwhile, the previous state remains."""
        tensors = {
            name: tensor.detach().cpu().contiguous().clone()
            for name, tensor in state.tensors.items()
        }
        mark = {
            "head": "fine_tune",
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "fingerprint": self.fingerprint,
            "sha256": _hash_tensors(tensors),
            "values": dict(state.values),
        }
        with atomic_path(self.path) as temporary:
            save_file(tensors, temporary, metadata={KEY: json.dumps(mark)})
        self._last = time.monotonic()

    def load_state(self) -> State | None:
        """Returns the saved state; None if the training has no saved state.

        Removes incomplete files of killed processes.
        """
        for partial in self.folder.glob(f".{FILE}.*{PARTIAL_SUFFIX}"):
            with suppress(OSError):
                partial.unlink()
        if not self.path.exists():
            return None
        try:
            mark, tensors = _read_tensors(self.path)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            logger.warning("%s: incomplete or damaged checkpoint (%s); ignored", self.path, error)
            return None
        if mark["fingerprint"] != self.fingerprint:
            logger.warning("%s: this checkpoint belongs to another training; ignored", self.path)
            return None
        return State(tensors=tensors, values=mark["values"])

    def remove_checkpoint(self) -> None:
        """Removes the checkpoint of a published network, and the folder if it is then empty."""
        with suppress(FileNotFoundError):
            self.path.unlink()
        with suppress(OSError):
            self.folder.rmdir()


def _read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    with safe_open(path, framework="pt") as stream:
        mark = json.loads((stream.metadata() or {})[KEY])
        written = mark["format"], mark["format_version"]
        if written != (FORMAT, FORMAT_VERSION):
            raise ValueError(f"{written[0]} {written[1]}, not {FORMAT} {FORMAT_VERSION}")
        tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
    if _hash_tensors(tensors) != mark["sha256"]:
        raise ValueError("tensors changed after they were written")
    return mark, tensors


def _hash_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
