"""The training job: trains all methods of one (dataset, backbone, epsilon), cell by cell.

Up-to-date cells are reused. If a cell lacks seeds, only the missing seeds are trained. If a cell's
privacy statement is old, only the statement is replaced. A cell with any other change is trained
again. Finished cells are in the store (`dpprobe.files.result_store`), and are linked into the job's
outputs when the job ends. If a method fails, the next job finds the cells of all other methods.
"""

from __future__ import annotations

import logging

from dpprobe.devices import limit_threads
from dpprobe.training.tasks import OpenedJob, make_failure

logger = logging.getLogger("dpprobe")


def train_job(opened: OpenedJob, *, device: str, memory_mb: int, threads: int) -> None:
    """Brings every cell of a job up to date.

    Raises PrivacyError before training if a public file shares many rows with private data. Raises
    DpprobeError, naming each method that failed, after all other methods were trained and stored.

    Args:
      memory_mb: the limit above which features, as float32, are streamed from disk.
    """
    tasks = [opened.make_task(name, device=device) for name in opened.planned_methods]
    stale = []
    for task in tasks:
        if task.is_current():
            logger.info(
                "%s: reused, because nothing that it depends on has changed", task.name.method
            )
        else:
            stale.append(task)
    inputs = opened.compare_rows(stale)
    errors: dict[str, Exception] = {}
    if stale:
        # imports torch and compiled kernels, which takes seconds
        from dpprobe.training.head_fits import train_cells

        limit_threads(threads)
        errors = train_cells(stale, inputs, opened.stores[1], memory_mb=memory_mb)
    if opened.failure_reasons or errors:
        raise make_failure(opened.failure_reasons, errors)
    for task in tasks:
        task.publish_cell()
