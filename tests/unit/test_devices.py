"""A process sees, takes and keeps devices, and computes with the right precision."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from dpprobe import devices
from dpprobe.errors import DeviceError


def test_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    for threads in (0, 1, 2):
        devices.limit_threads(threads)
        assert torch.get_num_threads() == max(threads, 1)
    torch.set_num_threads(before)
    monkeypatch.setattr(devices, "_held", [])
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(os, "listdir", lambda _: ["nvidia0", "nvidia1", "null"])
    monkeypatch.delenv(devices.VISIBLE, raising=False)
    taken = [devices.take_device({}) for _ in range(3)]
    taken += [devices.take_device({}, nodes=["nvidia0"]), devices.take_device({}, folder=tmp_path)]
    assert taken == ["0", "1", "0", None, "0"]
    slots = devices.slot_names(["0", "GPU-1"], {}), devices.slot_names(["0"], {"SLURM_JOB_ID": "7"})
    assert slots[0][:3] == [(".0.0", "0"), (".GPU-1.0", "GPU-1"), (".0.1", "0")]
    assert ([len(each) for each in slots], slots[1][1]) == ([128, 64], ("7.0.1", "0"))
    assert (tmp_path / f"dpprobe-gpus-{os.getuid()}").stat().st_mode & 0o777 == 0o700
    devices.keep_one_device()
    assert devices.VISIBLE not in os.environ, "this process holds a device"
    monkeypatch.setattr(devices, "_held", [])
    monkeypatch.setattr(devices, "_LEVELS", 1)
    assert [devices.take_device({}, folder=tmp_path / "b") for _ in range(3)] == ["0", "1", None]
    assert devices.count_devices() == 2
    monkeypatch.setattr(os, "listdir", lambda path: Path(path, "none").stat())
    assert devices.count_devices() == 0
    places = ("cpu", "cuda", "cuda:1")
    assert [devices.find_accelerator(each) is not None for each in places] == [False, True, True]
    assert [devices.default_precision(each) for each in places] == ["float32", *["float16"] * 2]
    casts = [devices.use_precision("cpu", each) for each in (None, torch.bfloat16)]
    assert [(each.device, each._enabled) for each in casts] == [("cpu", False), ("cpu", True)]
    monkeypatch.delenv("PATH")
    monkeypatch.setenv(devices.USER_PATH, "")  # monkeypatch restores it after the test
    monkeypatch.delenv(devices.USER_PATH)
    for _ in range(2):
        devices.put_python_on_path()
    assert os.environ[devices.USER_PATH] == os.defpath
    assert os.environ["PATH"].endswith(os.pathsep + os.defpath)


def test_without_a_gpu_a_study_of_gpus_has_its_identity_and_no_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(devices, "take_device", lambda: None)
    found = [devices.identity_device(each) for each in ("cpu", "cuda", "auto")]
    assert found == ["cpu", "cuda", "cpu"]
    with pytest.raises(DeviceError, match="torch sees no GPU; write `device: auto` or cpu"):
        devices.resolve_device("cuda")


def test_full_float32_ends_with_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, precision = torch.backends.cudnn, torch.get_float32_matmul_precision()
    before = {"deterministic": False, "benchmark": True, "allow_tf32": True}
    for name, value in before.items():
        monkeypatch.setattr(backend, name, value)

    def settings() -> list[object]:
        return [torch.get_float32_matmul_precision(), *(getattr(backend, name) for name in before)]

    torch.set_float32_matmul_precision("medium")
    with devices.use_full_float32():
        within = settings()
    with pytest.raises(KeyError), devices.use_full_float32():
        raise KeyError
    after = settings()
    torch.set_float32_matmul_precision(precision)
    assert within == ["highest", True, False, False]
    assert after == ["medium", *before.values()], "also if the block fails"
