"""Studies in config/ plan the recorded jobs: rules, files, params, logs, messages.

The record has a line with hashes for each study, and one for each rule (over all studies).
Together, failed tests name the study, the rule and the field that changed. If a change is meant to
plan other jobs, run `python -m tests.workflow.test_planned_jobs` to update the record. To see the
differences, compare the output of `python -m tests.support.planned_jobs SNAKEFILE STUDY` in two
checkouts.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import REPOSITORY
from tests.support.planned_jobs import Digest, sum_up
from tests.support.programs import run_program

from .conftest import WarmPython

pytestmark = pytest.mark.slow

RECORD = REPOSITORY / "tests/stored/planned_jobs.json"
# Planning these needs tables with as many rows as the real ones.
LEFT_OUT = {
    "config.yaml",  # a link to the root's file
    "leaderboard_heads.yaml",
    "leaderboard_networks.yaml",
    "leaderboard_scattering.yaml",
    "medical_fairness.yaml",
    "medical_fine_tuning.yaml",
    "medical_fine_tuning_mimic.yaml",
    "medical_standin.yaml",
}
# For each of these, another study plans the same rules, for another dataset or other numbers.
ALIKE = {
    "cifar10_sgd.yaml",
    "cnn_fashion_mnist.yaml",
    "cnn_mnist.yaml",
    "features_second_order_cifar10.yaml",
    "large_scale_transfer_ablation_cifar10.yaml",
    "large_scale_transfer_best.yaml",
    "large_scale_transfer_crops_cifar10.yaml",
    "large_scale_transfer_full.yaml",
    "large_scale_transfer_models.yaml",
    "large_scale_transfer_one_step.yaml",
    "representation_law_vit_tiny.yaml",
    "scatternet_cifar10_rdp.yaml",
    "scatternet_cnn_cifar10.yaml",
    "scatternet_fashion_mnist.yaml",
    "scatternet_fashion_mnist_rdp.yaml",
    "scatternet_mnist.yaml",
}
STUDIES = [
    "config.yaml",
    *sorted(
        f"config/{path.name}"
        for path in (REPOSITORY / "config").glob("*.yaml")
        if path.name not in LEFT_OUT | ALIKE
    ),
]


def write_lesions(root: Path) -> None:
    """Writes 40 pictures of two classes into folders, and a CSV file that lists the pictures."""
    lines = ["file,diagnosis,patient,sex,age"]
    for row in range(40):
        name = ("benign", "malignant")[row % 2]
        path = root / "lesions" / name / f"{row:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), 4 * row, np.uint8)).save(path)
        lines.append(f"lesions/{name}/{row:02d}.png,{name},p{row},{'fm'[row % 2]},{20 + row}")
    (root / "lesions.csv").write_text("\n".join(lines) + "\n")


def write_owners_files(directory: Path) -> None:
    """Writes small stand-ins for files that users provide, all with the same modification time."""
    write_lesions(directory / "images")
    (directory / "config.yaml").write_bytes((REPOSITORY / "config.yaml").read_bytes())
    for path in directory.rglob("*"):
        os.utime(path, (1e9, 1e9))


def digest_plan(study: str, directory: Path) -> dict[str, Digest]:
    """Plans a study in its own folder, and returns the digest of each rule's jobs."""
    places = [str(REPOSITORY / "src"), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    words = ["--digest", str(REPOSITORY / "Snakefile"), str(REPOSITORY / study)]
    command = [sys.executable, "-m", "tests.support.planned_jobs", *words]
    result = run_program(
        WarmPython.asked(command),
        cwd=directory,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(places)},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    planned: dict[str, Digest] = json.loads(result.stdout)
    return planned


def sum_up_rules(planned: Mapping[str, Mapping[str, Digest]]) -> dict[str, str]:
    """Returns a line for each rule about its jobs in all studies."""
    rules = sorted({rule for digests in planned.values() for rule in digests})
    return {
        rule: sum_up({study: each[rule] for study, each in planned.items() if rule in each})
        for rule in rules
    }


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Digest]]:
    """Returns a function that plans a study, once for all tests."""
    directory = tmp_path_factory.mktemp("planned") / "project"
    write_owners_files(directory)
    return cache(partial(digest_plan, directory=directory))


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_plans_the_recorded_jobs(
    study: str, plan: Callable[[str], dict[str, Digest]]
) -> None:
    recorded = json.loads(RECORD.read_text())["studies"][study]
    assert sum_up(plan(study)).split() == recorded.split(), "the next test names the rules"


def test_each_rule_has_the_recorded_jobs_in_all_studies(
    plan: Callable[[str], dict[str, Digest]],
) -> None:
    recorded = json.loads(RECORD.read_text())["rules"]
    planned = sum_up_rules({study: plan(study) for study in STUDIES})
    assert recorded.keys() == planned.keys()
    changed = {
        rule: sorted(set(recorded[rule].split()) ^ set(line.split()))
        for rule, line in planned.items()
        if line != recorded[rule]
    }
    assert not changed


def test_every_recorded_study_exists() -> None:
    assert sorted(json.loads(RECORD.read_text())["studies"]) == sorted(STUDIES)


def main() -> None:
    """Records the jobs of every study again."""
    import tempfile

    with WarmPython.serving(), tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "project"
        write_owners_files(directory)
        planned = {study: digest_plan(study, directory) for study in STUDIES}
    studies = {study: sum_up(digests) for study, digests in planned.items()}
    record = {"studies": studies, "rules": sum_up_rules(planned)}
    RECORD.write_text(json.dumps(record, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
