"""Fixtures for real Snakemake runs with the real profile on a real Slurm."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.warm_python import asking, asking_in_script, serving

from .cluster import Cluster, missing, running, wait_until

TIMEOUT = 1200  # seconds: a run that takes longer hangs, even on a busy machine

# Jobs of a test case run the shell commands in study.json, one per output. A complete file gets
# its final name last, like every artifact of the real workflow.
SNAKEFILE = """
configfile: "study.json"

# other rule files' parts of a plan
follow_run = tell_misplaced = lambda: None
changed_outputs, tell_raised = lambda jobs: [], lambda dag: None
check_storage = ready_jobs = lambda jobs: None

rule all:
    input: expand("out/{name}", name=config["commands"])

rule make:
    output: "out/{name}"
    log: "logs/make/{name}.log"
    params: command=lambda wildcards: config["commands"][wildcards.name]
    resources:
        mem_mb=lambda wildcards, attempt: 500 * attempt,
        runtime=lambda wildcards, attempt: attempt * (1 if wildcards.name == "slow" else 15),
    shell:
        "({params.command}) > {log} 2>&1; "
        "echo {wildcards.name} > {output}.part; mv {output}.part {output}"
"""


@dataclass(frozen=True)
class Run:
    """A started Snakemake, and the file with its output."""

    process: subprocess.Popen[str]
    log: Path
    cluster: Cluster

    @property
    def output(self) -> str:
        return self.log.read_text()

    def finish(self, timeout: float = TIMEOUT) -> int:
        """Returns the exit status. Kills a run that hangs, and fails the test."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            state = self.cluster.describe_state()
            pytest.fail(f"hangs after {timeout:g} s:\n{self.output[-3000:]}\n{state}")
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


@dataclass(frozen=True)
class Workspace:
    """A working directory with a Snakefile, and the cluster that runs its jobs.

    Attributes:
      socket: of the server that forks Pythons for runs and jobs; None if they start their own.
    """

    directory: Path
    cluster: Cluster
    profile: str
    socket: str | None = None

    def study(self, **commands: str) -> None:
        """Writes the study of a test case: a shell command for each output."""
        fixes = Path(self.profile).parent / "workflow/rules/snakemake_fixes.smk"
        (self.directory / "Snakefile").write_text(f'include: "{fixes}"\n{SNAKEFILE}')
        (self.directory / "study.json").write_text(json.dumps({"commands": commands}))

    def start(self, *arguments: str) -> Run:
        """Starts Snakemake with the profile in its own session; it polls job states often."""
        log = self.directory / f"output-{time.monotonic_ns()}.txt"
        snakemake = asking(self.socket, "-m", "snakemake") if self.socket else ["snakemake"]
        with log.open("w") as stream:
            process = subprocess.Popen(
                [
                    *snakemake,
                    "--profile",
                    self.profile,
                    "--seconds-between-status-checks",
                    "1",
                    "--latency-wait",
                    "10",
                    *arguments,
                ],
                cwd=self.directory,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                text=True,
                start_new_session=True,
                # as in a terminal; tests in a script's background would ignore it
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        return Run(process, log, self.cluster)

    def run(self, *arguments: str, succeeds: bool = True) -> str:
        """Runs Snakemake, checks that it ended as expected, and returns its output."""
        run = self.start(*arguments)
        status = run.finish()
        if (status == 0) != succeeds:
            pytest.fail(f"snakemake exited with {status}:\n{run.output[-6000:]}")
        return run.output

    def environment(self) -> dict[str, str]:
        environment = self.cluster.environment()
        folders = [str(Path(sys.executable).parent), environment["PATH"]]
        if self.socket:
            folders.insert(0, str(self._write_sbatch(self.socket, environment["PATH"])))
        return {**environment, "PATH": os.pathsep.join(folders)}

    def _write_sbatch(self, socket: str, path: str) -> Path:
        """Writes an `sbatch` whose jobs get their Python from the server; returns its folder."""
        sbatch = self.directory.parent / "warm/sbatch"
        real = shutil.which("sbatch", path=path)  # it reads the job script from standard input
        sbatch.parent.mkdir(exist_ok=True)
        sbatch.write_text(f'#!/bin/sh\n{asking_in_script(socket)} | {real} "$@"\n')
        sbatch.chmod(0o755)
        return sbatch.parent

    def in_state(self, state: str, rule: str) -> list[str]:
        """Returns the ids of a rule's jobs in a state."""
        words = ("squeue", "-h", "-t", state, "-o", "%i %j")
        lines = [line.split() for line in self.cluster.command(*words).splitlines()]
        return [job for job, name in lines if name.startswith(f"dpprobe.{rule}.")]

    def path(self, name: str) -> Path:
        return self.directory / "out" / name

    def started(self, name: str) -> bool:
        return (self.directory / "logs/make" / f"{name}.log").exists()

    def jobs(self) -> list[tuple[str, str]]:
        """Returns name and final state of each job that ended, from Slurm's job log."""
        log = self.cluster.jobs_log
        lines = log.read_text().splitlines() if log.exists() else []
        mine = f" WorkDir={self.directory} "
        return [
            (match.group(1), match.group(2))
            for line in lines
            if mine in line and (match := re.search(r" Name=(\S+) JobState=(\S+)", line))
        ]

    def counts(self) -> Counter[str]:
        """Counts the jobs that ended, by rule."""
        return Counter(name.split(".")[1] for name, _ in self.jobs())

    def queued(self) -> dict[str, str]:
        """Maps the names of waiting and running jobs to their ids."""
        listed = self.cluster.command("squeue", "-h", "-t", "PENDING,RUNNING", "-o", "%j %i %Z")
        fields = [line.split(" ", 2) for line in listed.splitlines()]
        return {name: job for name, job, folder in fields if folder == str(self.directory)}


def skip_or_fail(problem: str | None) -> None:
    """Skips these tests unless `make slurm-test` runs them; then a missing cluster is a failure."""
    if not os.environ.get("DPPROBE_REQUIRE_SLURM"):
        pytest.skip("run by `make slurm-test`")
    if problem:
        pytest.fail(problem)


@pytest.fixture(scope="session", params=["plain", "database"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Yields a node, once without and once with an accounting database (mariadb and slurmdbd)."""
    accounting = request.param == "database"
    skip_or_fail(missing(accounting=accounting))
    root = Path(tempfile.mkdtemp(prefix=f"dpprobe-{request.param}-"))
    root.chmod(0o755)  # every user's jobs start in it
    try:
        # GPUs on only one of the clusters: the other refuses jobs that request a GPU
        gpus = 0 if accounting else 2
        with running(Cluster(root=root, accounting=accounting, gpus=gpus)) as started:
            yield started
    finally:
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def workspace(repository: Path, cluster: Cluster, tmp_path: Path) -> Workspace:
    """Returns an empty directory for small cases."""
    return Workspace(tmp_path, cluster, str(repository / "slurm"))


def checkout(repository: Path, directory: Path) -> Path:
    """Copies the files of a user's `git clone`, and returns the copy."""
    ignored = shutil.ignore_patterns(
        ".*", "data", "results", "logs", "build", "dist", "tests", "bench", "__pycache__"
    )

    def ignore(folder: str, names: list[str]) -> set[str]:
        return set() if Path(folder) != repository else set(ignored(folder, names))

    shutil.copytree(repository, directory, symlinks=True, ignore=ignore)
    return directory


@pytest.fixture(scope="session")
def _socket() -> Iterator[str]:
    with serving(sys.executable, os.environ) as socket:
        yield socket


@pytest.fixture
def clone(
    repository: Path, cluster: Cluster, _socket: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Workspace:
    """Returns a copy of the repository, whose runs start at its root.

    Its runs and jobs are forked from a Python that has imported heavy libraries, since importing
    took most of a job's processor time. So Slurm sees only the process that asks for the fork: if
    a job's memory or signals matter, parameter "cold" makes each job start its own Python.
    """
    socket = None if getattr(request, "param", "warm") == "cold" else _socket
    return Workspace(checkout(repository, tmp_path / "dpprobe"), cluster, "slurm", socket)


def until(
    condition: Callable[[], bool], what: str, run: Run | None = None, seconds: float = 900
) -> None:
    """Waits until a condition is true while a run continues."""

    def met() -> bool:
        if condition():
            return True
        if run is not None and run.process.poll() is not None:
            pytest.fail(f"ended before {what}:\n{run.output[-4000:]}")
        return False

    wait_until(met, what, seconds)
