"""Trains a small network in several processes, for tests; also the program that `torchrun` runs.

torchrun --nproc-per-node 2 -m tests.support.shared_training FOLDER CASES
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpprobe.errors import PrivacyError
from dpprobe.files.json_files import write_json
from dpprobe.finetune.checkpoint import Checkpoints
from dpprobe.finetune.inputs import Inputs
from dpprobe.finetune.ranks import ALONE, Ranks, join_ranks
from dpprobe.finetune.steps import Training
from dpprobe.finetune.train import Trained, train_network
from dpprobe.privacy.float32_noise import GaussianNoise
from tests.support.killed_training import norm
from tests.support.tiny_networks import (
    SEED,
    flat,
    mlp_inputs,
    mlp_network,
    network_options,
    releases_of,
)

NOISE = 0.7
Case = dict[str, Any]


def inputs_of(case: Case) -> Inputs:
    """Returns the rows of a case; if the case has "null", no row takes part."""
    inputs = mlp_inputs(case.get("rows", 40), units=case.get("units", False))
    return inputs.keep_rows(np.zeros(inputs.rows, dtype=bool)) if case.get("null") else inputs


def train(case: Case, ranks: Ranks = ALONE, *, seed: int = SEED, **rest: Any) -> Trained:
    """Trains with a case's options, except "rows", "units" and "null", which `inputs_of` reads."""
    inputs = inputs_of(case)
    options = network_options(
        **{name: value for name, value in case.items() if name not in ("rows", "units", "null")}
    )
    releases = releases_of(options, inputs.n, NOISE, seed)
    trained = train_network(
        options, mlp_network(), inputs, releases, physical_batch=3, ranks=ranks, **rest
    )
    releases.check_counts()
    return trained


def train_cases(ranks: Ranks, folder: Path, cases: Sequence[Case]) -> None:
    """Trains all cases in order; each rank writes its weights, and how often it drew noise."""
    torch.set_num_threads(1)
    for number, case in enumerate(cases):
        draws = 0
        with pytest.MonkeyPatch.context() as patch:
            draw_steps = GaussianNoise.draw_steps

            def count(self: GaussianNoise, *arguments: Any) -> torch.Tensor:
                nonlocal draws
                draws += 1
                return draw_steps(self, *arguments)  # noqa: B023 - called in this turn

            patch.setattr(GaussianNoise, "draw_steps", count)
            trained = train(case, ranks, record=norm)
        np.save(folder / f"{number}-{ranks.rank}.npy", flat(trained.state))
        write_json(
            folder / f"{number}-{ranks.rank}.json", {"draws": draws, "history": trained.history}
        )


def train_and_fail(ranks: Ranks, folder: Path, case: Case, how: str) -> None:
    """Trains with a checkpoint after each step; before step 3, rank 1 fails in the way `how`."""
    torch.set_num_threads(1)
    made = Checkpoints(folder=folder / "checkpoint", fingerprint="f", minutes=0)
    with pytest.MonkeyPatch.context() as patch, changed_step(how if ranks.rank == 1 else ""):
        if how == "hangs":  # no other rank's failure may end the job first
            patch.setattr("dpprobe.finetune.ranks.PATIENCE", 0.1)
        trained = train(case, ranks, checkpoint=made, record=norm)
    np.save(folder / f"0-{ranks.rank}.npy", flat(trained.state))


def refuse_differences(ranks: Ranks, folder: Path, case: Case) -> None:
    """Writes each rank's error if rank 1 has another batch, or other weights, from step 3 on."""
    for how in ("batch", "weights"):
        with changed_step(how if ranks.rank == 1 else ""), pytest.raises(PrivacyError) as found:
            train(case, ranks)
        (folder / f"{how}-{ranks.rank}.txt").write_text(str(found.value))


@contextmanager
def changed_step(how: str) -> Iterator[None]:
    """Changes a training before step 3."""
    take = Training.take_step

    def step(self: Training, *rest: Any) -> None:
        if self.taken == 3:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            elif how == "hangs":
                time.sleep(600)
            elif how == "batch":
                self._sampler.draw_block(1)
            elif how == "weights":
                next(iter(self._parameters.values())).view(-1)[0] += 1
        take(self, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "take_step", step)
        yield


def main() -> None:
    with join_ranks("cpu") as ranks:
        train_cases(ranks, Path(sys.argv[1]), json.loads(sys.argv[2]))


if __name__ == "__main__":
    main()
