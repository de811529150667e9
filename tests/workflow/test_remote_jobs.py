"""Jobs on a cluster that end while no main process looks."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from dpprobe.logs import LASTING

from .conftest import Template, WarmPython, Workspace

# Runs the job at once, and does not come back until long after it has ended.
SBATCH = """#!/bin/sh
export SLURM_JOB_ID=17
sh >job.log 2>&1
sleep 100
"""


def test_what_nobody_noted_down_is_not_taken_for_current(
    workspace: Workspace, small: dict[str, Any]
) -> None:
    folder = workspace.directory / "bin"
    folder.mkdir()
    for name, text in {"sbatch": SBATCH, "squeue": "#!/bin/sh\n", "scancel": "#!/bin/sh\n"}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
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
    deadline = time.monotonic() + 300
    while not ended.exists() and main.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(main.pid, signal.SIGKILL)
    main.wait()
    assert ended.exists(), log.read_text()
    info = workspace.directory / "data/digits/dataset.json"
    assert info.is_file(), (workspace.directory / "job.log").read_text()
    workspace.run(small, "--unlock")
    small["datasets"]["digits"]["test_fraction"] = 0.4
    assert workspace.planned(small, "data", "--rerun-incomplete")["prepare_data"] == 1


def test_a_job_that_never_started_leaves_finished_cells_alone(
    workspace: Workspace, small: dict[str, Any], template: Template
) -> None:
    template(workspace, small, "heads")
    cell = workspace.cell("sgd", "2")
    before = {path.name: path.read_bytes() for path in cell.iterdir()}
    for name, answer in {"submit.sh": "17", "status.sh": "failed"}.items():
        (workspace.directory / name).write_text(f"#!/bin/sh\necho {answer}\n")
        (workspace.directory / name).chmod(0o755)
    scheduler_log = Path("logs/slurm/train_heads/digits/17.log")
    (workspace.directory / scheduler_log).parent.mkdir(parents=True)
    line = "slurmstepd: error: Detected 1 oom_kill event\n"
    (workspace.directory / scheduler_log).write_text(line)
    small["seed"] = 1
    # of an earlier run: it says nothing of this one
    log = workspace.directory / "results/logs/train_heads/digits/pixels/eps-2.log"
    log.write_text(f"10:00:00 ERROR shard.h5: damaged\n{LASTING}\n")
    os.utime(log, (0, 0))
    words = ["--executor", "cluster-generic", "--jobs", "1", "--seconds-between-status-checks", "1"]
    words += ["--cluster-generic-submit-cmd", "./submit.sh"]
    words += ["--cluster-generic-status-cmd", "./status.sh"]
    failed = workspace.run(small, "heads", "--retries", "1", *words, check=False)
    assert failed.returncode
    assert failed.stdout.count("Trying to restart job") == 1
    assert "Error in rule train_heads" in failed.stdout
    assert failed.stdout.splitlines()[-2:] == [
        "dpprobe: heads of digits, pixels, epsilon 2: Detected 1 oom_kill event",
        f"  log: {scheduler_log}",
    ]
    assert {path.name: path.read_bytes() for path in cell.iterdir()} == before
    assert workspace.planned(small, "heads")["train_heads"] == 1


# A signal ends it the first twelve times, and the next time the shell that ran it says so.
STATUS = """#!/bin/sh
echo >>asked
test $(wc -l <asked) -gt 12 || kill -TERM $$
test $(wc -l <asked) -gt 13 || exit 143
echo success
"""


def test_a_status_command_that_cannot_run_ends_the_run(
    workspace: Workspace, small: dict[str, Any]
) -> None:
    """Its state would be asked for ever."""
    (workspace.directory / "submit.sh").write_text("#!/bin/sh\necho 17\n")
    (workspace.directory / "submit.sh").chmod(0o755)
    words = ["--executor", "cluster-generic", "--jobs", "1", "--seconds-between-status-checks", "0"]
    words += ["--cluster-generic-submit-cmd", "./submit.sh"]
    words += ["--cluster-generic-status-cmd", "./missing.sh"]
    result = workspace.run(small, "data", *words, check=False)
    assert result.returncode == 1
    assert "Failed to obtain job status" in result.stdout


def test_status_commands_that_a_signal_ended_lose_no_job(
    workspace: Workspace, small: dict[str, Any]
) -> None:
    submit = f"#!/bin/sh\n{WarmPython.job()} >job.log 2>&1\necho 17\n"
    for name, text in {"submit.sh": submit, "status.sh": STATUS}.items():
        (workspace.directory / name).write_text(text)
        (workspace.directory / name).chmod(0o755)
    words = ["--executor", "cluster-generic", "--jobs", "1", "--seconds-between-status-checks", "0"]
    words += ["--cluster-generic-submit-cmd", "./submit.sh"]
    words += ["--cluster-generic-status-cmd", "exec ./status.sh"]
    output = workspace.run(small, "data", *words).stdout
    assert "Traceback" not in output
    assert len((workspace.directory / "asked").read_text().splitlines()) == 14


def test_a_profile_may_lie_in_a_folder_with_spaces(
    workspace: Workspace, small: dict[str, Any]
) -> None:
    folder = workspace.directory / "my profiles"
    folder.mkdir()
    commands = {
        "submit": f"{WarmPython.job()} >job.log 2>&1\necho 17\n",
        "status": "echo success\n",
    }
    for name, text in commands.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}")
        (folder / name).chmod(0o755)
    words = ["--executor", "cluster-generic", "--jobs", "1", "--seconds-between-status-checks", "0"]
    words += [f"--cluster-generic-{name}-cmd={folder}/{name}" for name in commands]
    workspace.run(small, "data", *words)
    assert (workspace.directory / "data/digits/dataset.json").is_file()
