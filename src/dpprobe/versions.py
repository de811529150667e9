"""The version of each stage's outputs.

Nothing watches code: Snakemake's trigger for it goes by the times of scripts, which a clone
changes, and does not see the package; profiles/default switches it off. Each stage passes its
number here as a parameter: raise it when what the stage writes changes, and every finished study
redoes that stage and what descends from it.
"""

from __future__ import annotations

import json
import os

from dpprobe import analysis_registry
from dpprobe.differences import Difference, first_difference
from dpprobe.errors import ConfigError

VERSIONS = {
    "download": 1,
    "data": 2,
    "features": 2,
    "manifest": 3,  # it was written under the number of "features" until copies were counted
    "text": 2,
    "overlap": 2,
    "removal": 1,
    "calibration": 4,
    "training": 3,
    "statement": 4,  # statements and metrics: cells are written anew with their heads as they are
    "summary": 9,
    "figures": 8,
    "tables": 5,
    "papers": 7,
    "tracking": 9,
    "report": 11,
    "costly_images": 1,
    "tsne_page": 2,
    "release": 1,
    "fine_tuning": 1,
    "cuts": 1,
    "search": 1,
} | analysis_registry.VERSIONS

# The variable in which a job's script finds the versions that its run began with, as JSON.
RUN_VERSIONS = "DPPROBE_VERSIONS"


def check_versions() -> None:
    """Checks that the code has the versions that a job's run began with; outside a run nothing.

    Raises:
      ConfigError: naming the first stage whose version was changed meanwhile.
    """
    began = json.loads(os.environ.get(RUN_VERSIONS, "null"))
    if difference := first_difference(began or VERSIONS, VERSIONS, "versions"):
        raise ConfigError(edited(difference))


def edited(difference: Difference) -> str:
    """Returns the line that tells of code that was edited after a job's run began."""
    return (
        f"{difference.place}: {difference.first} when this run began, {difference.second} now: "
        "the code was edited; run again"
    )
