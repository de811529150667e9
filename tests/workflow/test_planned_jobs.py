"""The jobs of the studies in config/ are the recorded ones: rules, files, params, logs, messages.

A change that means to plan other jobs renews the record with
`python -m tests.workflow.test_planned_jobs`.
To see what differs, compare what `python -m tests.support.planned_jobs SNAKEFILE STUDY` prints for
two checkouts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import REPOSITORY

from .conftest import WarmPython

RECORD = REPOSITORY / "tests/stored/planned_jobs.json"
# Their tables must have as many rows as the real ones before anything is planned.
LEFT_OUT = {
    "config.yaml",  # the root's, by another name
    "leaderboard_heads.yaml",
    "leaderboard_networks.yaml",
    "leaderboard_scattering.yaml",
    "medical_fairness.yaml",
    "medical_fine_tuning.yaml",
    "medical_fine_tuning_mimic.yaml",
    "medical_standin.yaml",
}
STUDIES = [
    "config.yaml",
    *sorted(
        f"config/{path.name}"
        for path in (REPOSITORY / "config").glob("*.yaml")
        if path.name not in LEFT_OUT
    ),
]


def write_lesions(root: Path) -> None:
    """Writes 40 pictures of two classes as folders, and a CSV file that names them."""
    lines = ["file,diagnosis,patient,sex,age"]
    for row in range(40):
        name = ("benign", "malignant")[row % 2]
        path = root / "lesions" / name / f"{row:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), 4 * row, np.uint8)).save(path)
        lines.append(f"lesions/{name}/{row:02d}.png,{name},p{row},{'fm'[row % 2]},{20 + row}")
    (root / "lesions.csv").write_text("\n".join(lines) + "\n")


def write_owners_files(directory: Path) -> None:
    """Writes small stand-ins for files that studies expect from their owner, all of one time."""
    write_lesions(directory / "images")
    (directory / "config.yaml").write_bytes((REPOSITORY / "config.yaml").read_bytes())
    for path in directory.rglob("*"):
        os.utime(path, (1e9, 1e9))


def digest_plan(study: str, directory: Path) -> dict[str, str]:
    """Plans a study in a folder of its own and returns the digest of its jobs."""
    places = [str(REPOSITORY / "src"), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    words = ["--digest", str(REPOSITORY / "Snakefile"), str(REPOSITORY / study)]
    command = [sys.executable, "-m", "tests.support.planned_jobs", *words]
    result = subprocess.run(
        WarmPython.asked(command),
        cwd=directory,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(places)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    planned: dict[str, str] = json.loads(result.stdout)
    return planned


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("planned") / "project"
    write_owners_files(directory)
    return directory


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_plans_the_recorded_jobs(study: str, directory: Path) -> None:
    recorded = json.loads(RECORD.read_text())
    planned = digest_plan(study, directory)
    changed = {
        rule: (recorded[study].get(rule), planned.get(rule))
        for rule in sorted(recorded[study].keys() | planned)
        if recorded[study].get(rule) != planned.get(rule)
    }
    assert not changed


def test_every_recorded_study_exists() -> None:
    assert sorted(json.loads(RECORD.read_text())) == sorted(STUDIES)


def main() -> None:
    """Records the jobs of every study anew."""
    import tempfile

    with WarmPython.serving(), tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "project"
        write_owners_files(directory)
        planned = {study: digest_plan(study, directory) for study in STUDIES}
    RECORD.write_text(json.dumps(planned, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
