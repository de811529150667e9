"""Compares how executors take faults of a real Slurm: `bench/results/executors.md`.

The profile's executor, and Snakemake's own Slurm plugin with its settings for such a cluster, run
the same cases on a cluster of one node, with and without an accounting database. The plugin is
taken from an environment of its own, for it is not among the project's dependencies. Needs root
and what `tests/install_system_packages.sh slurm` installs. The plugin finds a cluster only by
/etc/slurm/slurm.conf: that link is made, and removed, where there is no such file.

    python bench/executors.py --plugin-environment DIRECTORY

DIRECTORY is a virtual environment with snakemake and snakemake-executor-plugin-slurm.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.slurm.cluster import Cluster, missing, running, wait_until
from tests.slurm.conftest import Run, Workspace

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench/results/executors.md"
SYSTEM_CONFIG = Path("/etc/slurm/slurm.conf")
PATIENCE = 180.0  # seconds after which a run that should have ended hangs
OUTAGE = 45.0  # seconds
SHORT_JOBS = 30
# The quickest that the plugin allows, so that only what it does is compared, not when it looks.
PLUGIN = """\
executor: slurm
jobs: 100
latency-wait: 10
keep-going: true
rerun-incomplete: true
slurm-init-seconds-before-status-checks: 5
slurm-status-command: {status}
default-resources:
  slurm_account: {account}
  slurm_partition: main
"""
ALLOCATE = "python3 -c \"import time; block = b'x' * 700_000_000; time.sleep(4)\""


class Fault(Exception):
    """A fault of an executor, in a few words."""


@dataclass(frozen=True, kw_only=True)
class Executor:
    """A way to run jobs: the profile and the environment of its Snakemake."""

    name: str
    scripts: Path
    profile: Callable[[bool], str]  # given whether there is an accounting database
    ours: bool = False


@dataclass(frozen=True)
class Site(Workspace):
    """A workspace whose Snakemake may be that of another environment."""

    scripts: Path = Path(sys.executable).parent

    def environment(self) -> dict[str, str]:
        environment = self.cluster.environment()
        return {**environment, "PATH": f"{self.scripts}:{environment['PATH']}"}

    def made(self) -> set[str]:
        return {path.name for path in self.directory.glob("out/*") if path.suffix != ".part"}

    def end(self, run: Run, seconds: float = PATIENCE) -> int:
        """The exit status of a run.

        Raises:
            Fault: It hangs, and was ended.
        """
        try:
            return run.process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(run.process.pid, signal.SIGKILL)
            run.process.wait()
            raise Fault("**hangs**") from None

    def finish(self, *arguments: str) -> int:
        return self.end(self.start(*arguments))

    def queue(self) -> list[str]:
        return self.cluster.command("squeue", "-h", "-t", "PENDING,RUNNING", "-o", "%i").split()

    def until(self, condition: Callable[[], bool], what: str, seconds: float = 90) -> None:
        try:
            wait_until(condition, what, seconds)
        except TimeoutError:
            raise Fault(f"no {what} in {seconds:g} s") from None


def expect(condition: bool, fault: str) -> None:
    if not condition:
        raise Fault(fault)


def exit_code(site: Site) -> str:
    """One of seven fails: the others are made and stay, and the run ends."""
    good = {f"good{index}": "sleep 1" for index in range(6)}
    site.study(**good, wrong="exit 1")
    status = site.finish("--retries", "0")
    lost = good.keys() - site.made()
    expect(not lost, f"**{len(lost)} finished files lost**")
    expect(status != 0, "reported as success")
    return "noticed"


def cancelled(site: Site) -> str:
    site.study(other="true", one="test -e id && exit 0; echo $SLURM_JOB_ID >id; sleep 300")
    run = site.start("--retries", "1")
    note = site.directory / "id"
    site.until(lambda: note.exists() and bool(note.read_text()), "start of the job")
    site.cluster.command("scancel", note.read_text().strip())
    expect(site.end(run) == 0 and site.made() == {"other", "one"}, "not tried again")
    return "tried again"


def memory(site: Site) -> str:
    site.study(other="true", one=ALLOCATE)
    status = site.finish("--retries", "1")
    expect(status == 0 and site.made() == {"other", "one"}, "not tried again with more")
    return "tried again with more"


def runtime(site: Site) -> str:
    site.study(other="true", slow="test -e tried && exit 0; touch tried; sleep 300")
    status = site.finish("--retries", "1")
    expect(status == 0 and site.made() == {"other", "slow"}, "not tried again with more")
    return "tried again with more"


def drained(site: Site) -> str:
    site.study(**{f"job{index}": "sleep 4" for index in range(6)})
    run = site.start()
    logs = site.directory / "logs/make"
    site.until(lambda: len(list(logs.glob("*"))) >= 4, "four jobs")
    node = f"NodeName={site.cluster.host}"
    site.cluster.command("scontrol", "update", node, "State=DRAIN", "Reason=test")
    time.sleep(15)
    site.cluster.command("scontrol", "update", node, "State=RESUME")
    expect(site.end(run) == 0 and len(site.made()) == 6, "did not end well")
    return "goes on"


def away(site: Site) -> str:
    site.study(**{f"job{index}": f"sleep {12 + 4 * (index % 2)}" for index in range(6)})
    run = site.start("--jobs", "4", "--retries", "0")
    logs = site.directory / "logs/make"
    site.until(lambda: len(list(logs.glob("*"))) >= 4, "four jobs")
    time.sleep(8)  # younger jobs it would forget
    site.cluster.kill_controller()
    time.sleep(OUTAGE)
    site.cluster.start_controller()
    status = site.end(run)
    expect(len(site.made()) == 6, f"gives up with {len(site.made())} of 6 made")
    expect(status == 0, "reports a failure that was none")
    return "waits"


def interrupted(site: Site) -> str:
    names = [f"job{index}" for index in range(5)]
    site.study(first="true", **dict.fromkeys(names, "sleep 300"))
    expect(site.finish("out/first") == 0, "one job did not end well")
    run = site.start()
    site.until(lambda: len(site.queue()) == 5, "five jobs")
    written = site.path("first").stat().st_mtime_ns
    os.killpg(run.process.pid, signal.SIGINT)
    site.end(run, 60)
    with contextlib.suppress(TimeoutError):
        wait_until(lambda: not site.queue(), "an empty queue", 30)
    expect(not site.queue(), f"{len(site.queue())} of 5 jobs go on")
    site.study(first="true", **dict.fromkeys(names, "true"))
    expect(site.finish() == 0 and len(site.made()) == 6, "the next run did not end well")
    expect(site.path("first").stat().st_mtime_ns == written, "made a finished file again")
    return "jobs cancelled, only the rest runs again"


def killed(site: Site) -> str:
    once = 'mkdir "busy.$N" || echo twice >>overlap; sleep 30; rmdir "busy.$N"; echo >>ran'
    names = [f"job{index}" for index in range(4)]
    site.study(**{name: once.replace("$N", name) for name in names})
    run = site.start()
    logs = site.directory / "logs/make"
    site.until(lambda: len(list(logs.glob("*"))) >= 4, "four jobs")
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    site.finish("--unlock")
    expect(site.finish() == 0 and len(site.made()) == 4, "the next run did not end well")
    expect(not (site.directory / "overlap").exists(), "**the same job twice at once**")
    ran = len((site.directory / "ran").read_text().splitlines())
    return "taken over" if ran == 4 else f"{ran} jobs for 4 files"


def twice(site: Site) -> str:
    site.study(one="sleep 10", two="sleep 10")
    run = site.start()
    site.until(lambda: len(site.queue()) == 2, "two jobs")
    expect(site.finish() != 0, "the second one runs too")
    expect(site.end(run) == 0 and site.made() == {"one", "two"}, "did not end well")
    return "the second stops"


def short(site: Site) -> str:
    site.study(**{f"job{index:02}": "sleep 1" for index in range(SHORT_JOBS)})
    started = time.monotonic()
    status = site.end(site.start(), 4 * PATIENCE)  # slow is not hanging
    expect(status == 0 and len(site.made()) == SHORT_JOBS, "did not end well")
    return f"{time.monotonic() - started:.0f} s in all"


CASES: dict[str, Callable[[Site], str]] = {
    "exit 1, one of seven": exit_code,
    "scancel": cancelled,
    "over its memory": memory,
    "over its time": runtime,
    "node drained for 15 s": drained,
    f"slurmctld killed, away for {OUTAGE:.0f} s": away,
    "Ctrl-C, run again": interrupted,
    "kill -9, --unlock, run again": killed,
    "two at once": twice,
    f"{SHORT_JOBS} jobs of a second": short,
}


def plugin_profile(arrays: bool) -> Callable[[bool], str]:
    def text(accounting: bool) -> str:
        status, account = ("sacct", "root") if accounting else ("squeue", "''")
        lines = PLUGIN.format(status=status, account=account)
        return lines + ("slurm-array-jobs: all\n" if arrays else "")

    return text


@contextlib.contextmanager
def system_config(cluster: Cluster) -> Iterator[None]:
    """The cluster where a command looks that does not know SLURM_CONF."""
    SYSTEM_CONFIG.parent.mkdir(exist_ok=True)
    SYSTEM_CONFIG.symlink_to(cluster.config)
    try:
        yield
    finally:
        SYSTEM_CONFIG.unlink()


def attempt(case: Callable[[Site], str], executor: Executor, cluster: Cluster) -> str:
    """One case in an empty folder; afterwards the queue is empty."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        directory = Path(folder).resolve()
        profile = str(ROOT / "slurm")
        if not executor.ours:
            (directory / "profile").mkdir()
            text = executor.profile(cluster.accounting)
            (directory / "profile/config.yaml").write_text(text)
            profile = str(directory / "profile")
        site = Site(directory, cluster, profile, executor.scripts)
        try:
            return case(site)
        except Fault as fault:
            return str(fault)
        finally:
            cluster.command("scancel", "--user=root", check=False)
            wait_until(lambda: not site.queue(), "an empty queue")
            outputs = [path.read_text() for path in sorted(directory.glob("output-*.txt"))]
            print("\n".join(outputs)[-3000:], file=sys.stderr)


def column(executor: Executor, accounting: bool, wanted: list[str]) -> dict[str, str]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        cluster = Cluster(root=Path(folder).resolve(), accounting=accounting)
        with running(cluster), system_config(cluster):
            answers = {}
            for name in wanted:
                print(f"--- {executor.name}, accounting {accounting}: {name}", file=sys.stderr)
                answers[name] = attempt(CASES[name], executor, cluster)
                print(f"=== {answers[name]}", file=sys.stderr, flush=True)
            return answers


def report(columns: dict[str, dict[str, str]], versions: str) -> str:
    rows = [
        f"| {case} | " + " | ".join(answers.get(case, "") for answers in columns.values()) + " |"
        for case in CASES
    ]
    head = f"| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}"
    return f"""# Executors on a real Slurm

`bench/executors.py`: the same cases for every executor, on a Slurm of one node that declares 4 CPUs
on {os.cpu_count()} cores, with an accounting database (*db*) and without. {versions}.
The plugin is asked to look as often as it can, and by `squeue` where there is no database, for by
`sacct` it forgets its jobs there. *Hangs*: not ended after {PATIENCE:.0f} s.

{head}
{chr(10).join(rows)}
"""


def version(scripts: Path) -> str:
    code = (
        "from importlib import metadata as m\n"
        "for n in ('snakemake', 'snakemake-executor-plugin-slurm',"
        " 'snakemake-executor-plugin-cluster-generic'):\n"
        "    try: print(n.replace('snakemake-executor-plugin-', ''), m.version(n), end=', ')\n"
        "    except m.PackageNotFoundError: pass\n"
    )
    words = [str(scripts / "python"), "-c", code]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip(", ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plugin-environment", type=Path)
    parser.add_argument("--case", action="append", choices=[*CASES], help="default: all")
    parser.add_argument("--answers", type=Path, help="a JSON file: columns in it are not run again")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    problem = missing(accounting=True)
    if problem:
        sys.exit(problem)
    if SYSTEM_CONFIG.exists():
        sys.exit(f"{SYSTEM_CONFIG} exists: run this where there is no Slurm")
    here = Path(sys.executable).parent
    executors = [Executor(name="this profile", scripts=here, profile=lambda _: "", ours=True)]
    versions = [version(here)]
    if arguments.plugin_environment:
        there = arguments.plugin_environment.resolve() / "bin"
        versions.append(version(there))
        executors += [
            Executor(name="slurm", scripts=there, profile=plugin_profile(False)),
            Executor(name="slurm, arrays", scripts=there, profile=plugin_profile(True)),
        ]
    path = arguments.answers
    columns = json.loads(path.read_text()) if path and path.exists() else {}
    for executor in executors:
        for accounting in (False, True):
            name = f"{executor.name}{', db' if accounting else ''}"
            if name not in columns:
                columns[name] = column(executor, accounting, arguments.case or [*CASES])
            if path:
                path.write_text(json.dumps(columns, indent=2))
    arguments.output.write_text(report(columns, "; beside it ".join(versions)))
    print(arguments.output.read_text())


if __name__ == "__main__":
    main()
