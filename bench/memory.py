"""Measures a function's peak memory, without features and code, in a separate process."""

from __future__ import annotations

import gc
import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from clock import Work


def above(work: Work, warm: Work, device: str) -> float:
    """Returns the peak memory of `work` minus the memory used before, in bytes.

    First runs `warm`, which is `work` on few numbers, to load the code. On a CPU, both run in a
    forked process. Call `above` before any other work, because reuse of freed memory cannot be
    measured.
    """
    if device != "cpu":
        warm()
        return peak(work, device)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_measure, args=(sender, work, warm))
    child.start()
    sender.close()
    try:
        measured: float = receiver.recv()
    except EOFError:
        raise RuntimeError("the process that measures memory ended; was it short of it?") from None
    finally:
        child.join()
    return measured


def _measure(sender: Connection, work: Work, warm: Work) -> None:
    warm()
    sender.send(peak(work, "cpu"))


def peak(work: Work, device: str) -> float:
    """Returns this process's peak memory (Linux's VmHWM) minus memory before, in bytes."""
    gc.collect()
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return float(torch.cuda.max_memory_allocated() - before)
    # Writing 5 to clear_refs sets Linux's recorded peak to the memory that is used now.
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    resident = _status("VmRSS")
    work()
    return _status("VmHWM") - resident


def _status(name: str) -> float:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return 1024.0 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {name}: memory is measured on Linux only")
