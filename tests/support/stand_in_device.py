"""A device on the CPU that follows a GPU's rules strictly.

Fetched numbers are NaN until the caller has waited for a later mark, and only the device's own
memory may be sent. So reading too early, or sending other memory, fails always; on a GPU it would
be a race that fails rarely.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from dpprobe.devices import Accelerator


@dataclass
class StandIn(Accelerator):
    """An `Accelerator` that does its work only when the caller waits.

    Attributes:
      sent, fetched, waited: number of calls of each kind.
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
