"""The version of each stage's outputs.

Snakemake's trigger for changed code compares the times of scripts, which cloning changes, and
ignores the package; so profiles/default disables the trigger. Instead, each stage's version number
is a parameter of the stage's rules. Raise a stage's number when its output changes: each finished
study then repeats that stage and all later stages.
"""

from __future__ import annotations

import json
import os

from dpprobe import analysis_registry
from dpprobe.errors import ConfigError
from dpprobe.json_values import Difference, first_difference

VERSIONS = {
    "download": 1,
    "data": 3,
    "features": 2,
    "manifest": 4,  # before manifests counted copies, they used the number of "features"
    "text": 2,
    "overlap": 2,
    "calibration": 7,
    "training": 5,
    "statement": 7,  # statements and metrics: cells are rewritten, with unchanged heads
    "summary": 10,
    "figures": 11,
    "tables": 9,
    "papers": 9,
    "tracking": 17,
    "report": 18,
    "release": 1,
    "fine_tuning": 2,
    "cuts": 1,
    "search": 1,
} | analysis_registry.VERSIONS

# The version in the identity, and so in the seeds, of each cell of a linear head. If only some
# heads change, raise their `MethodOptions.fit_version` and "training"; only these are retrained.
ALL_HEADS = 4

# The environment variable with the versions at the run's start, as JSON, for the run's jobs.
RUN_VERSIONS = "DPPROBE_VERSIONS"


def check_versions() -> None:
    """Raises ConfigError if the code has changed since the job's run began."""
    began = json.loads(os.environ.get(RUN_VERSIONS, "null"))
    if difference := first_difference(began or VERSIONS, VERSIONS, "versions"):
        raise ConfigError(describe_edit(difference))


def describe_edit(difference: Difference) -> str:
    return (
        f"{difference.place}: {difference.first} when this run began, {difference.second} "
        "now. The code was edited meanwhile; run again"
    )
