"""A run uses the study and code from its start; both may be edited while jobs wait."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpprobe.files.json_files import parse_values

from .conftest import PREPARED, Template, WarmPython, Workspace, copy_code, on_cluster

pytestmark = pytest.mark.slow

# Runs each job at once; after the first training job, runs the test's edit.
SUBMIT = """
{job} >>jobs.log 2>&1
echo $? >ended
if grep -q '"rule": "train_heads' "$1" && test -f edit.sh; then mv edit.sh done.sh; sh done.sh; fi
echo 17
"""
STATUS = 'test "$(cat ended)" = 0 && echo success || echo failed'
EPSILONS = ("1", "2")


@pytest.fixture
def study(small: dict[str, Any]) -> dict[str, Any]:
    small["epsilons"] = [1, 2]
    small["features"] = {"shards": 1}
    small["methods"]["sgd"]["learning_rate"] = 0.1
    return small


@pytest.fixture
def cluster(workspace: Workspace, study: dict[str, Any], template: Template) -> Workspace:
    """Returns a workspace of the study before its heads are trained."""
    template(workspace, study, *PREPARED)
    return workspace


def run_remotely(
    workspace: Workspace, study: dict[str, Any], *arguments: str, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Runs a study on a simulated cluster, one job at a time."""
    words = on_cluster(workspace.directory, SUBMIT.replace("{job}", WarmPython.job()), STATUS)
    return workspace.run(study, *arguments, *words, "--latency-wait", "2", check=check)


def edit(workspace: Workspace, study: dict[str, Any]) -> None:
    """Makes the study file change after the first training job."""
    (workspace.directory / "edited.yaml").write_text(yaml.safe_dump(study))
    (workspace.directory / "edit.sh").write_text("cp edited.yaml study.yaml\n")


def metrics(workspace: Workspace, epsilon: str) -> Path:
    return workspace.cell("sgd", epsilon) / "metrics.json"


def learning_rates(workspace: Workspace) -> list[float]:
    records = [json.loads(metrics(workspace, epsilon).read_text()) for epsilon in EPSILONS]
    return [record["options"]["learning_rate"] for record in records]


def test_an_edit_while_jobs_wait_belongs_to_the_next_run(
    cluster: Workspace, study: dict[str, Any]
) -> None:
    """The edit changes a value, and adds a method, an epsilon and seeds."""
    edited = json.loads(json.dumps(study))
    edited["methods"]["sgd"]["learning_rate"] = 0.001
    edited["methods"]["momentum"] = {**study["methods"]["sgd"], "head": "momentum"}
    edited["epsilons"].append(4)
    edited["seeds"] = 3
    edit(cluster, edited)
    run_remotely(cluster, study, "summaries")
    assert (cluster.directory / "done.sh").is_file(), "nothing was edited"
    assert learning_rates(cluster) == [0.1, 0.1]
    assert "Nothing to be done" in cluster.run(study, "summaries").stdout
    cluster.run(study, "figures", "tables")
    run_remotely(cluster, study, "html_report")
    report = (cluster.directory / "results/report.html").read_text()
    assert "--configfile study.yaml" in report
    assert ".snakemake" not in report, "a snapshot is nothing to type"
    assert cluster.planned(edited, "heads")["train_heads"] == 3


@pytest.mark.parametrize("remote", [False, True], ids=["local", "cluster"])
def test_a_job_of_edited_code_refuses(
    cluster: Workspace,
    study: dict[str, Any],
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    remote: bool,
) -> None:
    clone = copy_code(repository, tmp_path / "clone")
    monkeypatch.setenv("PYTHONPATH", str(clone / "src"))
    cloned = Workspace(repository=clone, directory=cluster.directory)
    versions = clone / "src/dpprobe/versions.py"
    raised = re.sub(
        r'"training": (\d+)', lambda match: f'"training": {int(match[1]) + 1}', versions.read_text()
    )
    (cluster.directory / "raised.py").write_text(raised)
    script = f"cp raised.py {versions}\n"
    (cluster.directory / "edit.sh").write_text(script)
    if remote:
        result = run_remotely(cloned, study, "heads", check=False)
        said = (cluster.directory / "jobs.log").read_text()
    else:
        first = clone / "scripts/train_heads.py"
        first.write_text(f"{first.read_text()}\n    import os\n    os.system('sh edit.sh')\n")
        result = cloned.run(study, "heads", "--jobs", "1", check=False)
        said = result.stdout
    assert result.returncode
    assert re.search(r"versions\.training: \d+ when this run began, \d+ now", said)
    assert sum(metrics(cluster, epsilon).is_file() for epsilon in EPSILONS) == 1


def test_a_record_that_disagrees_with_the_study_is_stale(
    cluster: Workspace, study: dict[str, Any]
) -> None:
    cluster.run(study, "heads")
    cell = metrics(cluster, "1")
    before = cell.read_bytes()
    record = parse_values(before)
    record["options"]["learning_rate"] = 0.001
    cell.write_text(json.dumps(record))
    planned = cluster.run(study, "--dry-run", "heads").stdout
    (line,) = [line for line in planned.splitlines() if "records disagree" in line]
    assert str(Path(*cell.parts[-7:])) in line
    assert "learning_rate: 0.001, and the study has 0.1" in line
    assert "train_heads" in planned
    for name, other in (("study_seed", 7), ("accountant", "rdp"), ("unit", "patient")):
        cell.write_text(json.dumps(parse_values(before) | {name: other}))
        planned = cluster.run(study, "--dry-run", "heads").stdout
        assert f"{name}: {other}, and the study has" in planned
        assert "train_heads" in planned
    cluster.run(study, "heads")
    after = json.loads(cell.read_text())
    assert after["options"] == json.loads(before)["options"]
    assert after["content_hash"] == json.loads(before)["content_hash"]
    again = cluster.run(study, "heads").stdout
    assert "Nothing to be done" in again
    assert "records disagree" not in again


def test_two_studies_that_share_a_results_folder(cluster: Workspace, study: dict[str, Any]) -> None:
    other = json.loads(json.dumps(study))
    other["study"] = "other"
    other["epsilons"] = [3]
    other["methods"]["sgd"]["learning_rate"] = 0.2
    # the other study replaces this one's file while this one's jobs wait
    edit(cluster, other)
    run_remotely(cluster, study, "heads")
    run_remotely(cluster, other, "heads")
    assert learning_rates(cluster) == [0.1, 0.1]
    for each in (study, other):
        output = cluster.run(each, "--dry-run", "heads").stdout
        assert "Nothing to be done" in output
        assert "records disagree" not in output


def test_a_job_does_not_build_the_whole_study(
    repository: Path, tmp_path: Path, small: dict[str, Any]
) -> None:
    """The cost of reading the rules in a job does not depend on the number of cells."""
    snakefile = tmp_path / "Snakefile"
    counted = "sum(len(rule.input) for rule in workflow.rules)"
    snakefile.write_text(
        f'include: "{repository / "Snakefile"}"\nprint("inputs of all rules:", {counted})\n'
    )
    workspace = Workspace(repository=tmp_path, directory=tmp_path)

    def inputs() -> int:
        output = workspace.run(small, "--dry-run", "data").stdout
        return int(output.split("inputs of all rules: ")[1].split()[0])

    sgd = small["methods"]["sgd"]
    small["methods"]["other"] = {**sgd, "epochs": 3}
    few = inputs()
    small["epsilons"] = list(range(1, 9))
    small["methods"] |= {f"sgd_{epochs}": {**sgd, "epochs": epochs} for epochs in range(4, 12)}
    small["features"]["shards"] = 8
    assert inputs() == few


def test_no_rule_file_has_a_hook(repository: Path) -> None:
    """A module's hooks would replace its workflow's hooks, or never run: see messages.smk."""
    files = [repository / "Snakefile", *(repository / "workflow").rglob("*.smk")]
    lines = [line.strip() for file in files for line in file.read_text().splitlines()]
    assert not {"onstart:", "onsuccess:", "onerror:"} & {*lines}
