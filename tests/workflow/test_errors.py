"""A wrong study stops before any job, and a killed run loses no finished results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dpprobe.privacy.statement_words import explain_statement
from tests.support.programs import run_program

from .conftest import PREPARED, Template, WarmPython, Workspace, on_cluster


def test_an_allowed_delta_above_one_over_n_is_used_and_stated(
    workspace: Workspace, small: dict[str, Any]
) -> None:
    small |= {"delta": 0.01, "allow_delta_above_one_over_n": True}
    result = workspace.run(small, "heads", "tables")
    above = "delta 0.01 is above 1/n = 0.000695 (n = 1438 training rows): this delta would allow"
    assert f"datasets.digits: {above}" in result.stdout
    log = workspace.directory / "results/logs/calibrate/digits/eps-2.log"
    assert log.read_text().count(above) == 1
    statement = json.loads((workspace.cell("sgd", "2") / "privacy.json").read_text())
    assert "0.000695" in explain_statement(statement).promise
    assert (statement["delta"], statement["delta_above_one_over_n"]) == (0.01, True)
    table = (workspace.directory / "results/tables/accuracy.md").read_text()
    assert "delta: digits 0.01 (above 1/n)." in table
    del small["allow_delta_above_one_over_n"]
    assert workspace.run(small, "heads", check=False).returncode != 0


def test_a_study_file_replaces_the_default_study(
    workspace: Workspace, small: dict[str, Any], repository: Path
) -> None:
    # Snakemake would merge a default config.yaml in the working directory into the study.
    (workspace.directory / "config.yaml").write_text((repository / "config.yaml").read_text())
    planned = workspace.planned(small, "heads")
    assert (planned["train_heads"], planned["extract_features"]) == (1, 2)
    # a dataset may also be called study
    small["datasets"] = {"study": small["datasets"]["digits"]}
    assert workspace.planned(small, "tracking")["write_study_run"] == 1
    assert workspace.planned(small, "track_study")["track"] == 1


def seeds(workspace: Workspace, method: str) -> list[int]:
    record = json.loads((workspace.cell(method, "2") / "metrics.json").read_text())
    return [seed["index"] for seed in record["seeds"]]


def test_a_failed_job_over_finished_cells_does_not_pass_for_done(
    workspace: Workspace, small: dict[str, Any], template: Template
) -> None:
    """Snakemake deletes a failed job's cells, but the store has the cells of its other methods."""
    template(workspace, small, "heads")
    diverging = {"head": "sgd", "steps": 9, "learning_rate": 1e38, "max_grad_norm": 1e6}
    methods = small["methods"]
    workspace.run(small | {"methods": {**methods, "bad": {"head": "sgd", "steps": 9}}}, "heads")
    small["seeds"] = 3
    failing = {**small, "methods": {**methods, "bad": diverging}}
    result = workspace.run(failing, "heads", check=False)
    assert result.returncode != 0
    assert "bad: " in result.stdout
    assert "diverged at learning_rate 1e+38" in result.stdout
    assert workspace.planned(failing, "heads")["train_heads"] == 1
    workspace.run(small, "heads")
    assert seeds(workspace, "sgd") == [0, 1, 2]
    log = (workspace.directory / "results/logs/train_heads/digits/pixels/eps-2.log").read_text()
    assert "training seeds" not in log, "what the failed job had finished is used"
    assert "Nothing to be done" in workspace.run(small, "heads").stdout


# Submits by running the job at once, and writes how it ended.
SUBMIT = "{job} >job.log 2>&1 && echo success >ended || echo failed >ended\necho 17"


@pytest.mark.parametrize("remote", [False, True], ids=["here", "elsewhere"])
def test_an_error_that_stays_is_not_tried_again(
    workspace: Workspace, small: dict[str, Any], template: Template, remote: bool
) -> None:
    submit = SUBMIT.replace("{job}", WarmPython.job())
    words = on_cluster(workspace.directory, submit, "cat ended") if remote else []
    small["methods"]["sgd"] |= {"learning_rate": 1e38, "max_grad_norm": 1e6}
    template(workspace, small, *PREPARED)
    result = workspace.run(small, "heads", "--retries", "2", *words, check=False)
    assert result.returncode != 0
    lines = result.stdout.splitlines()
    assert lines[-2].startswith("dpprobe: heads of digits, pixels, epsilon 2: sgd: head sgd: ")
    assert "diverged at learning_rate 1e+38" in lines[-2]
    assert lines[-1] == "  log: results/logs/train_heads/digits/pixels/eps-2.log"
    error = lines[lines.index("Error in rule train_heads:") :]
    assert not [line for line in error if line.strip().startswith(("input:", "output:"))]
    assert result.stdout.count("\nError in rule train_heads") == 1
    assert "Trying to restart job" not in result.stdout


def test_an_unwritable_disk_is_reported_in_one_line(
    workspace: Workspace, small: dict[str, Any]
) -> None:
    space = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*space, "true"], check=False, capture_output=True).returncode:
        pytest.skip("the system gives no mount of one's own")
    notes = workspace.directory / ".snakemake"
    notes.mkdir()
    mount = f"mount -t tmpfs -o ro none {notes}"
    words = workspace.command("data", "--configfile", str(workspace.write(small)))
    result = run_program(
        [*space, "sh", "-c", f'{mount} && exec "$@"', "sh", *words], joined=True, check=False
    )
    assert result.returncode != 0
    assert "Traceback" not in result.stdout
    last = result.stdout.strip().splitlines()[-1]
    assert last.startswith(f"dpprobe: {notes}/")
    assert "cannot be written (Read-only file system); mount the disk for writing" in last


def test_a_killed_run_resumes_without_partial_files(
    workspace: Workspace, small: dict[str, Any]
) -> None:
    small["features"]["shards"] = 4
    small["methods"]["full"] = {"head": "sgd", "batch_size": "full", "epochs": None, "steps": 5}
    features = workspace.directory / "results/features"

    def has_three() -> bool:
        return len(list(features.rglob("shard-*.h5"))) >= 3

    with workspace.started(small, "heads", has_three) as process:
        os.killpg(process, signal.SIGKILL)
    finished = {path: path.stat().st_mtime_ns for path in features.rglob("shard-*.h5")}
    assert 3 <= len(finished) < 8
    workspace.run(small, "--unlock")
    workspace.run(small, "heads", "--rerun-incomplete")
    kept = [path for path, mtime in finished.items() if path.stat().st_mtime_ns == mtime]
    # a finished shard that Snakemake has not recorded yet may be made again
    assert len(kept) >= len(finished) - 2
    assert (workspace.cell("sgd", "2") / "metrics.json").is_file()
    assert (workspace.cell("full", "2") / "metrics.json").is_file()
    assert "Nothing to be done" in workspace.run(small, "heads").stdout
    assert not list(workspace.directory.glob("results/.cells/.*"))
