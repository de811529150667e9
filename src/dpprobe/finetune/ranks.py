"""Trains one network in several processes, the ranks of `torch.distributed`.

The number of ranks affects only rounding. In particular, the plan does not depend on it:

- Released: per step, the sum of clipped gradients over the whole Poisson batch, plus noise. All
  ranks draw the same batch from the fit's seed, compare it, and take disjoint shares.
- Sensitivity: `max_grad_norm`, because each row is in one share and adds one clipped gradient.
- Noise: drawn once, by rank 0, after it has added up all sums. Rank 0 sends the noisy sum to the
  other ranks. So no other process has a stream of secret noise, and noise cannot be added twice.
- Privacy cost: the plan's.

Sums without noise pass between ranks, so all ranks must be as trusted as the private images.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
from torch import distributed

from dpprobe.devices import is_gpu
from dpprobe.errors import PrivacyError, WorkerError
from dpprobe.privacy.sampling import RowIndices

T = TypeVar("T")

# The longest wait: others wait while rank 0 fits probes and measures learning curves.
TIMEOUT = timedelta(minutes=30)
# Seconds before a rank reports lost contact, so that another rank's failure is reported first.
PATIENCE = 10.0


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process's rank among the processes that train a network; rank 0 leads."""

    rank: int = 0
    count: int = 1
    device: str = "cpu"

    @property
    def leads(self) -> bool:
        """True for rank 0, the only rank that draws noise, writes checkpoints and publishes."""
        return self.rank == 0

    def share_of(self, rows: RowIndices) -> RowIndices:
        """Returns this rank's rows of a batch; each row of the batch belongs to one rank."""
        return np.array_split(rows, self.count)[self.rank]

    def add_up(self, total: torch.Tensor) -> None:
        """Adds all ranks' totals to rank 0's, in place; other ranks' totals become undefined."""
        self._talk(distributed.reduce, total, dst=0)

    def send_from_leader(self, tensor: torch.Tensor) -> None:
        """Overwrites a tensor on all ranks with rank 0's tensor."""
        self._talk(distributed.broadcast, tensor, src=0)

    def compute_once(self, compute: Callable[[], T]) -> T:
        """Returns a result (such as a private release) that only rank 0 computes."""
        values: list[Any] = [compute() if self.leads else None]
        self._talk(distributed.broadcast_object_list, values, src=0)
        result: T = values[0]
        return result

    def require_equal(self, what: str, tensors: Iterable[torch.Tensor]) -> None:
        """Raises PrivacyError on all ranks unless their tensors are bit-identical."""
        if self.count == 1:
            return
        digest = hashlib.sha256()
        for one in tensors:
            digest.update(one.detach().cpu().contiguous().numpy().data)
        number = int.from_bytes(digest.digest()[:7], "big")  # fits an int64 with its sign
        ends = torch.tensor([number, -number], device=self.device)
        self._talk(distributed.all_reduce, ends, op=distributed.ReduceOp.MAX)
        if ends.sum().item() != 0:
            raise PrivacyError(
                f"fine_tuning.processes: {what} differ between the {self.count} processes; nothing "
                "is released; run again with `processes: 1`"
            )

    def _talk(self, collective: Callable[..., Any], *values: Any, **rest: Any) -> None:
        if self.count == 1:
            return
        try:
            collective(*values, **rest)
        except RuntimeError as error:
            time.sleep(PATIENCE)
            raise WorkerError(
                f"fine_tuning.processes: process {self.rank} of {self.count} gets no answer from "
                f"the others ({' '.join(str(error).split())[:200]}); run again to resume from the "
                "last checkpoint"
            ) from error


ALONE = Ranks()


@contextmanager
def join_ranks(
    device: str,
    *,
    place: str = "env://",
    rank: int = -1,
    count: int = -1,
    timeout: timedelta = TIMEOUT,
) -> Iterator[Ranks]:
    """Joins the ranks of a job: over NCCL on GPUs, over gloo on CPUs.

    By default, `torchrun`'s environment variables give rank and count. `place` is another
    `init_method` of `torch.distributed`, for which `rank` and `count` are required.
    """
    distributed.init_process_group(
        "nccl" if is_gpu(device) else "gloo",
        init_method=place,
        rank=rank,
        world_size=count,
        timeout=timeout,
    )
    yield Ranks(rank=distributed.get_rank(), count=distributed.get_world_size(), device=device)
    distributed.destroy_process_group()
