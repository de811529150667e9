"""One network on several processes makes a single process's releases; a failure ends all."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe import devices
from dpprobe.errors import ConfigError, DeviceError, WorkerError, may_pass
from dpprobe.files.json_files import write_json
from dpprobe.finetune.rank_processes import run_ranks
from dpprobe.finetune.ranks import Ranks
from dpprobe.finetune.train import train_network
from tests.support.killed_training import norm
from tests.support.shared_training import (
    Case,
    inputs_of,
    refuse_differences,
    train,
    train_and_fail,
    train_cases,
)
from tests.support.tiny_networks import flat, mlp_network, network_options, releases_of
from tests.support.waiting_ranks import note_after_ctrl_c, note_and_wait

REPOSITORY = Path(__file__).resolve().parents[3]
STEPS = 6
# One row per rank, as a sum of two numbers has only one order. But on processors without FMA, the
# last bit of a row's product depends on the batch's other rows.
TWO_ROWS: Case = {"rows": 2, "batch_size": "full", "optimiser": "adam"}
# No row takes part, so a step releases only its noise.
ONLY_NOISE: Case = {"null": True, "batch_size": 8, "average": "ema"}
CASES: list[Case] = [
    TWO_ROWS,
    ONLY_NOISE,
    {"optimiser": "momentum", "average": "mean", "batch_size": 8},
    {"optimiser": "lamb", "average": "ema", "batch_size": "full"},
    {"optimiser": "sgd", "batch_size": 5, "units": True, "class_weights": [1, 0.5, 0.5]},
    {"optimiser": "sgd", "batch_size": 1, "schedule": "warmup_cosine"},  # many shares are empty
]


@given(rows=st.lists(st.integers(0, 10**9), max_size=40), count=st.integers(1, 9))
def test_each_row_of_a_batch_is_in_one_share(rows: list[int], count: int) -> None:
    batch = np.asarray(rows, dtype=np.int64)
    shares = [Ranks(rank=rank, count=count).share_of(batch) for rank in range(count)]
    assert np.concatenate(shares).tolist() == rows
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.fixture(scope="module")
def _forked() -> Iterator[None]:
    """Forks ranks from a process with imported libraries, because imports take the longest."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["dpprobe.finetune.train", "tests.support.shared_training"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "dpprobe.finetune.rank_processes.multiprocessing.get_context", lambda _: forks
        )
        yield


@pytest.fixture(scope="module")
def on_two(_forked: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder with all cases, trained by two processes."""
    folder = tmp_path_factory.mktemp("two")
    run_ranks(partial(train_all, folder=folder), 2, device="cpu")
    return folder


def train_all(ranks: Ranks, folder: Path) -> None:
    train_cases(ranks, folder, CASES)
    refuse_differences(ranks, folder, CASES[2])
    calls: list[int] = []

    def release() -> dict[str, int]:
        calls.append(1)
        return {"made by": ranks.rank}

    made = ranks.compute_once(release)
    write_json(folder / f"once-{ranks.rank}.json", {"made": made, "calls": len(calls)})


@pytest.mark.parametrize("number", range(len(CASES)))
def test_two_processes_train_the_network_of_one(on_two: Path, number: int) -> None:
    case = CASES[number]
    alone = train(case, record=norm)
    leader, other = (np.load(on_two / f"{number}-{rank}.npy") for rank in range(2))
    assert leader.tolist() == other.tolist(), "all ranks have the weights of rank 0"
    if case == ONLY_NOISE:
        assert leader.tolist() == flat(alone.state).tolist()
    np.testing.assert_allclose(leader, flat(alone.state), rtol=1e-5, atol=1e-6)
    told = [json.loads((on_two / f"{number}-{rank}.json").read_text()) for rank in range(2)]
    assert [each["draws"] for each in told] == [STEPS, 0], "noise is drawn once, by rank 0"
    assert told[1]["history"] == []
    assert len(told[0]["history"]) == len(alone.history) == STEPS + 1
    for found, wanted in zip(told[0]["history"], alone.history, strict=True):
        assert found == pytest.approx(wanted, rel=1e-4)


@pytest.mark.slow
def test_torchrun_starts_the_same_training(on_two: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "tests.support.shared_training"]
    command += [str(tmp_path), json.dumps(CASES[:3])]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=REPOSITORY, env=environment, check=True, timeout=300)
    names = sorted(path.name for path in tmp_path.glob("*.npy"))
    assert names == ["0-0.npy", "0-1.npy", "1-0.npy", "1-1.npy", "2-0.npy", "2-1.npy"]
    for name in names:
        assert (tmp_path / name).read_bytes() == (on_two / name).read_bytes()


def test_a_killed_process_ends_the_job_which_resumes(
    on_two: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    number = 2
    work = partial(train_and_fail, folder=tmp_path, case=CASES[number])
    with pytest.raises(WorkerError) as found:
        run_ranks(partial(work, how="killed"), 2, device="cpu")
    assert str(found.value) == (
        "fine_tuning.processes: process 1 of 2 was killed by SIGKILL, often for lack of memory; "
        "run again with more memory to resume from the last checkpoint"
    )
    assert may_pass(found.value)
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == ["checkpoint.safetensors"]
    caplog.set_level(logging.INFO)
    run_ranks(partial(work, how="does nothing"), 2, device="cpu")
    assert caplog.text.count("resumes after step 3 of 6") == 1, "rank 0's line, in this process"
    for rank in range(2):
        whole = (on_two / f"{number}-{rank}.npy").read_bytes()
        assert (tmp_path / f"0-{rank}.npy").read_bytes() == whole


@pytest.mark.parametrize(("how", "what"), [("batch", "batches"), ("weights", "weights")])
def test_processes_that_differ_end_the_training(on_two: Path, how: str, what: str) -> None:
    for rank in range(2):
        assert (on_two / f"{how}-{rank}.txt").read_text() == (
            f"fine_tuning.processes: the {what} differ between the 2 processes; nothing is "
            "released; run again with `processes: 1`"
        )


def test_one_process_makes_a_private_release_for_all(on_two: Path) -> None:
    told = [json.loads((on_two / f"once-{rank}.json").read_text()) for rank in range(2)]
    assert told == [{"made": {"made by": 0}, "calls": calls} for calls in (1, 0)]


@pytest.mark.slow
@pytest.mark.usefixtures("_forked")
def test_a_process_that_hangs_ends_the_job(tmp_path: Path) -> None:
    work = partial(train_and_fail, folder=tmp_path, case=CASES[2], how="hangs")
    started = time.monotonic()
    words = r"process 0 of 2 gets no answer from the others \(.*run again to resume"
    with pytest.raises(WorkerError, match=words) as found:
        run_ranks(work, 2, device="cpu", timeout=timedelta(seconds=10))
    assert time.monotonic() - started < 400, "the other process would wait for 600 seconds"
    assert not list(tmp_path.glob("*.npy"))
    assert isinstance(found.value.__cause__, RuntimeError)
    assert "_talk" in found.value.__notes__[0], "the traceback of its process"


@pytest.mark.usefixtures("_forked")
def test_ctrl_c_leaves_the_end_of_the_ranks_to_their_parent(tmp_path: Path) -> None:
    run_ranks(partial(note_after_ctrl_c, folder=tmp_path), 2, device="cpu")
    assert len(list(tmp_path.glob("*.pid"))) == 2


@pytest.mark.slow
def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    """The processes start as in a job, each with its own Python."""
    program = (
        "from functools import partial\n"
        "from pathlib import Path\n"
        "from dpprobe.finetune.rank_processes import run_ranks\n"
        "from tests.support.waiting_ranks import note_and_wait\n"
        "if __name__ == '__main__':\n"
        f"    run_ranks(partial(note_and_wait, folder=Path({str(tmp_path)!r})), 2, device='cpu')\n"
    )
    (tmp_path / "program.py").write_text(program)
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    parent = subprocess.Popen([sys.executable, tmp_path / "program.py"], env=environment)
    try:
        _wait_until(lambda: len(list(tmp_path.glob("*.pid"))) == 2)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    ranks = [int(path.stem) for path in tmp_path.glob("*.pid")]
    _wait_until(lambda: not any(map(_runs, ranks)))


def _runs(process: int) -> bool:
    """Returns False if a process has ended, even if it was not waited for."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def _wait_until(holds: Any) -> None:
    end = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_run_ranks_raises_if_a_process_lacks_a_separate_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(devices.VISIBLE, "3")
    with pytest.raises(DeviceError, match=r"processes: 2, but the job sees 1 GPU.*gpu=2"):
        run_ranks(partial(note_and_wait, folder=Path()), 2, device="cuda")


def test_an_engine_that_sums_gradients_itself_is_refused_with_several_processes() -> None:
    options = network_options().model_copy(update={"engine": "opacus"})
    inputs = inputs_of({})
    with pytest.raises(ConfigError, match=r"processes: 2, but engine opacus.*`processes: 1`"):
        train_network(
            options,
            mlp_network(),
            inputs,
            releases_of(options, inputs.n, 1.0),
            ranks=Ranks(count=2),
        )
