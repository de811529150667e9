"""A training in a process of its own, which kills itself when it is told to.

    python -m tests.support.killed_training FOLDER OPTIONS KILL_AT

KILL_AT is "step:K", before step K is taken, "save:K", while the K-th checkpoint is written, or
"never". A training that ends writes its parameters to FOLDER/end.npy.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpprobe.artifacts import write_json
from dpprobe.finetune import checkpoint as checkpoint_module
from dpprobe.finetune.checkpoint import Checkpoints
from dpprobe.finetune.network import TunedNetwork
from dpprobe.finetune.steps import Training
from dpprobe.finetune.train import train_network
from tests.support.tiny_networks import (
    flat,
    mlp_inputs,
    mlp_network,
    network_options,
    releases_of,
)


def kill_at(place: str) -> None:
    """Kills this process at a step, or in the middle of writing a checkpoint."""
    kind, _, number = place.partition(":")
    if kind == "step":
        take = Training.step

        def step(self: Training, *rest: Any) -> None:
            if self.taken == int(number):
                os.kill(os.getpid(), signal.SIGKILL)
            take(self, *rest)

        Training.step = step  # type: ignore[method-assign]
    elif kind == "save":
        save, saved = checkpoint_module.save_file, 0

        def half(tensors: dict[str, torch.Tensor], path: Path, **rest: Any) -> None:
            nonlocal saved
            saved += 1
            save(tensors, path, **rest)
            if saved == int(number):
                path.write_bytes(path.read_bytes()[:-100])
                os.kill(os.getpid(), signal.SIGKILL)

        checkpoint_module.save_file = half


def norm(step: int, network: TunedNetwork) -> dict[str, float]:
    """A record: of which step, and the length of all parameters."""
    return {"taken": step, "norm": float(np.linalg.norm(flat(network.trained)))}


def main() -> None:
    torch.set_num_threads(1)
    folder, values, place = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
    kill_at(place)
    inputs = mlp_inputs(units=values.pop("units", False))
    options = network_options(**values)
    releases = releases_of(options, inputs.n, 0.7)
    trained = train_network(
        options,
        mlp_network(),
        inputs,
        releases,
        checkpoint=Checkpoints(folder=folder / "checkpoint", fingerprint="f", minutes=0),
        physical_batch=3,
        record=norm,
    )
    releases.check()
    np.save(folder / "end.npy", flat(trained.state))
    write_json(folder / "history.json", trained.history)


if __name__ == "__main__":
    main()
