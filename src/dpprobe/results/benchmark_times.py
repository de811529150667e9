"""The times in benchmarks that Snakemake writes for its jobs."""

from __future__ import annotations

import csv
from pathlib import Path

from dpprobe.errors import DataError


def read_benchmark(path: Path, column: str) -> float:
    """Reads the mean of one column of a job's benchmark file over the job's repetitions.

    Args:
      column: "s" for wall-clock seconds, "cpu_time" for seconds of all cores.

    Raises:
      DataError: if the file is not a benchmark of Snakemake.
    """
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream, delimiter="\t"))
        return sum(float(row[column]) for row in rows) / len(rows)
    except (KeyError, ValueError, ZeroDivisionError) as error:
        raise DataError(
            f"{path}: not a benchmark file of Snakemake ({error!r}); delete the file and run the "
            "study again"
        ) from None
