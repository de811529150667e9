"""Runs trainings that are killed with SIGKILL, each in its own fork, and compares their results.

    python -m tests.support.killed_training FOLDER CASES

CASES is a JSON list of options. Prints one line of JSON per case: if the trainings were killed,
and if they ended with the same bits and records as an uninterrupted training.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from dpprobe.files.json_files import write_json
from dpprobe.finetune import checkpoint as checkpoint_module
from dpprobe.finetune.checkpoint import Checkpoints
from dpprobe.finetune.fine_tuned_network import FineTunedNetwork
from dpprobe.finetune.steps import Training
from dpprobe.finetune.train import train_network
from tests.support.kill_walk import in_child
from tests.support.tiny_networks import flat, mlp_inputs, mlp_network, network_options, releases_of


def kill_at(place: str) -> None:
    """Kills this process before step K ("step:K"), or while it writes checkpoint K ("save:K")."""
    kind, _, number = place.partition(":")
    if kind == "step":
        take = Training.take_step

        def step(self: Training, *rest: Any) -> None:
            if self.taken == int(number):
                os.kill(os.getpid(), signal.SIGKILL)
            take(self, *rest)

        Training.take_step = step  # type: ignore[assignment, method-assign]
    elif kind == "save":
        save, saved = safetensors.torch.save_file, 0

        def half(tensors: dict[str, torch.Tensor], path: Path, **rest: Any) -> None:
            nonlocal saved
            saved += 1
            save(tensors, path, **rest)
            if saved == int(number):
                path.write_bytes(path.read_bytes()[:-100])
                os.kill(os.getpid(), signal.SIGKILL)

        checkpoint_module.save_file = half  # type: ignore[attr-defined, assignment]


def norm(step: int, network: FineTunedNetwork) -> dict[str, float]:
    """Returns a record with the step, and the norm of all parameters."""
    return {"taken": step, "norm": float(np.linalg.norm(flat(network.trained)))}


def train(folder: Path, values: dict[str, Any], place: str) -> None:
    """Trains with a checkpoint after every step; writes the final state and the history."""
    kill_at(place)
    folder.mkdir(parents=True, exist_ok=True)
    values = dict(values)
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
    releases.check_counts()
    np.save(folder / "end.npy", flat(trained.state))
    write_json(folder / "history.json", trained.history)


def ended(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "end.npy").read_bytes(), (folder / "history.json").read_bytes()


def main() -> None:
    torch.set_num_threads(1)
    gc.freeze()  # otherwise a collection in each child copies all shared memory
    for number, values in enumerate(json.loads(sys.argv[2])):
        whole, killed = (Path(sys.argv[1]) / f"{number}-{name}" for name in ("whole", "killed"))
        # kills before a step, and while writing the first or another checkpoint of a resumed run
        places = ["never", "step:1", "save:2", "step:4", "save:1", "never"]
        folders = [whole, *[killed] * 5]
        statuses = [
            in_child(functools.partial(train, folder, values, place))
            for folder, place in zip(folders, places, strict=True)
        ]
        left = sorted(path.name for path in (killed / "checkpoint").iterdir())
        said = {"statuses": statuses, "left": left, "same": ended(whole) == ended(killed)}
        print(json.dumps({"case": values, **said}))


if __name__ == "__main__":
    main()
