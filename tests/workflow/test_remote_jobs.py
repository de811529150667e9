"""Jobs on a cluster may end while no main process watches."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dpprobe.files.logs import LASTING

from .conftest import (
    Template,
    WarmPython,
    Workspace,
    contents,
    on_cluster,
    wait_until,
    write_scripts,
)

pytestmark = pytest.mark.slow

# Runs the job at once, but returns long after the job's end.
SBATCH = """
export SLURM_JOB_ID=17
sh >job.log 2>&1
sleep 100
"""


def test_files_without_a_record_of_their_job_are_stale(
    workspace: Workspace, small: dict[str, Any]
) -> None:
    folder = workspace.directory / "bin"
    folder.mkdir()
    write_scripts(folder, sbatch=SBATCH, squeue="", scancel="")
    profile = str(workspace.repository / "slurm")
    words = [word if word != "none" else profile for word in workspace.command("data")]
    study = str(workspace.write(small))
    log = workspace.directory / "snakemake.log"
    with log.open("w") as stream:
        main = subprocess.Popen(
            [*words, "--configfile", study],
            env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    ended = workspace.directory / ".snakemake/slurm/17.exit"
    wait_until(ended.exists, main)
    os.killpg(main.pid, signal.SIGKILL)
    main.wait()
    info = workspace.directory / "data/digits/dataset.json"
    assert info.is_file(), (workspace.directory / "job.log").read_text()
    workspace.run(small, "--unlock")
    small["datasets"]["digits"]["test_fraction"] = 0.4
    assert workspace.planned(small, "data", "--rerun-incomplete")["prepare_data"] == 1


def test_a_job_that_never_started_leaves_what_was_trained(
    workspace: Workspace, small: dict[str, Any], template: Template
) -> None:
    template(workspace, small, "heads")
    cell = workspace.cell("sgd", "2")
    before = contents(cell)
    scheduler_log = Path("logs/slurm/train_heads/digits/17.log")
    (workspace.directory / scheduler_log).parent.mkdir(parents=True)
    line = "slurmstepd: error: Detected 1 oom_kill event\n"
    (workspace.directory / scheduler_log).write_text(line)
    small["seed"] = 1
    # an earlier run's log, which says nothing about this run
    log = workspace.directory / "results/logs/train_heads/digits/pixels/eps-2.log"
    log.write_text(f"10:00:00 ERROR shard.h5: damaged\n{LASTING}\n")
    os.utime(log, (0, 0))
    words = on_cluster(workspace.directory, "echo 17", "echo failed")
    failed = workspace.run(small, "heads", "--retries", "1", *words, check=False)
    assert failed.returncode
    assert failed.stdout.count("Trying to restart job") == 1
    assert "Error in rule train_heads" in failed.stdout
    assert failed.stdout.splitlines()[-2:] == [
        "dpprobe: heads of digits, pixels, epsilon 2: Detected 1 oom_kill event",
        f"  log: {scheduler_log}",
    ]
    assert workspace.planned(small, "heads")["train_heads"] == 1
    small["seed"] = 0  # Snakemake deleted the cell, but the store has it
    workspace.run(small, "heads")
    assert contents(cell) == before
    assert "sgd: reused" in log.read_text()


# A signal ends the first twelve calls; the next call ends like a shell that reports the signal.
STATUS = """
echo >>asked
test $(wc -l <asked) -gt 12 || kill -TERM $$
test $(wc -l <asked) -gt 13 || exit 143
echo success
"""


def test_a_status_command_that_cannot_run_ends_the_run(
    workspace: Workspace, small: dict[str, Any]
) -> None:
    """Otherwise the run would ask for the job's state forever."""
    words = on_cluster(workspace.directory, "echo 17", "")
    (workspace.directory / "status").unlink()
    result = workspace.run(small, "data", *words, check=False)
    assert result.returncode == 1
    assert "Failed to obtain job status" in result.stdout


def test_status_commands_that_a_signal_ended_lose_no_job(
    workspace: Workspace, small: dict[str, Any]
) -> None:
    words = on_cluster(workspace.directory, f"{WarmPython.job()} >job.log 2>&1\necho 17", STATUS)
    words += [f"--cluster-generic-status-cmd=exec {workspace.directory}/status"]
    words += ["--seconds-between-status-checks", "0"]
    output = workspace.run(small, "data", *words).stdout
    assert "Traceback" not in output
    assert len((workspace.directory / "asked").read_text().splitlines()) == 14


def test_a_profile_may_lie_in_a_folder_with_spaces(
    workspace: Workspace, small: dict[str, Any]
) -> None:
    folder = workspace.directory / "my profiles"
    folder.mkdir()
    words = on_cluster(folder, f"{WarmPython.job()} >job.log 2>&1\necho 17", "echo success")
    workspace.run(small, "data", *words)
    assert (workspace.directory / "data/digits/dataset.json").is_file()
