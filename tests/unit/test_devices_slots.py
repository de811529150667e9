"""Each process gets a GPU by environment variables and locks only, so tests need no GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from dpprobe import devices
from dpprobe.devices import (
    lacks_gpu,
    reserve_devices,
    slot_names,
    take_device,
    visible_devices,
)
from dpprobe.errors import DeviceError

FOUR = ["nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm", "null"]


@pytest.fixture(autouse=True)
def let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_held", [])
    monkeypatch.setattr(devices, "_seen", [])


@pytest.mark.parametrize(
    ("environment", "nodes", "wanted"),
    [
        ({}, [], ()),
        ({}, FOUR, ("0", "1", "2", "3")),
        ({"CUDA_VISIBLE_DEVICES": ""}, FOUR, ()),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, FOUR, ()),
        ({"CUDA_VISIBLE_DEVICES": "2"}, FOUR, ("2",)),
        ({"CUDA_VISIBLE_DEVICES": "3, 1"}, FOUR, ("3", "1")),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,2"}, FOUR, ("0",)),
        ({"CUDA_VISIBLE_DEVICES": "1,1"}, FOUR, ("1",)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1a,GPU-2b"}, [], ("GPU-1a", "GPU-2b")),
    ],
)
def test_what_a_process_sees(
    environment: dict[str, str], nodes: list[str], wanted: tuple[str, ...]
) -> None:
    assert visible_devices(environment, nodes) == wanted


@pytest.mark.parametrize(
    ("available", "lacks"), [("True", False), ("False", True), ("1 / 0", False)]
)
def test_lacks_gpu_is_true_only_if_torch_reports_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, available: str, lacks: bool
) -> None:
    """If Python's torch is missing or broken, nothing is known about the jobs' environment."""
    (tmp_path / "torch.py").write_text(
        f"class cuda:\n    is_available = staticmethod(lambda: {available})\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert lacks_gpu() is lacks


def test_each_device_is_tried_once_before_one_is_shared() -> None:
    names = slot_names(["0", "1", "2"], {})
    assert [device for _, device in names[:7]] == ["0", "1", "2", "0", "1", "2", "0"]
    assert len({name for name, _ in names}) == len(names)
    # in another Slurm job, device 0 may be another device
    other = slot_names(["0", "1"], {"SLURM_JOB_ID": "17"})
    assert {name for name, _ in names}.isdisjoint(name for name, _ in other)


@pytest.mark.parametrize("seen", ["", "0", "GPU-1a"])
def test_no_device_is_reserved_if_fewer_than_two_are_visible(tmp_path: Path, seen: str) -> None:
    assert take_device({"CUDA_VISIBLE_DEVICES": seen}, nodes=FOUR, folder=tmp_path) is None
    assert not list(tmp_path.iterdir())


def test_processes_side_by_side_take_devices_of_their_own(tmp_path: Path) -> None:
    """Six processes share four devices; after one is killed, its device is free at once."""
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from dpprobe.devices import take_device\n"
        f"print(take_device({{}}, nodes={FOUR!r}, folder=Path(sys.argv[1])), flush=True)\n"
        "sys.stdin.read()\n"
    )

    def start() -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    processes = []
    try:
        processes += [start() for _ in range(6)]
        assert [device for _, device in processes] == ["0", "1", "2", "3", "0", "1"]
        killed, device = processes[2]
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        processes.append(start())
        assert processes[-1][1] == device
    finally:
        for process, _ in processes:
            process.kill()
            process.communicate()


def test_processes_that_train_one_network_have_different_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    taken = [take_device({"CUDA_VISIBLE_DEVICES": "4,5"}, folder=tmp_path) for _ in range(2)]
    assert taken == ["4", "5"], "by other jobs"
    assert reserve_devices(2, folder=tmp_path) == ["6", "4"]
    with pytest.raises(DeviceError, match=r"processes: 4, but .* 3 GPU\(s\).*`processes: 3`"):
        reserve_devices(4, folder=tmp_path)


def test_all_devices_that_a_process_saw_are_for_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    monkeypatch.setattr(devices, "take_device", partial(take_device, folder=tmp_path))
    devices.keep_one_device()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4"
    assert sorted(reserve_devices(2, folder=tmp_path)) == ["4", "5"]


def test_a_device_is_chosen_before_torch_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    monkeypatch.setattr(devices, "take_device", lambda: "5")

    def available() -> bool:
        seen.append(os.environ["CUDA_VISIBLE_DEVICES"])
        return True

    monkeypatch.setattr("torch.cuda.is_available", available)
    assert devices.resolve_device("auto") == "cuda"
    assert seen == ["5"]
