"""All that differs between devices: memory, order, precision, and whose code runs.

Everything else moves tensors with `.to(device)` and is the same on each. A GPU takes its work in
order and lets the program go on: what is fetched from it may be read only after a mark that was
set behind it has been waited for. `tests/support/stand_in_device.py` has a device that keeps this
contract strictly on a processor, so that the way through a GPU is tested where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import torch

Mark = Any


class Accelerator(Protocol):
    """A device beside the processor, as extraction uses it.

    Attributes:
      device: its name for torch.
      loader_pins: True if a DataLoader moves batches into memory that the device copies from.
    """

    device: str
    loader_pins: bool

    def host_memory(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Returns memory of the host, not set to anything, that the device copies from and to."""
        ...

    def send(self, values: torch.Tensor) -> torch.Tensor:
        """Copies to the device; does not wait."""
        ...

    def fetch(self, values: torch.Tensor) -> torch.Tensor:
        """Copies to the host; to be read after a later mark was waited for."""
        ...

    def mark(self) -> Mark:
        """Sets a mark behind all work that was handed over so far."""
        ...

    def wait(self, mark: Mark) -> None:
        """Waits until the work before a mark is done."""
        ...

    def seconds(self, first: Mark, second: Mark) -> float:
        """Returns the device's time between two marks that it has passed."""
        ...


class Cuda:
    """An NVIDIA GPU: the first one that this process sees."""

    device = "cuda"
    loader_pins = True

    def host_memory(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)

    def send(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(self.device, non_blocking=True)

    def fetch(self, values: torch.Tensor) -> torch.Tensor:
        return self.host_memory(values.shape, values.dtype).copy_(values, non_blocking=True)

    def mark(self) -> Mark:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self, mark: Mark) -> None:
        mark.synchronize()

    def seconds(self, first: Mark, second: Mark) -> float:
        return float(first.elapsed_time(second)) / 1000


def accelerator(device: str) -> Accelerator | None:
    """Returns the accelerator of a torch device's name; None for the processor."""
    return Cuda() if is_gpu(device) else None


def is_gpu(device: str) -> bool:
    return device.startswith("cuda")


def default_precision(device: str) -> Literal["float16", "float32"]:
    """Returns the precision of a forward pass that `precision: auto` stands for."""
    return "float16" if is_gpu(device) else "float32"


def autocast(device: torch.device | str, precision: torch.dtype | None) -> torch.autocast:
    """Lets products run in a precision; None for that of the weights."""
    kind = "cuda" if is_gpu(str(device)) else "cpu"
    return torch.autocast(kind, dtype=precision, enabled=precision is not None)


def has_kernels(device: torch.device) -> bool:
    """Returns True where our compiled loops run; elsewhere the same sums are torch's products."""
    return device.type == "cpu"
