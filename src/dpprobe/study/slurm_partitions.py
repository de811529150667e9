"""The partitions of a Slurm cluster, and which of them have GPUs.

Planning asks Slurm once, because a partition without GPUs refuses jobs for GPUs or never runs them.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass

from dpprobe.errors import DpprobeError

TIMEOUT = 60  # seconds
# Prints one line per partition and kind of node, with the node's devices: "main*|gpu:a100:4".
COMMAND = ("sinfo", "--all", "--noheader", "--format=%P|%G")
_GPU = re.compile(r"(^|,)gpu\b")


@dataclass(frozen=True)
class Partitions:
    """The partitions of a cluster.

    Attributes:
      with_gpus: partitions with a GPU node.
      default: the partition of jobs that name no partition.
    """

    with_gpus: frozenset[str]
    default: str | None

    def name_partition(self, wanted: str | None) -> str | None:
        """Returns the partition of a job; several partitions are separated by commas."""
        return wanted or os.environ.get("SBATCH_PARTITION") or self.default

    def has_gpus(self, wanted: str | None) -> bool:
        """Returns True if any partition in which the job may run has GPUs."""
        names = (self.name_partition(wanted) or "").split(",")
        return not self.with_gpus.isdisjoint(names)


def read_partitions(text: str) -> Partitions:
    """Reads the output of the Slurm command `COMMAND`."""
    lines = [line.strip().partition("|") for line in text.splitlines()]
    names = [(name.removesuffix("*"), name.endswith("*"), gres) for name, _, gres in lines]
    return Partitions(
        with_gpus=frozenset(name for name, _, gres in names if _GPU.search(gres)),
        default=next((name for name, marked, _ in names if marked), None),
    )


def ask_partitions() -> Partitions:
    """Asks Slurm for its partitions; raises DpprobeError with the reason if it fails."""
    # the user's settings, such as SINFO_PARTITION, would hide partitions
    environment = {name: value for name, value in os.environ.items() if name[:6] != "SINFO_"}
    try:
        result = subprocess.run(
            COMMAND, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except FileNotFoundError:
        raise DpprobeError("sinfo: command not found") from None
    except OSError as error:
        raise DpprobeError(f"sinfo: cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise DpprobeError(f"sinfo: no answer in {TIMEOUT} s") from None
    if result.returncode:
        said = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
        raise DpprobeError(f"sinfo: {said[-1].removeprefix('sinfo: ')}")
    return read_partitions(result.stdout)
