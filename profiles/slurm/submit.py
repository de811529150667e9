#!/usr/bin/env -S python3 -S -E
"""Submits one of Snakemake's jobs with sbatch and prints the job's id.

    submit.py JOBSCRIPT

The second line of the jobscript describes the job. A killed Snakemake may have left behind a job
that makes the same files: that job is reused if its inputs and options are equal, else cancelled.
Groups that make some of a job's files are cancelled, so that two jobs never write the same files.
The command waits while slurmctld is unreachable.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import scheduler
import states

LOGS = Path("logs/slurm")
FORGOTTEN = "FORGOTTEN"  # the state of jobs that slurmctld forgot; not one of Slurm's states
SNAPSHOTS = ".snakemake/dpprobe/"  # studies as they were at the start of a run
NAME_LENGTH = 128
OUTAGE = 3600  # seconds that a submission waits for slurmctld
PAUSE = 5  # seconds between two tries
NOTE = 60  # seconds between two notes of the same submission
NOTE_BYTES = 1000  # size of the notes on a job
GONE = 120  # seconds for a cancelled job to end
# Files and folders with the code of a workflow, beside its Snakefile.
CODE = ("Snakefile", "workflow", "scripts", "src/dpprobe")
# Options of a job's command that decide what the job makes, besides parameters and inputs.
DECIDING = (
    "snakefile",
    "target-jobs",
    "allowed-rules",
    "configfiles",
    "configfile",
    "config",
    "directory",
    "replace-workflow-config",
    "software-deployment-method",
    "sdm",
    "conda-prefix",
)
# The options of sbatch by resource of Snakemake.
OPTIONS = {
    "mem_mb": "--mem={}M",
    "runtime": "--time={}",
    "gres": "--gres={}",
    "constraint": "--constraint={}",
    "slurm_partition": "--partition={}",
    "slurm_account": "--account={}",
    "qos": "--qos={}",
}
LASTING = "another attempt would fail the same way"  # ends the job's log (`dpprobe.files.logs`)
TOO_MANY_CPUS = "CPU count per node"
TOO_LARGE = re.compile("CPU count per node|node configuration|Memory specification can not")


@dataclass(frozen=True)
class Job:
    """A job to submit: Snakemake's properties and jobscript, and its name and log in Slurm."""

    properties: dict[str, Any]
    path: Path
    script: str
    name: str
    log: str
    comment: scheduler.Comment


@dataclass(frozen=True)
class Submitted:
    """A job that is queued or has succeeded already; `at` is in seconds since the epoch."""

    job: str
    comment: scheduler.Comment
    at: float


class Stopped(Exception):
    """Snakemake has ended, or a signal asked for the end."""


def properties(script: str) -> dict[str, Any]:
    """Reads Snakemake's description of a job."""
    match = re.search(r"^# properties = (.*)$", script, re.MULTILINE)
    if match is None:
        sys.exit("submit.py: the jobscript has no line of properties; it must come from Snakemake")
    return dict(json.loads(match.group(1)))


def label(job: dict[str, Any]) -> tuple[str, str]:
    """Returns the rule (or group) of a job, and its wildcards, as parts of names."""
    if job["type"] == "group":
        return str(job["groupid"]), str(job["jobid"])[:8]
    wildcards = ".".join(str(value) for value in job["wildcards"].values())
    return str(job["rule"]), re.sub(r"[^\w.+=-]+", "_", wildcards)[:NAME_LENGTH]


def identity(job: dict[str, Any], script: str) -> tuple[str, str]:
    """Returns a digest of what a job makes, and one of its inputs, options and code.

    Logs, not outputs, tell the studies in one folder apart, because a new method changes outputs.
    A group has no log, and is never reused.
    """
    made = [str(Path.cwd()), *(job.get(key) for key in ("rule", "wildcards", "groupid", "log"))]
    if job["type"] == "group":
        made += [job["jobid"], job["output"]]
    described = {key: job.get(key) for key in ("input", "output", "params", "log", "threads")}
    words = command(script)
    return digest(made), digest([described, words, code(words)])


def command(script: str) -> list[list[str]]:
    """Returns the options in a jobscript that decide what the job makes, in sorted order.

    The snapshot of the study is left out, because a new epsilon changes the snapshot, but not the
    parameters of other jobs.
    """
    words = " ".join(shlex.split(script.split("\n", 2)[2]))
    parts = (
        [word for word in part.split() if SNAPSHOTS not in word] for part in words.split(" --")
    )
    return sorted([part[0], *sorted(part[1:])] for part in parts if part and part[0] in DECIDING)


def code(words: list[list[str]]) -> list[tuple[str, str]]:
    """Lists the files of the workflow that a command runs, with hashes."""
    roots = [Path(each[1]).parent for each in words if each[0] == "snakefile" and len(each) == 2]
    files = [
        path
        for root in roots
        for place in _places(root)
        for path in ([place] if place.is_file() else sorted(place.rglob("*")))
        if path.suffix in ("", ".py", ".smk") and path.is_file()
    ]
    return [(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]


def _places(root: Path) -> list[Path]:
    """Returns files and folders of code, for a Snakefile in a clone or installed in the package."""
    installed = [root.parent] if root.name == "shipped" else []
    return [*(root / name for name in CODE), *installed]


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def options(job: dict[str, Any]) -> list[str]:
    """Returns sbatch's options for a job's threads and resources; 0 and "" request nothing."""
    resources = {**job["resources"], "gres": devices(job["resources"])}
    if resources.get("gpu") and resources.get("gpu_partition"):
        resources["slurm_partition"] = resources["gpu_partition"]
    asked = [
        option.format(resources[name]) for name, option in OPTIONS.items() if resources.get(name)
    ]
    extra = shlex.split(str(resources.get("slurm_extra", "")))
    return [f"--cpus-per-task={job['threads']}", *asked, *extra]


def devices(resources: dict[str, Any]) -> str:
    """Returns a job's GPUs and other devices as one option, because sbatch reads only the last.

    If `gres` names GPUs, `gpu` is ignored; otherwise `gpu_model` is the kind of the GPUs.
    """
    gpus, others = resources.get("gpu"), str(resources.get("gres") or "")
    if not gpus or re.search(r"(^|,)(gres[:/])?gpu\b", others):
        return others
    gpu = ":".join(filter(None, ("gpu", str(resources.get("gpu_model") or ""), str(gpus))))
    return ",".join(filter(None, (gpu, others)))


def wrapped(script: str, token: str) -> str:
    """Returns a jobscript that also writes its exit code to a file.

    Slurm may restart a job after its node failed; a job that had succeeded ends at once.
    """
    path = shlex.quote(f"{Path.cwd()}/{scheduler.STATE}/") + '"$SLURM_JOB_ID.exit"'
    return (
        "#!/bin/sh\n"
        f'test "$(cat {path} 2>/dev/null)" = "0 {token}" && exit 0\n'
        f"rm -f {path}\n(\n{script}\n)\ncode=$?\n"
        f"echo $code {token} >{path}.part && mv {path}.part {path}\nexit $code\n"
    )


def freed(job: Job) -> str:
    """Returns a jobscript that needs nothing in the folder of its Snakemake.

    Each job waits for its Snakemake's folder, which Snakemake removes if an error ends the run
    while jobs are queued. If that folder has a list of many inputs, the list is copied.
    """
    folder = str(job.path.parent)
    listed = job.path.with_name(f"{job.path.name}.waitforfilesfile.txt")
    if listed.exists():
        copy = scheduler.STATE / f"{job.comment.work}.inputs"
        inputs = [line for line in listed.read_text().splitlines() if line != folder]
        scheduler.write(copy, "".join(f"{line}\n" for line in inputs))
        return job.script.replace(str(listed), f"{Path.cwd()}/{copy}")
    waited = rf"(--wait-for-files )(['\"]?){re.escape(folder)}\2 "
    return re.sub(waited, r"\1", job.script)


def limited(script: str, job: dict[str, Any]) -> str:
    """Returns a jobscript that runs a group's jobs in parallel on the CPUs and GPUs of its request.

    Snakemake would use all CPUs that it sees on the node, however few GPUs the group has.
    """
    if job["type"] != "group":
        return script
    gpus = job["resources"].get("gpu")
    limit = f"--cores {job['threads']}" + (f" --resources gpu={gpus}" if gpus else "")
    changed, count = re.subn(r"--cores ['\"]?\w+['\"]?", limit, script)
    if count != 1:
        sys.exit("submit.py: the jobscript of a group has no --cores; it must come from Snakemake")
    return changed


def unchanged(job: dict[str, Any], since: float) -> bool:
    """Returns True if no input of a job was written after its submission, in whole seconds."""
    if job["input"] is None:  # Snakemake lists no inputs if there are too many
        return False
    try:
        return all(Path(path).stat().st_mtime < since + 1 for path in job["input"])
    except FileNotFoundError:
        return False


def usable(left: scheduler.Queued, job: dict[str, Any], version: str) -> bool:
    """Returns True if an earlier job can replace the job that is to be submitted."""
    comment = left.comment
    if comment is None or comment.version != version or job["type"] != "single":
        return False
    if not unchanged(job, left.submitted):
        return False
    code = scheduler.exit_code(left.job, comment.token)
    if left.state in ("PENDING", "RUNNING", "CONFIGURING", "SUSPENDED"):
        return code is None
    # A job may have succeeded while no Snakemake ran. Notes on a job are removed after its end is
    # reported, or after another job makes the same files.
    ended = left.state in (scheduler.SUCCESS, "COMPLETING", FORGOTTEN)
    noted = scheduler.record_file(left.job).exists()
    return ended and code == 0 and noted and made(left.job, job["output"])


def made(identifier: str, paths: list[str] | None) -> bool:
    """Returns True if all files exist, and none was written after the job had ended."""
    try:
        end = scheduler.exit_file(identifier).stat().st_mtime
        return paths is not None and all(Path(path).stat().st_mtime <= end + 1 for path in paths)
    except FileNotFoundError:
        return False


def submit(job: Job) -> Submitted:
    """Reuses an earlier job or submits a new job, in one attempt.

    Raises:
        scheduler.SlurmError: slurmctld did not answer or refused, or another run does the work.
    """
    notes = {path.stem: scheduler.read_record(path.stem) for path in scheduler.STATE.glob("*.json")}
    regrouped = overlapping(job, notes)
    listed = scheduler.queue(f"--name={','.join(sorted({job.name, *regrouped.values()}))}")
    listed += forgotten(job.name, notes, {each.job for each in listed})
    same = [
        each
        for each in listed
        if each.comment and (each.comment.work == job.comment.work or each.job in regrouped)
    ]
    for left in same:
        if left.comment and usable(left, job.properties, job.comment.version):
            print(f"slurm: job {left.job} ({job.name}) is taken over", file=sys.stderr)
            comment = replace(job.comment, token=left.comment.token)
            forget([each.job for each in same if each.job != left.job])
            return Submitted(left.job, comment, left.submitted)
    queued = [left for left in same if left.state in scheduler.QUEUED]
    for left in queued:
        refuse_if_watched(left, job)
    if queued:
        discard([left.job for left in queued], job.name)
    forget([each.job for each in same])
    try:
        identifier = start(job)
    except scheduler.SlurmError as error:
        threads, most = int(job.properties.get("threads", 1)), 0
        if TOO_MANY_CPUS in str(error):
            most = largest_node(job.properties)
        if not 0 < most < threads:
            raise
        print(f"slurm: {job.name}: {most} CPUs, as no node has {threads}", file=sys.stderr)
        identifier = start(replace(job, properties={**job.properties, "threads": most}))
    return Submitted(identifier, job.comment, time.time())


def start(job: Job) -> str:
    """Calls sbatch and returns the id of the job."""
    words = ["sbatch", "--parsable", f"--job-name={job.name}", f"--comment={job.comment}"]
    words += [f"--output={job.log}", "--open-mode=append", *options(job.properties)]
    script = wrapped(limited(freed(job), job.properties), job.comment.token)
    return scheduler.run(*words, text=script).strip().split(";")[0]


def largest_node(job: dict[str, Any]) -> int:
    """Returns the CPUs of the largest node of a job's partition; 0 if Slurm does not say."""
    asked = [word for word in options(job) if word.startswith("--partition=")]
    named = asked or [f"--partition={os.environ.get('SBATCH_PARTITION', '')}"]
    wanted = {name for name in named[-1].partition("=")[2].split(",") if name}
    try:
        lines = scheduler.run("sinfo", "--all", "--noheader", "--format=%P|%c").splitlines()
    except scheduler.SlurmError:
        return 0
    nodes = [line.strip().partition("|") for line in lines]
    return max(
        (
            int(count.rstrip("+"))
            for name, _, count in nodes
            if (name.rstrip("*") in wanted if wanted else name.endswith("*"))
        ),
        default=0,
    )


def overlapping(job: Job, notes: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Returns the other jobs, with names, that make some of a job's files, if one job is a group.

    Two runs of Snakemake seldom form equal groups.
    """
    kind, outputs, rules = job.properties["type"], job.properties["output"], targets(job.script)

    def overlaps(record: dict[str, Any]) -> bool:
        # Snakemake lists at most a hundred outputs; without a list of outputs, rules are compared
        known = bool(outputs and record.get("outputs"))
        ours, theirs = (outputs, record["outputs"]) if known else (rules, record.get("rules"))
        return not set(ours).isdisjoint(theirs or ())

    return {
        identifier: str(record["name"])
        for identifier, record in notes.items()
        if "group" in (kind, record.get("type")) and overlaps(record)
    }


def targets(script: str) -> list[str]:
    """Returns the rules, with wildcards, that a jobscript runs."""
    return [word for name, *words in command(script) if name == "target-jobs" for word in words]


def forgotten(
    name: str, notes: dict[str, dict[str, Any]], known: set[str]
) -> list[scheduler.Queued]:
    """Lists jobs of a name that have notes, but that slurmctld no longer knows."""
    jobs = []
    for identifier, record in notes.items():
        comment = scheduler.parse_comment(str(record.get("comment")))
        if comment and record.get("name") == name and identifier not in known:
            submitted = float(record.get("submitted", 0))
            jobs.append(scheduler.Queued(identifier, FORGOTTEN, "", submitted, comment))
    return jobs


def forget(jobs: list[str]) -> None:
    """Removes the notes on jobs whose files another job makes."""
    for job in jobs:
        scheduler.record_file(job).unlink(missing_ok=True)


def refuse_if_watched(left: scheduler.Queued, job: Job) -> None:
    """Refuses to cancel a job of a Snakemake that still runs.

    Raises:
        scheduler.SlurmError: The job belongs to a Snakemake that still runs.
    """
    folder = left.comment.folder if left.comment else ""
    if folder == job.comment.folder:
        return
    try:
        noted = Path(".snakemake", folder, "watched").read_text().strip()
    except OSError:
        return
    process = noted.split(" ")[0]
    if noted and noted == born(process):
        raise scheduler.SlurmError(
            f"job {left.job} of another Snakemake, process {process}, makes the same files; wait "
            "for that job"
        )


def born(process: int | str) -> str:
    """Identifies a process by id, start and boot of its machine; empty if no process has the id."""
    try:
        start = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    return f"{process} {start} {boot}"


def discard(jobs: list[str], name: str) -> None:
    """Cancels jobs and waits until their processes are gone."""
    print(f"slurm: {name}: cancelling what was left behind: {' '.join(jobs)}", file=sys.stderr)
    scheduler.run("scancel", *jobs)
    deadline = time.monotonic() + GONE
    chosen = f"--jobs={','.join(jobs)}"
    while any(each.state in scheduler.QUEUED for each in scheduler.queue(chosen)):
        if time.monotonic() > deadline:
            raise scheduler.SlurmError(f"job {' '.join(jobs)} does not end; cancel it by hand")
        time.sleep(0.5)


def controller() -> int:
    """Returns the id of the Snakemake process, which may have started this script by a shell."""
    parent = os.getppid()
    if Path(f"/proc/{parent}/comm").read_text().strip() in ("sh", "dash", "bash"):
        return int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
    return parent


def watch(folder: str) -> None:
    """Starts the run's watcher once, and records the run's Snakemake process."""
    snakemake = controller()
    path = Path(".snakemake", folder, "watched")
    try:
        with path.open("x") as stream:
            stream.write(born(snakemake))
    except FileExistsError:
        return
    except OSError as error:
        if path.exists():
            path.unlink()  # otherwise no later submission would start the watcher
        raise OSError(error.errno, error.strerror, str(path)) from error
    (scheduler.STATE / "refused").unlink(missing_ok=True)
    # The watcher inherits the signal mask, so signals wait until the watcher has set its handlers.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, scheduler.SIGNALS)
    subprocess.Popen(
        [Path(__file__).with_name("watch.py"), str(snakemake), folder],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def persist(job: Job) -> Submitted:
    """Retries until slurmctld accepts the job.

    Waits without end while a limit on queued jobs is reached, and an hour during an outage. After
    an unlisted error of squeue, waits as long as status.py.

    Raises:
        Stopped: Snakemake ended during the wait.
        scheduler.SlurmError: slurmctld refuses, or stays unreachable.
    """
    away_since = time.monotonic()
    quiet_until = 0.0
    parent = os.getppid()
    while True:
        try:
            submitted = submit(job)
            states.REFUSAL.unlink(missing_ok=True)
            return submitted
        except scheduler.SlurmError as error:
            if error.limit:
                why = f"the queue takes no more jobs: {error.limit}"
            elif error.passes:
                why = f"slurmctld is away: {error.last_line}"
                if time.monotonic() - away_since > OUTAGE:
                    raise
            elif error.command != "squeue" or states.refused(error):
                raise
            else:
                why = f"squeue fails: {error.last_line}"
            if error.limit or not error.passes:
                away_since = time.monotonic()
            if time.monotonic() > quiet_until:
                print(f"slurm: {job.name}: waiting: {why}", file=sys.stderr)
                quiet_until = time.monotonic() + NOTE
        for _ in range(PAUSE):
            time.sleep(1)
            if interrupted or os.getppid() != parent:
                raise Stopped


interrupted: list[int] = []


def described(path: Path) -> Job:
    """Reads the job of a jobscript."""
    script = path.read_text()
    read = properties(script)
    rule, wildcards = label(read)
    work, version = identity(read, script)
    folder = path.resolve().parent.name
    return Job(
        properties=read,
        path=path,
        script=script,
        name=".".join(filter(None, (scheduler.MARK, rule, wildcards))),
        log=f"{LOGS / rule / wildcards}/%j.log",
        comment=scheduler.Comment(
            work=work, version=version, folder=folder, token=secrets.token_hex(8)
        ),
    )


def main() -> None:
    # Ctrl-C, and often SIGTERM, reaches every process. A submission continues to its end, so that
    # the job's id is not lost.
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: interrupted.append(number))
    job = described(Path(sys.argv[1]))
    try:
        Path(job.log).parent.mkdir(parents=True, exist_ok=True)
        require_room()
        watch(job.comment.folder)
        submitted = persist(job)
    except scheduler.SlurmError as error:
        if error.command == "sbatch":
            write_refusal(job, error)
        sys.exit(f"slurm: {job.name} was not submitted: {error}")
    except Stopped:
        sys.exit(f"slurm: {job.name} was not submitted: stopped")
    except OSError as error:
        sys.exit(f"slurm: {job.name} was not submitted: {scheduler.unwritable(error)}")
    try:
        note_down(submitted, job)
    except OSError as error:
        sys.exit(
            f"slurm: job {submitted.job} ({job.name}) was submitted, and the next try takes it "
            f"over: {scheduler.unwritable(error)}"
        )
    print(submitted.job)


def write_refusal(job: Job, error: scheduler.SlurmError) -> None:
    """Writes sbatch's refusal to the logs of rules, from which a run prints its last lines.

    A refusal is final, so the run does not submit the job again; an outage passes.
    """
    now, said = time.strftime("%H:%M:%S"), " ".join(str(error).split())
    text = f"{now} ERROR not submitted: {said}{ask_for_less(job, said)}\n"
    for path in job.properties.get("log") or ():
        with contextlib.suppress(OSError):
            scheduler.write(Path(path), text if error.passes else f"{text}{LASTING}\n")


def ask_for_less(job: Job, said: str) -> str:
    """Returns the remedy if sbatch refused a job that is larger than every node; else nothing."""
    if not TOO_LARGE.search(said):
        return ""
    rule, wanted = job.properties.get("rule"), job.properties.get("resources", {})
    if rule is None:
        return "; no node is as large as this group: make groups of fewer jobs in the profile"
    threads, memory = int(job.properties.get("threads", 1)), int(wanted.get("mem_mb", 0))
    return (
        f"; no node has the {threads} CPUs and {memory} MB that it asks for: write `{rule}: "
        f"{max(1, threads // 2)}` under set-threads of the profile, or `{rule}: {{mem_mb: "
        f"{memory // 2}}}` under set-resources"
    )


def require_room() -> None:
    """Tests that notes of the usual size can be written, because a job needs notes to be followed.

    Raises:
        OSError: The test file cannot be written.
    """
    path = scheduler.STATE / f"room.{os.getpid()}"
    scheduler.write(path, " " * NOTE_BYTES)
    path.unlink()


def note_down(submitted: Submitted, job: Job) -> None:
    """Writes the notes on a job that status.py, and later runs, need."""
    record = {name: job.properties["resources"].get(name) for name in ("mem_mb", "runtime")}
    outputs, kind = job.properties["output"], job.properties["type"]
    record.update(
        type=kind,
        # one output identifies a job that is no group
        outputs=outputs if kind == "group" or not outputs else outputs[:1],
        rules=targets(job.script),
        name=job.name,
        log=job.log.replace("%j", submitted.job),
        comment=str(submitted.comment),
        token=submitted.comment.token,
        submitted=submitted.at,
    )
    scheduler.write_record(submitted.job, record)


if __name__ == "__main__":
    main()
