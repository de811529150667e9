"""Checkpoints: a killed training resumes bit for bit; damaged checkpoints are ignored."""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from dpprobe.errors import PrivacyError
from dpprobe.files.atomic_writes import PARTIAL_SUFFIX
from dpprobe.finetune.checkpoint import FILE, Checkpoints, State
from dpprobe.finetune.train import Trained, train_network
from dpprobe.privacy.private_mark import KEY, check_unmarked
from tests.support.programs import run_program
from tests.support.tiny_networks import flat, mlp_inputs, mlp_network, network_options, releases_of

REPOSITORY = Path(__file__).resolve().parents[3]


# Every optimiser, average and kind of batch; `test_going_on_is_bit_for_bit` covers all pairs.
CASES: list[dict[str, Any]] = [
    {"optimiser": "sgd", "average": "last", "batch_size": 8},
    {"optimiser": "momentum", "average": "mean", "batch_size": "full"},
    {"optimiser": "adam", "average": "ema", "batch_size": 8},
    {"optimiser": "lamb", "average": "mean", "batch_size": 8},
    {"optimiser": "sgd", "average": "ema", "batch_size": "full"},
    {"optimiser": "momentum", "average": "ema", "batch_size": 8, "engine": "opacus"},
]
CASES += [
    {"batch_size": 5, "units": True, "schedule": "warmup_cosine"},
    {
        "batch_size": 1,
        "units": True,
        "class_weights": [1, 0.5, 0.5],
    },
]


@pytest.mark.slow
def test_a_training_killed_again_and_again_is_one_that_was_not(tmp_path: Path) -> None:
    """The killed cases differ in their state: momentum, moments, averages, units, single rows."""
    cases = [*CASES[1:3], *CASES[-2:]]
    command = [
        sys.executable,
        "-m",
        "tests.support.killed_training",
        str(tmp_path),
        json.dumps(cases),
    ]
    done = run_program(command, cwd=REPOSITORY, timeout=600)
    kill = -signal.SIGKILL
    for case, line in zip(cases, done.stdout.splitlines(), strict=True):
        assert json.loads(line) == {
            "case": case,
            "statuses": [0, kill, kill, kill, kill, 0],
            "left": [FILE],
            "same": True,
        }


def train(options: Any, checkpoint: Checkpoints | None, *, steps: int = 6, **rest: Any) -> Trained:
    inputs = mlp_inputs()
    releases = releases_of(options, inputs.n, 0.7)
    trained = train_network(options, mlp_network(), inputs, releases, checkpoint=checkpoint, **rest)
    releases.check_counts()
    assert trained.steps == steps
    return trained


def stopped_after(folder: Path, step: int, **values: Any) -> Checkpoints:
    """Returns the checkpoints of a training that was stopped after `step`."""

    class Stop(Exception):
        pass

    def record(taken: int, network: Any) -> dict[str, float]:
        del network
        if taken == step + 1:
            raise Stop
        return {}

    made = Checkpoints(folder=folder, fingerprint="f", minutes=0)
    with pytest.raises(Stop):
        train(network_options(**values), made, record=record)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam", "lamb"])
@pytest.mark.parametrize("average", ["last", "mean", "ema"])
@pytest.mark.parametrize("batch_size", [8, "full"])
def test_going_on_is_bit_for_bit(
    optimiser: str, average: str, batch_size: Any, tmp_path: Path
) -> None:
    values = {"optimiser": optimiser, "average": average, "batch_size": batch_size}
    whole = train(network_options(**values), None)
    for step in (1, 3, 5):
        made = stopped_after(tmp_path / str(step), step, **values)
        state = made.load_state()
        assert state is not None
        made.save_state(replace(state, values={**state.values, "seconds": 1000.0}))
        again = train(network_options(**values), made)
        assert again.seconds > 1000, "with those before the stop"
        assert flat(again.state).tolist() == flat(whole.state).tolist()
        # once more from the end, like a job that was killed before it published
        once_more = train(network_options(**values), made)
        assert flat(once_more.state).tolist() == flat(whole.state).tolist()


def test_a_checkpoint_s_steps_are_counted_as_releases_and_it_is_private(tmp_path: Path) -> None:
    options, inputs = network_options(), mlp_inputs()
    made = stopped_after(tmp_path, 4)
    with pytest.raises(PrivacyError, match="trained on private rows"):
        check_unmarked(made.path, option="init_file", written="x")
    releases = releases_of(options, inputs.n, 0.7)
    releases.count_releases("gradients", 3)
    with pytest.raises(PrivacyError, match="7 noisy releases were asked for, but epsilon covers 6"):
        train_network(options, mlp_network(), inputs, releases, checkpoint=made)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda content: content[: len(content) // 2],
    "empty": lambda _: b"",
    "one bit": lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
    "a list": lambda _: save({"a": torch.zeros(3)}, metadata={KEY: "[]"}),
    "no metadata": lambda _: save({"a": torch.zeros(3)}),
    "another version": lambda content: content.replace(b'_version\\": 1', b'_version\\": 2'),
}


@pytest.mark.parametrize("how", [*DAMAGES, "another fingerprint"])
def test_a_checkpoint_that_is_damaged_or_of_another_training_is_ignored(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made, said = stopped_after(tmp_path, 4), "incomplete or damaged checkpoint"
    if how in DAMAGES:
        content = made.path.read_bytes()
        made.path.write_bytes(DAMAGES[how](content))
        assert made.path.read_bytes() != content
    else:
        made, said = replace(made, fingerprint="g"), "belongs to another training; ignored"
    with caplog.at_level(logging.WARNING):
        assert made.load_state() is None
        trained = train(network_options(), made)
    assert flat(trained.state).tolist() == flat(train(network_options(), None).state).tolist()
    assert said in caplog.text
    assert made.load_state() is not None  # the last step's state, at the usual path


def test_checkpoints_are_due_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    made = Checkpoints(folder=tmp_path, fingerprint="f", minutes=5)
    assert not made.is_due()
    now = 299.0
    assert not made.is_due()
    now = 300.0
    assert made.is_due()
    made.save_state(State(tensors={}, values={}))
    assert not made.is_due()
    now = 600.0
    assert made.is_due()


def test_tensors_and_values_come_back(tmp_path: Path) -> None:
    made = Checkpoints(folder=tmp_path / "new" / "folder", fingerprint="f")
    assert made.load_state() is None
    tensors = {
        "transposed": torch.arange(6.0).view(2, 3).T,
        "bytes": torch.arange(5, dtype=torch.uint8),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "nothing": torch.zeros(0),
        "one": torch.tensor(1.5),
    }
    values = {"large": 2**63 + 5, "nan": [float("nan"), 0.1], "text": "é"}
    made.save_state(State(tensors=tensors, values=values))
    state = made.load_state()
    assert state is not None
    assert str(state.values) == str(values)
    for name, one in tensors.items():
        assert state.tensors[name].dtype == one.dtype
        assert torch.equal(state.tensors[name], one)
    for name in ("x", "y"):
        (made.folder / f".{FILE}.{name}{PARTIAL_SUFFIX}").touch()
    assert made.load_state() is not None
    assert [*made.folder.iterdir()] == [made.path], "others were left by killed processes"
    (made.folder / "other").touch()
    made.remove_checkpoint()
    assert [*made.folder.iterdir()] == [made.folder / "other"]
    (made.folder / "other").unlink()
    assert made.load_state() is None
    made.remove_checkpoint()
    assert not made.folder.exists()
    made.remove_checkpoint()
