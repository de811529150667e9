"""Starts the processes for `ranks` on this machine, and ends all of them if one fails.

`torchrun` could also start them, but reports errors as tracebacks. A job needs one line per error,
the log lines of rank 0, and GPUs not used by other jobs. Ranks find each other in a private
temporary folder and communicate over the loopback device, so no port is open to other machines.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from itertools import pairwise
from logging.handlers import QueueHandler
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from dpprobe.devices import VISIBLE, is_gpu, reserve_devices
from dpprobe.errors import WorkerError
from dpprobe.finetune.ranks import TIMEOUT, Ranks, join_ranks

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

_END_SECONDS = 10
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}

Work = Callable[[Ranks], None]


def run_ranks(work: Work, count: int, *, device: str, timeout: timedelta = TIMEOUT) -> None:
    """Calls `work(ranks)` in `count` new processes; returns when all have succeeded.

    If a rank fails, ends the others and raises its error, or WorkerError if it was killed or did
    not answer within `timeout`. Raises DeviceError if there are fewer GPUs than ranks. Log lines of
    rank 0 go to this process's handlers.

    Args:
      work: a picklable function.
      device: "cpu", or "cuda" for one GPU per rank.
    """
    gpus = reserve_devices(count) if is_gpu(device) else []
    local = _LOOPBACK if sys.platform == "linux" else {}
    context = multiprocessing.get_context("spawn")
    processes: list[SpawnProcess] = []
    receivers = []
    with tempfile.TemporaryDirectory(prefix="dpprobe-ranks-") as folder:
        try:
            for rank in range(count):
                place = {
                    "device": device,
                    "place": f"file://{folder}/meeting",
                    "rank": rank,
                    "count": count,
                    "timeout": timeout,
                }
                environment = local | ({VISIBLE: gpus[rank]} if gpus else {})
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(
                    target=_run_rank, args=(work, sender, environment), kwargs=place
                )
                process.start()
                sender.close()  # so that the pipe closes when the process ends
                processes.append(process)
                receivers.append(receiver)
            _watch(processes, receivers)
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.join(_END_SECONDS)
                process.kill()
                process.join()


def _watch(processes: list[SpawnProcess], receivers: list[Connection]) -> None:
    """Handles log lines until all ranks have ended; raises the first failure's error."""
    errors: dict[int, BaseException] = {}
    ranks: dict[Any, int] = {receiver: rank for rank, receiver in enumerate(receivers)}
    while ranks:
        receiver: Any
        for receiver in wait([*ranks]):
            try:
                sent = receiver.recv()
            except (EOFError, OSError):  # OSError if it was killed while sending
                sent = None
            if sent is None:
                rank = ranks.pop(receiver)
                _check_end(processes[rank], rank, len(processes), errors.get(rank))
            elif isinstance(sent, logging.LogRecord):
                logging.getLogger(sent.name).handle(sent)
            else:
                errors[ranks[receiver]] = _join_chain(sent)


def _check_end(process: SpawnProcess, rank: int, count: int, error: BaseException | None) -> None:
    process.join()
    if error is not None:
        raise error
    code = process.exitcode or 0
    if code:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        raise WorkerError(
            f"fine_tuning.processes: process {rank} of {count} {how}, often for lack of memory; "
            "run again with more memory to resume from the last checkpoint"
        )


def _run_rank(
    work: Work, sender: Connection, environment: Mapping[str, str], *, rank: int, **place: Any
) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent also gets Ctrl-C, and ends the ranks
    os.environ.update(environment)
    logging.captureWarnings(True)
    root, ours = logging.getLogger(), logging.getLogger("dpprobe")
    root.handlers = [_Sender(sender)]  # type: ignore[arg-type]
    # other ranks would repeat the lines of rank 0
    for logger, level in ((root, logging.WARNING), (ours, logging.INFO)):
        logger.setLevel(level if rank == 0 else logging.ERROR)
    try:
        with join_ranks(rank=rank, **place) as ranks:
            work(ranks)
    except Exception as error:
        error.add_note(traceback.format_exc())  # pickle would lose it
        sender.send([*_list_chain(error)])
        sys.exit(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class _Sender(QueueHandler):
    """Sends log records through a pipe."""

    def enqueue(self, record: logging.LogRecord) -> None:
        self.queue.send(record)  # type: ignore[attr-defined]


def _list_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and its causes, which pickle drops but retries of jobs depend on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _join_chain(errors: list[BaseException]) -> BaseException:
    for error, cause in pairwise(errors):
        error.__cause__ = cause
    return errors[0]
