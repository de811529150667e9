"""Failures on a real Slurm neither hang the workflow nor lose finished results.

Cases with different ways to query a job's state run twice: on a cluster without an accounting
database and on one with a database. Other cases and the whole workflow run on one of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import pytest
import yaml

from tests.support.programs import run_program
from tests.support.warm_python import asking

from ..workflow.conftest import count_rules
from .cluster import Cluster
from .conftest import TIMEOUT, Run, Workspace, checkout, until

pytestmark = pytest.mark.slow
WITH_DATABASE = pytest.mark.parametrize("cluster", ["database"], indirect=True)
WITHOUT_DATABASE = pytest.mark.parametrize("cluster", ["plain"], indirect=True)
COLD = pytest.mark.parametrize("clone", ["cold"], indirect=True)

ALLOCATE = "python3 -c \"import time; block = b'x' * 700_000_000; time.sleep(4)\""


# Waits for a file of the test instead of a fixed time: a busy machine is slow.
GATE = "until test -e go; do sleep 0.2; done"


AWAY = 75  # seconds: longer than any wait for a job's state


def interrupt(run: Run) -> None:
    """Sends Ctrl-C to the whole foreground process group."""
    os.killpg(run.process.pid, signal.SIGINT)


def half_written(workspace: Workspace) -> list[Path]:
    """Returns outputs with wrong content."""
    made = [path for path in workspace.directory.glob("out/*") if path.suffix != ".part"]
    return [path for path in made if path.read_text() != f"{path.name}\n"]


def test_jobs_that_fail_in_every_way_and_one_that_does_not(workspace: Workspace) -> None:
    """One run has jobs that fail by exit 1, scancel, memory and time limits, and good jobs."""
    workspace.study(
        good="true",
        wrong="echo the reason is in here; exit 1",
        cancelled="test -e seen && exit 0; touch seen; sleep 200",
        hungry=ALLOCATE,
        slow="test -e tried && exit 0; touch tried; sleep 200",
        later="sleep 2",
    )
    run = workspace.start("--retries", "1")
    until(lambda: workspace.started("cancelled"), "the job to cancel", run)
    workspace.cluster.command("scancel", workspace.queued()["dpprobe.make.cancelled"])
    assert run.finish() != 0
    output = run.output
    made = {path.name for path in workspace.directory.glob("out/*")}
    assert made == {"good", "cancelled", "hungry", "slow", "later"}, output[-4000:]
    assert not half_written(workspace)
    for name, reason in {
        "wrong": "FAILED, exit code 1",
        "cancelled": "CANCELLED",
        "hungry": r"\w+, it needed more than its 500 MB",
        "slow": r"TIMEOUT, it needed more than its 1 minutes \(runtime\).*`make: {runtime: 2 \*",
    }.items():
        found = re.search(
            rf"slurm: job \d+ \(dpprobe.make.{name}\): {reason}.*; log: (\S+)", output
        )
        assert found, f"{name}:\n{output[-4000:]}"
        assert (workspace.directory / found.group(1)).is_file()
    assert "the reason is in here" in output, "the rule's own log is shown"
    # the next run repeats only the failed job
    workspace.study(good="true", wrong="true")
    before = len(workspace.jobs())
    workspace.run()
    assert [name for name, _ in workspace.jobs()[before:]] == ["dpprobe.make.wrong"]


@WITHOUT_DATABASE
def test_a_node_drained_in_mid_run(workspace: Workspace) -> None:
    cluster = workspace.cluster
    workspace.study(**{f"job{index}": GATE for index in range(6)})
    run = workspace.start()
    until(lambda: len(list(workspace.directory.glob("logs/make/*"))) >= 4, "four jobs", run)
    node = f"NodeName={cluster.host}"
    cluster.command("scontrol", "update", node, "State=DRAIN", "Reason=test")
    try:
        (workspace.directory / "go").touch()
        until(lambda: len(list(workspace.directory.glob("out/job?"))) >= 4, "running jobs", run)
        time.sleep(5)
        assert len(list(workspace.directory.glob("out/job?"))) == 4, "a drained node starts nothing"
        assert run.process.poll() is None
    finally:
        cluster.resume_node()
    assert run.finish() == 0, run.output[-4000:]
    assert [state for _, state in workspace.jobs()] == ["COMPLETED"] * 6
    assert not half_written(workspace)


@WITH_DATABASE
def test_a_node_that_cannot_start_a_job(workspace: Workspace) -> None:
    """Slurm drains the node and holds the job forever, so it must be submitted again."""
    cluster = workspace.cluster
    broken = cluster.root / "broken"
    broken.touch()
    workspace.study(one="true")
    try:
        run = workspace.start("--retries", "1")
        until(lambda: "LAUNCH_FAILED, its node could not start it" in run.output, "a note", run)
        until(lambda: len(workspace.queued()) == 1, "the next attempt alone", run)
    finally:
        broken.unlink()
        cluster.resume_node()
    assert run.finish() == 0, run.output[-4000:]
    assert workspace.jobs()[-1] == ("dpprobe.make.one", "COMPLETED")


@WITH_DATABASE
def test_slurmctld_killed_and_away(workspace: Workspace) -> None:
    """While slurmctld does not answer, jobs end and others become ready to be submitted."""
    cluster = workspace.cluster
    workspace.study(**{f"job{index}": GATE for index in range(6)})
    run = workspace.start("--jobs", "4")
    until(lambda: len(list(workspace.directory.glob("logs/make/*"))) >= 4, "four jobs", run)
    logs = f"{workspace.directory}/logs/slurm/make/job"
    until(lambda: cluster.saved(logs) >= 4, "slurmctld to write them down", run)
    cluster.kill_controller()
    try:
        (workspace.directory / "go").touch()
        time.sleep(AWAY)
        assert run.process.poll() is None, run.output[-4000:]
    finally:
        cluster.start_controller()
        cluster.start_node()  # the node may have stopped with the controller
    assert run.finish() == 0, run.output[-4000:]
    assert "Error in rule" not in run.output
    assert 1 <= run.output.count("waiting") <= 20
    # slurmctld loses the ends of jobs that it was processing when killed: the list is incomplete.
    names = [name for name, _ in workspace.jobs()]
    assert len(names) == len(set(names)), "each job ran once"
    assert {state for _, state in workspace.jobs()} == {"COMPLETED"}
    assert len(list(workspace.directory.glob("out/job?"))) == 6
    assert not half_written(workspace)


@WITHOUT_DATABASE  # Slurm delays requeued jobs for two minutes
def test_a_failing_node_is_reported(workspace: Workspace) -> None:
    """Its processes die; Slurm requeues the jobs or reports failures, and all outputs are made."""
    cluster = workspace.cluster
    ended = " ".join(("test -e go.$SLURM_JOB_ID && exit 0; echo >>started;", GATE))
    workspace.study(**{f"job{index}": ended for index in range(3)})
    run = workspace.start("--retries", "2")
    until(lambda: len(list(workspace.directory.glob("logs/make/*"))) >= 3, "three jobs", run)
    cluster.crash_node()
    (workspace.directory / "go").touch()
    cluster.start_node()
    assert run.finish() == 0, run.output[-4000:]
    assert len(list(workspace.directory.glob("out/job?"))) == 3
    assert len((workspace.directory / "started").read_text().splitlines()) == 6, "each ran twice"
    assert not half_written(workspace)


@WITH_DATABASE
def test_interrupted_twice(workspace: Workspace) -> None:
    """A user presses Ctrl-C twice: no job remains."""
    workspace.study(**{f"job{index}": "sleep 300" for index in range(12)})
    run = workspace.start()
    until(lambda: len(workspace.queued()) == 12, "twelve jobs", run)
    interrupt(run)
    time.sleep(0.05)
    interrupt(run)
    assert run.finish() != 0
    until(lambda: not workspace.queued(), "the jobs to be cancelled")


@WITHOUT_DATABASE
def test_sigterm_to_every_process(workspace: Workspace) -> None:
    """The signal comes repeatedly, also during a query; the run waits for jobs in the queue."""
    workspace.study(**{f"job{index}": GATE for index in range(6)})
    run = workspace.start("--jobs", "4")
    until(lambda: len(list(workspace.directory.glob("logs/make/*"))) == 4, "four jobs", run)
    for _ in range(100):
        os.killpg(run.process.pid, signal.SIGTERM)
        time.sleep(0.05)
    assert run.process.poll() is None, run.output[-4000:]
    (workspace.directory / "go").touch()
    assert run.finish() == 1, run.output[-4000:]
    assert [state for _, state in workspace.jobs()] == ["COMPLETED"] * 4, run.output[-4000:]
    workspace.run()
    assert [state for _, state in workspace.jobs()] == ["COMPLETED"] * 6
    assert not half_written(workspace)


@WITHOUT_DATABASE
def test_interrupted_and_started_again(workspace: Workspace) -> None:
    waiting = dict.fromkeys(("second", "third", "fourth", "fifth", "sixth"), "sleep 100")
    workspace.study(first="true", **waiting)
    workspace.run("out/first")
    # so slow that a status query is nearly always running: Snakemake itself then cancels nothing
    run = workspace.start("--max-status-checks-per-second", "1")
    until(lambda: len(workspace.queued()) == 5, "five jobs", run)
    until(lambda: len(list(workspace.directory.glob("logs/make/*"))) == 5, "four to start", run)
    interrupt(run)
    assert run.finish() != 0
    until(lambda: not workspace.queued(), "the jobs to be cancelled")
    written = workspace.path("first").stat().st_mtime_ns
    workspace.study(first="true", **dict.fromkeys(waiting, "true"))
    before = len(workspace.jobs())
    workspace.run()  # no --unlock needed
    again = sorted(name for name, _ in workspace.jobs()[before:])
    assert again == sorted(f"dpprobe.make.{name}" for name in waiting)
    assert workspace.path("first").stat().st_mtime_ns == written
    assert not half_written(workspace)


@WITH_DATABASE
def test_killed_outright_and_started_again(workspace: Workspace) -> None:
    """Jobs continue without their Snakemake; the next run takes over jobs that it still needs."""
    commands = {"first": "true"} | {f"long{index}": GATE for index in range(5)}
    workspace.study(**commands, stale="sleep 100")
    workspace.run("out/first")
    written = workspace.path("first").stat().st_mtime_ns
    run = workspace.start()
    until(lambda: len(workspace.queued()) == 6, "six jobs", run)
    until(lambda: len(list(workspace.directory.glob("logs/make/*"))) == 5, "four to start", run)
    left = workspace.queued()
    os.kill(run.process.pid, signal.SIGKILL)  # spares the watcher, which must leave the jobs
    run.process.wait()
    time.sleep(3)
    assert "locked" in workspace.run(succeeds=False)
    workspace.run("--unlock")
    for folder in workspace.directory.glob(".snakemake/tmp.*"):  # as after a fatal error
        shutil.rmtree(folder)
    assert workspace.queued() == left, "jobs go on, or wait for their turn"
    workspace.study(**commands, stale="echo new")
    run = workspace.start()
    until(lambda: run.output.count("is taken over") == 5, "five jobs to be taken over", run)
    (workspace.directory / "go").touch()
    assert run.finish() == 0, run.output[-4000:]
    output = run.output
    for name, job in left.items():
        wanted = f"{name}: cancelling what was left behind: {job}"
        if "stale" not in name:
            wanted = f"job {job} ({name}) is taken over"
        assert wanted in output
    names = [name for name, state in workspace.jobs() if state == "COMPLETED"]
    assert sorted(names) == sorted(f"dpprobe.make.{name}" for name in (*commands, "stale"))
    assert workspace.path("first").stat().st_mtime_ns == written
    assert not half_written(workspace)
    assert "Nothing to be done" in workspace.run()


@WITH_DATABASE
def test_the_slurm_database_gives_the_status_of_jobs_the_controller_forgot(
    workspace: Workspace,
) -> None:
    cluster = workspace.cluster
    workspace.study(good="true", wrong="exit 3", cancelled="sleep 200")
    run = workspace.start("--retries", "0")
    until(lambda: workspace.started("cancelled"), "the job to cancel", run)
    cluster.command("scancel", workspace.queued()["dpprobe.make.cancelled"])
    assert run.finish() != 0
    states: dict[str, list[str]] = {}

    def listed() -> bool:
        fields = "--format=JobName,State,JobID,WorkDir"
        lines = cluster.command("sacct", "-n", "-X", "-P", fields).splitlines()
        mine = [line.split("|") for line in lines if line.endswith(f"|{workspace.directory}")]
        states.update((each[0], each[1:3]) for each in mine)
        return len(states) == 3 and not any(state == "RUNNING" for state, _ in states.values())

    until(listed, "sacct")
    assert states["dpprobe.make.good"][0] == "COMPLETED"
    assert states["dpprobe.make.wrong"][0] == "FAILED"
    assert states["dpprobe.make.cancelled"][0].startswith("CANCELLED")
    # slurmctld forgets jobs, the database does not
    answers = {name: forgotten_status(workspace, job) for name, (_, job) in states.items()}
    assert {name.split(".")[-1]: answer.stdout for name, answer in answers.items()} == {
        "good": "success\n",
        "wrong": "failed\n",
        "cancelled": "failed\n",
    }
    assert "CANCELLED" in answers["dpprobe.make.cancelled"].stderr


def forgotten_status(workspace: Workspace, job: str) -> subprocess.CompletedProcess[str]:
    """Runs the profile's status command with a squeue that knows no job."""
    environment = workspace.environment()
    folder = workspace.directory / "empty"
    folder.mkdir(exist_ok=True)
    (folder / "squeue").write_text("#!/bin/sh\n")
    (folder / "squeue").chmod(0o755)
    return run_program(
        [f"{workspace.profile}/status.py", job],
        cwd=workspace.directory,
        env={**environment, "PATH": f"{folder}:{environment['PATH']}"},
    )


# The tests below run the real workflow, from the root of a copy of the repository.

SMALL: dict[str, Any] = {
    "study": "small",
    "datasets": {name: {"source": "sklearn", "name": "digits"} for name in ("left", "right")},
    "backbones": {"pixels": {"family": "pixels"}},
    "methods": {"sgd": {"head": "sgd", "batch_size": 64, "epochs": 2}},
    "epsilons": [2],
    "seeds": 2,
    "features": {"shards": 1},
    "tsne": {"points": 100},
}


def states(workspace: Workspace, *folders: str) -> dict[str, tuple[int, str]]:
    """Maps every file below some folders to its modification time and hash."""
    return {
        str(path.relative_to(workspace.directory)): (
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for folder in folders
        for path in sorted((workspace.directory / folder).rglob("*"))
        if path.is_file()
    }


def whole(workspace: Workspace) -> None:
    """Checks that every artifact with its final name is readable, and no other file remains."""
    results = workspace.directory / "results"
    for path in results.rglob("*.json"):
        json.loads(path.read_text())
    for path in results.rglob("shard-*.h5"):
        with h5py.File(path) as shard:
            assert len(shard["features"])
    assert not list(results.glob(".cells/.*"))


@COLD
@WITH_DATABASE
def test_the_default_study(clone: Workspace) -> None:
    """Runs `snakemake --profile slurm` exactly as documented, with one backbone and two budgets."""
    config = clone.directory / "config.yaml"
    study = yaml.safe_load(config.read_text())
    del study["backbones"]["scattering"]
    config.write_text(yaml.safe_dump(study | {"epsilons": [1, "inf"]}))
    planned = count_rules(clone.run("--dry-run", "--quiet", "host"))
    result = run_program(
        ["snakemake", "--profile", "slurm"],
        joined=True,
        cwd=clone.directory,
        env=clone.environment(),
        timeout=2400,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-6000:]
    results = clone.directory / "results"
    assert (results / "tables/accuracy.md").is_file()
    assert (results / "mlflow.db").is_file()
    whole(clone)
    jobs = clone.jobs()
    assert {state for _, state in jobs} == {"COMPLETED"}
    listed = clone.cluster.command("sacct", "-n", "-X", "-P", "--format=JobName,WorkDir")
    mine = [line.split("|") for line in listed.splitlines()]
    assert sorted(name for name, folder in mine if folder == str(clone.directory)) == sorted(
        name for name, _ in jobs
    )
    assert len(jobs) == len(set(jobs)), "each ran once"
    shown = "  python -m webbrowser results/report.html  # report"
    assert shown in result.stdout.splitlines()
    here = {"all"}  # all jobs except the target itself ran on Slurm
    assert clone.counts() == Counter({r: n for r, n in planned.items() if r not in here})
    assert clone.counts()["train_heads"] == 1
    assert clone.counts()["train_heads_without_privacy"] == 1
    assert "Nothing to be done" in clone.run()


def grouped(workspace: Workspace, rule: str) -> None:
    """Gives a workspace a profile whose commented block for short shards is active."""
    shipped = workspace.directory / workspace.profile
    text = (shipped / "config.yaml").read_text()
    block = (
        text.split("# This group extracts four short shards")[1].split("\n\n")[0].splitlines()[1:]
    )
    assert all(line.startswith("# ") for line in block), "the profile's comments"
    wanted = f"set-resources: {{{rule}: {{gpu: 1, mem_mb: 2500, runtime: 10 * attempt}}}}"
    changed = workspace.directory / "grouped"
    shutil.copytree(shipped, changed)
    lines = "\n".join([*(line[2:] for line in block), wanted])
    (changed / "config.yaml").write_text(f"{text}\n{lines}\n".replace("extract_features", rule))


@WITHOUT_DATABASE
def test_short_shards_as_one_job(clone: Workspace) -> None:
    """The job requests one GPU, the sum of times and the largest memory, as in docs/cluster.md.

    Slurm's GPUs are files here, but the shards are real.
    """
    study = {**SMALL, "datasets": {"left": SMALL["datasets"]["left"]}, "features": {"shards": 4}}
    (clone.directory / "config.yaml").write_text(yaml.safe_dump(study))
    grouped(clone, "extract_features")
    clone = replace(clone, profile="grouped")
    manifest = "results/features/left/pixels/train/manifest.json"
    run = clone.start(manifest)
    until(lambda: bool(clone.in_state("RUNNING", "extraction")), "the group", run)
    (job,) = clone.in_state("RUNNING", "extraction")
    asked = clone.cluster.command("scontrol", "show", "job", job)
    assert run.finish() == 0, run.output[-4000:]
    assert clone.counts() == Counter(prepare_data=1, extraction=1, write_manifest=1)
    assert "TresPerNode=gres:gpu:1\n" in asked
    assert "TimeLimit=00:40:00 " in asked
    assert "MinMemoryNode=2500M " in asked
    (log,) = (clone.directory / "logs/slurm/extraction").rglob("*.log")
    turns = re.findall(r"^(Job|Finished jobid):? \d", log.read_text(), re.MULTILINE)
    assert turns == ["Job", "Finished jobid"] * 4, log.read_text()
    whole(clone)


@WITHOUT_DATABASE
def test_groups_of_a_killed_run_are_cancelled_by_the_next(workspace: Workspace) -> None:
    """Both runs have the same jobs in different groups: none is taken over, all are cancelled."""
    tried = "echo $SLURM_JOB_ID >> tries-{0}; " + GATE
    names = [f"shard{index}" for index in range(4)]
    workspace.study(**{name: tried.format(name) for name in names})
    words = ("--groups", "make=shards", "--group-components")
    run = workspace.start(*words, "shards=2")
    until(lambda: len(list(workspace.directory.glob("tries-*"))) == 4, "four jobs", run)
    left = set(workspace.queued().values())
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    workspace.run("--unlock")
    run = workspace.start(*words, "shards=4")
    until(lambda: len(list(workspace.directory.glob("logs/slurm/**/*.log"))) == 3, "a group", run)
    assert left.isdisjoint(workspace.queued().values())
    (workspace.directory / "go").touch()
    assert run.finish() == 0, run.output[-4000:]
    assert Counter(state for _, state in workspace.jobs()) == {"CANCELLED": 2, "COMPLETED": 1}
    tries = [(workspace.directory / f"tries-{name}").read_text().split() for name in names]
    assert [len(each) for each in tries] == [2] * 4


@WITHOUT_DATABASE
def test_a_failed_job_leaves_what_was_trained(clone: Workspace) -> None:
    """This holds if the job ran and failed, was killed while training, or never started."""
    study = {**SMALL, "datasets": {"left": SMALL["datasets"]["left"]}}
    study["methods"] = {
        **SMALL["methods"],
        "full": {"head": "sgd", "batch_size": "full", "steps": 5},
    }
    write = (clone.directory / "config.yaml").write_text
    write(yaml.safe_dump(study))
    assert "next: snakemake --profile slurm\n" in clone.run("heads")
    cells = {path: state for path, (_, state) in states(clone, "results/cells").items()}
    stored = {path: state for path, (_, state) in states(clone, "results/.cells").items()}
    assert len(stored) == 2 * 5, "the cells of sgd and full"

    def unharmed() -> None:
        now = {path: state for path, (_, state) in states(clone, "results/.cells").items()}
        assert {path: now.get(path) for path in stored} == stored
        assert not list(clone.directory.glob("results/cells/**/metrics.json")), "not done"

    # the job fails
    study["methods"]["full"] |= {"learning_rate": 1e38, "max_grad_norm": 1e6}
    write(yaml.safe_dump(study))
    output = clone.run("heads", "--retries", "0", succeeds=False)
    assert "diverged at learning_rate 1e+38" in output
    unharmed()
    # the job never starts
    output = clone.run(
        "heads", "--retries", "0", "--set-resources", "train_heads:gpu=3", succeeds=False
    )
    assert "was not submitted" in output
    unharmed()
    # the job is killed while it trains, which takes longer than Slurm waits after its first signal
    study["methods"]["full"] = {"head": "sgd", "batch_size": "full", "steps": 1_000_000}
    write(yaml.safe_dump(study))
    log = clone.directory / "results/logs/train_heads/left/pixels/eps-2.log"
    log.unlink(missing_ok=True)
    run = clone.start("heads", "--retries", "0")
    until(lambda: log.exists() and "full" in log.read_text(), "the second head to train", run)
    (job,) = clone.queued().values()
    clone.cluster.command("scancel", job)
    assert run.finish() != 0
    assert "CANCELLED" in run.output
    unharmed()
    study["methods"]["full"] = {"head": "sgd", "batch_size": "full", "steps": 5}
    write(yaml.safe_dump(study))
    clone.run("heads")
    assert {path: state for path, (_, state) in states(clone, "results/cells").items()} == cells
    whole(clone)


# Disturbances of a run that must not change its results.

DISTURBED: dict[str, Any] = {
    **SMALL,
    "datasets": {"left": SMALL["datasets"]["left"]},
    "epsilons": [1, 4],
}
EDITED: dict[str, Any] = {
    **DISTURBED,
    "methods": {"sgd": {**SMALL["methods"]["sgd"], "learning_rate": 0.001}},
    "epsilons": [1, 4, 8],
}


def heads(directory: Path) -> dict[str, str]:
    """Returns the heads' hashes from the records of cells; compares each with its file's hash."""
    hashes = {}
    for path in sorted(directory.glob("results/cells/**/metrics.json")):
        record = json.loads(path.read_text())
        for name, digest in record["files"].items():
            assert hashlib.sha256((path.parent / name).read_bytes()).hexdigest() == digest, path
        hashes[str(path.parent.relative_to(directory))] = record["content_hash"]
    return hashes


@pytest.fixture(scope="module")
def undisturbed(
    repository: Path, _socket: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Returns the heads of the same study, made without a cluster."""
    directory = checkout(repository, tmp_path_factory.mktemp("undisturbed") / "dpprobe")
    (directory / "config.yaml").write_text(yaml.safe_dump(DISTURBED))
    words = asking(_socket, "-m", "snakemake", "--cores", "2", "heads")
    subprocess.run(words, cwd=directory, check=True, capture_output=True, timeout=TIMEOUT)
    hashes = heads(directory)
    assert len(hashes) == 2
    return hashes


@pytest.fixture
def small_disk(clone: Workspace) -> Iterator[Path]:
    """Yields the folder of results, on its own file system."""
    results = clone.directory / "results"
    results.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(results)]
    answer = subprocess.run(mount, capture_output=True, text=True, check=False)
    if answer.returncode:
        pytest.skip(f"no file system can be mounted here: {answer.stderr.strip()}")
    try:
        yield results
    finally:
        subprocess.run(["umount", "--lazy", str(results)], check=True)


def fill(path: Path) -> None:
    """Fills a file system."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as stream:
        while stream.write(bytes(4096)):
            pass


@COLD
@WITHOUT_DATABASE
def test_disturbances_do_not_change_results(
    clone: Workspace, small_disk: Path, undisturbed: dict[str, str]
) -> None:
    """Suspends, requeues and cancels jobs, edits and deletes files, fills the disk, flips a byte.

    The partition is closed at times, to make changes between two jobs.
    """
    cluster = clone.cluster
    (clone.directory / "config.yaml").write_text(yaml.safe_dump(DISTURBED))
    # suspends, requeues, and deletes a file after its job; both shards fit next to the other jobs
    run = clone.start("heads", "--retries", "0", "--set-resources", "extract_features:mem_mb=2000")
    try:
        until(lambda: len(clone.in_state("RUNNING", "extract_features")) == 2, "two jobs", run)
        cluster.start_jobs(False)
        suspended, requeued = clone.in_state("RUNNING", "extract_features")
        cluster.command("scontrol", "suspend", suspended)
        cluster.command("scontrol", "requeue", requeued)
        until(lambda: clone.in_state("PENDING", "extract_features") == [requeued], "it to wait")
        cluster.command("scontrol", "update", f"JobId={requeued}", "StartTime=now")
        time.sleep(6)  # longer than an answer of squeue is cached
        assert run.process.poll() is None
        assert clone.in_state("SUSPENDED", "extract_features") == [suspended]
        cluster.command("scontrol", "resume", suspended)
        until(lambda: len(clone.in_state("PENDING", "write_manifest")) == 1, "its manifest", run)
        (held,) = clone.in_state("PENDING", "write_manifest")
        cluster.command("scontrol", "hold", held)
        cluster.start_jobs(True)
        until(lambda: clone.in_state("RUNNING", "extract_features") == [requeued], "it to run", run)
        cluster.start_jobs(False)
        until(lambda: len(clone.in_state("PENDING", "write_manifest")) == 2, "two jobs", run)
        cluster.command("scontrol", "release", held)
        (shard,) = small_disk.glob("features/left/pixels/train/shard-*.h5")
        shard.unlink()
    finally:
        cluster.start_jobs(True)
    assert run.finish() == 1, run.output[-4000:]
    logs = clone.directory / "logs/slurm"
    assert shard.name in "".join(path.read_text() for path in logs.rglob("write_manifest/**/*.log"))
    assert not heads(clone.directory)
    # a plain rerun makes the file again; all jobs are cancelled at once, and while they wait
    # the study is edited and the disk is full
    run = clone.start("heads", "--retries", "2")
    full = small_disk / "full"
    try:
        until(lambda: len(clone.in_state("RUNNING", "train_heads")) == 2, "two heads", run)
        cluster.start_jobs(False)
        cluster.command("scancel", "--user=root")
        until(lambda: run.output.count("): CANCELLED,") == 2, "both to be cancelled", run)
        until(lambda: len(clone.in_state("PENDING", "train_heads")) == 2, "two heads", run)
        (clone.directory / "config.yaml").write_text(yaml.safe_dump(EDITED))
        fill(full)
        cluster.start_jobs(True)
        until(
            lambda: (
                sum(
                    "disk full on" in path.read_text()
                    for path in logs.rglob("train_heads/**/*.log")
                )
                == 2
            ),
            "both to tell of the disk",
            run,
        )
        until(lambda: "disk full on" in run.output, "the console to tell of it too", run)
        assert "the disk is full" in run.output
    finally:
        full.unlink(missing_ok=True)
        cluster.start_jobs(True)
    assert run.finish() == 0, run.output[-4000:]
    assert heads(clone.directory) == undisturbed
    whole(clone)
    planned = count_rules(clone.run("heads", "--dry-run", "--quiet", "host"))
    assert planned["train_heads"] == 3, "the edit counts now"
    (clone.directory / "config.yaml").write_text(yaml.safe_dump(DISTURBED))
    assert "Nothing to be done" in clone.run("heads")
    # flips a byte of a stored file, but keeps its modification time
    (shard,) = small_disk.glob("features/left/pixels/train/shard-*.h5")
    stored, times = bytearray(shard.read_bytes()), shard.stat()
    stored[len(stored) // 2] ^= 1
    shard.write_bytes(stored)
    os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))
    (cell,) = small_disk.glob("cells/left/pixels/sgd/eps-4")
    (cell / "heads.safetensors").unlink()
    assert shard.name in clone.run("heads")
    assert heads(clone.directory) == undisturbed
    assert "Nothing to be done" in clone.run("heads")
    whole(clone)


NOBODY = 65534


@WITHOUT_DATABASE
def test_a_user_who_is_not_root_in_a_folder_with_spaces(
    repository: Path, cluster: Cluster, undisturbed: dict[str, str]
) -> None:
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dpprobe-user-")))
        root.chmod(0o755)
        # makes Python and its packages readable for the user (Snakemake needs a Python path
        # without spaces, and this clone may be in a private folder)
        python, packages = root / "python", root / "packages"
        for source, place in ((sys.base_prefix, python), (sysconfig.get_path("purelib"), packages)):
            place.mkdir()
            mount = ["mount", "--bind", source, str(place)]
            answer = subprocess.run(mount, capture_output=True, text=True, check=False)
            if answer.returncode:
                pytest.skip(f"nothing can be mounted here: {answer.stderr.strip()}")
            stack.callback(subprocess.run, ["umount", "--lazy", str(place)], check=True)
        clone = Workspace(checkout(repository, root / "a small study"), cluster, "slurm")
        study = DISTURBED | {"epsilons": DISTURBED["epsilons"][:1]}
        (clone.directory / "config.yaml").write_text(yaml.safe_dump(study))
        for path in (clone.directory, *clone.directory.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        environment = clone.environment() | {
            "HOME": str(clone.directory / "home"),
            "PATH": f"{python}/bin:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": f"{python}/lib",
            "PYTHONPATH": f"{clone.directory}/src:{packages}",
        }
        stack.callback(cluster.command, "scancel", f"--user={NOBODY}")

        def run() -> str:
            result = run_program(
                [f"{python}/bin/{version}", "-m", "snakemake", "--profile", "slurm", "heads"],
                joined=True,
                cwd=clone.directory,
                env=environment,
                user=NOBODY,
                group=NOBODY,
                extra_groups=[],
                timeout=TIMEOUT,
                check=False,
            )
            logs = clone.directory.glob("logs/slurm/*/*/*.log")
            said = "".join(path.read_text()[-2000:] for path in logs)
            assert result.returncode == 0, f"{result.stdout[-4000:]}\n{said[-4000:]}"
            return result.stdout

        run()
        (made,) = heads(clone.directory).items()
        assert made in undisturbed.items()
        assert {path.stat().st_uid for path in (clone.directory / "results").rglob("*")} == {NOBODY}
        assert {state for _, state in clone.jobs()} == {"COMPLETED"}
        assert "Nothing to be done" in run()


# The settings with which Snakemake's own Slurm plugin runs a study, as in docs/cluster.md.
OWN_PLUGIN = """
executor: slurm
jobs: 4
latency-wait: 20
rerun-incomplete: true
default-resources:
  slurm_account: root
  slurm_partition: main
  mem_mb: 2000
  runtime: 60
set-threads:
  prepare_data: 4
"""


@pytest.fixture
def system_config(cluster: Cluster) -> Iterator[None]:
    """Links Slurm's default path to the cluster's settings, as the plugin deletes SLURM_CONF."""
    path = Path("/etc/slurm/slurm.conf")
    if path.exists():
        pytest.skip(f"{path} is another cluster's")
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(cluster.config)
    yield
    path.unlink()


@COLD
@WITH_DATABASE
@pytest.mark.usefixtures("system_config")
def test_snakemakes_own_plugin_runs_a_study_and_resumes(clone: Workspace) -> None:
    profile = clone.directory / "own"
    profile.mkdir()
    (profile / "config.yaml").write_text(OWN_PLUGIN)
    study = {**SMALL, "datasets": {"left": SMALL["datasets"]["left"]}}

    def run() -> str:
        (clone.directory / "config.yaml").write_text(yaml.safe_dump(study))
        result = run_program(
            [
                "snakemake",
                "heads",
                "--profile",
                "own",
                "--slurm-init-seconds-before-status-checks=5",
            ],
            joined=True,
            cwd=clone.directory,
            env=clone.environment(),
            timeout=TIMEOUT,
            check=False,
        )
        assert result.returncode == 0, result.stdout[-6000:]
        return result.stdout

    run()
    whole(clone)
    ended = Counter(state for _, state in clone.jobs())
    assert set(ended) == {"COMPLETED"}
    assert "Nothing to be done" in run()
    study["epsilons"] = [2, 4]
    run()
    log = clone.directory / "results/logs/train_heads/left/pixels/eps-4.log"
    assert "sgd: training seeds 0, 1" in log.read_text()
    assert len(clone.jobs()) == sum(ended.values()) + 2, "calibrate and train_heads"
