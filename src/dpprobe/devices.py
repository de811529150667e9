"""The device, threads and Python that a process computes with."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dpprobe.device_slots import keep_one_device
from dpprobe.errors import DeviceError


def resolve_device(name: str) -> str:
    """Returns the torch device of a study's `device`: "cpu" or "cuda".

    Of several GPUs the process keeps one, which no other of the node's processes has taken while
    there are enough; so it is called before anything else asks CUDA.

    Raises:
      DeviceError: when cuda is asked for and torch sees no GPU.
    """
    if name == "cpu":
        return name
    keep_one_device()
    import torch  # heavy: a start of Snakemake imports this module

    available = torch.cuda.is_available()
    if name == "auto":
        return "cuda" if available else "cpu"
    if name == "cuda" and not available:
        raise DeviceError("device: cuda was asked for, but torch sees no GPU; write auto or cpu")
    return name


def identity_device(name: str) -> str:
    """Returns the device that a study's `device` gives to cells: "cpu" or "cuda".

    Unlike `resolve_device` it needs no GPU where cuda is asked for: finished cells are kept on a
    machine without one.
    """
    return resolve_device(name) if name == "auto" else name


def limit_threads(threads: int) -> None:
    """Limits torch to the threads that the scheduler granted."""
    import torch  # as above

    torch.set_num_threads(max(1, threads))


def put_python_on_path() -> None:
    """Puts this process's Python first on PATH, so that commands it starts run under it."""
    folder = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join([folder, os.environ.get("PATH", os.defpath)])
