"""A device on the processor that keeps a GPU's contract strictly.

What is fetched from it are numbers that are none until a mark behind it was waited for, and memory
that is sent must be its own: whoever reads too early, or sends from elsewhere, gets what would be a
race on a GPU each time and not now and then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from dpprobe.devices import Accelerator


@dataclass
class StandIn(Accelerator):
    """An `Accelerator` whose work is done when it is waited for.

    Attributes:
      sent, fetched, waited: how often each was called.
    """

    device: str = "cpu"
    sent: int = 0
    fetched: int = 0
    waited: int = 0
    _memory: dict[int, torch.Tensor] = field(default_factory=dict)
    _pending: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    _done: int = 0

    def host_memory(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        memory = torch.empty(tuple(shape), dtype=dtype)
        memory.fill_(math.nan if dtype.is_floating_point else 77)
        self._memory[memory.data_ptr()] = memory
        return memory

    def copy_to_device(self, values: torch.Tensor) -> torch.Tensor:
        self.sent += 1
        assert values.data_ptr() in self._memory, "sent from memory that is not the device's"
        return values.clone()

    def copy_to_host(self, values: torch.Tensor) -> torch.Tensor:
        self.fetched += 1
        memory = self.host_memory(values.shape, values.dtype)
        self._pending.append((memory, values))
        return memory

    def set_mark(self) -> int:
        return len(self._pending)

    def wait_for_mark(self, mark: int) -> None:
        self.waited += 1
        for memory, values in self._pending[self._done : mark]:
            memory.copy_(values)
        self._done = max(self._done, mark)
