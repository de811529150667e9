"""Fixtures for real Snakemake runs, each in its own folder."""

from __future__ import annotations

import copy
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.programs import run_program
from tests.support.warm_python import asking, asking_in_script, serving

TIMEOUT = 900  # seconds, enough for a busy machine

# A study with one backbone and two seeds, which tests of reruns change.
SMALL: dict[str, Any] = {
    "study": "small",
    "datasets": {"digits": {"source": "sklearn", "name": "digits"}},
    "backbones": {"pixels": {"family": "pixels"}},
    "methods": {"sgd": {"head": "sgd", "batch_size": 64, "epochs": 2}},
    "epsilons": [2],
    "seeds": 2,
    "features": {"shards": 1},
    "tsne": {"points": 100},
}


def session_folder(base: Path) -> Path:
    """Returns the folder shared by a session's processes, from a process's temporary folder."""
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


class Calibrations:
    """Noise multipliers that earlier runs of this session found, reused by later runs.

    File names are hashes of all inputs, and no rule makes the files. So a run plans and starts the
    same jobs with or without the files, and `calibrate` reads them instead of computing again.
    """

    shared: Path | None = None

    @classmethod
    @contextmanager
    def lent(cls, results: Path) -> Iterator[None]:
        """Copies the multipliers into a run's results, and new ones back afterwards."""
        folder = results / "calibration"
        if cls.shared is None or (results.exists() and not folder.exists()):
            yield
            return
        created = not results.exists()
        lent = {path.name for path in cls._copied(cls.shared, folder)}
        yield
        if created and {path.name for path in results.rglob("*") if path.is_file()} <= lent:
            shutil.rmtree(results)  # the run itself wrote nothing
        else:
            cls._copied(folder, cls.shared)

    @staticmethod
    def _copied(source: Path, target: Path) -> list[Path]:
        target.mkdir(parents=True, exist_ok=True)
        missing = [path for path in source.glob("*.json") if not (target / path.name).exists()]
        for path in missing:
            part = target / f".{path.name}.{os.getpid()}"
            shutil.copyfile(path, part)
            part.rename(target / path.name)
        return missing


@pytest.fixture(scope="session", autouse=True)
def _shared_calibrations(tmp_path_factory: pytest.TempPathFactory) -> None:
    Calibrations.shared = session_folder(tmp_path_factory.getbasetemp()) / "calibrations"
    Calibrations.shared.mkdir(exist_ok=True)


class WarmPython:
    """The server of `tests/support/warm_python.py` that this process's runs use."""

    socket: str | None = None

    @classmethod
    @contextmanager
    def serving(cls, kept: Path | None = None) -> Iterator[None]:
        with serving(sys.executable, os.environ, kept) as cls.socket:
            yield
        cls.socket = None

    @classmethod
    def asked(cls, command: list[str]) -> list[str]:
        """Returns a command that runs `command` in a Python from the server."""
        assert cls.socket is not None
        return asking(cls.socket, *command[1:])

    @classmethod
    def job(cls) -> str:
        """Returns a shell command that runs the job script `$1` in a Python from the server."""
        assert cls.socket is not None
        return f'{asking_in_script(cls.socket)} "$1" | sh'


@pytest.fixture(scope="session", autouse=True)
def _warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    kept = session_folder(tmp_path_factory.getbasetemp()) / "kept"
    kept.mkdir(exist_ok=True)
    with WarmPython.serving(kept):
        yield


@dataclass(frozen=True)
class Workspace:
    """A working directory, and the study that runs in it."""

    repository: Path
    directory: Path

    def write(self, study: Mapping[str, Any]) -> Path:
        path = self.directory / "study.yaml"
        path.write_text(yaml.safe_dump(dict(study)))
        return path

    def command(self, *arguments: str) -> list[str]:
        return [
            sys.executable,
            "-m",
            "snakemake",
            "--snakefile",
            str(self.repository / "Snakefile"),
            "--directory",
            str(self.directory),
            "--profile",
            "none",
            "--quiet",
            "host",  # prints all about jobs, unlike profiles/default
            "--cores",
            "2",
            *arguments,
        ]

    def run(
        self,
        study: Mapping[str, Any],
        *arguments: str,
        files: Sequence[Path] = (),
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a study, with further files merged; joins standard error to standard output."""
        command = self.command(*arguments, "--configfile", str(self.write(study)), *map(str, files))
        if WarmPython.socket:
            command = WarmPython.asked(command)
        results = self.directory / study.get("results_dir", "results")
        with nullcontext() if "--dry-run" in arguments else Calibrations.lent(results):
            result = run_program(command, joined=True, timeout=TIMEOUT, check=False)
        if check and result.returncode:
            pytest.fail(f"snakemake exited with {result.returncode}:\n{result.stdout[-6000:]}")
        return result

    def planned(self, study: Mapping[str, Any], *arguments: str) -> Counter[str]:
        """Returns the number of jobs by rule that a run would start."""
        output = self.run(study, "--dry-run", *arguments).stdout
        return count_rules(output)

    def dpprobe(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a command of dpprobe in the working directory."""
        return run_program(
            WarmPython.asked([sys.executable, "-m", "dpprobe", *arguments]),
            cwd=self.directory,
            check=False,
            timeout=TIMEOUT,
        )

    @contextmanager
    def started(
        self, study: Mapping[str, Any], target: str, ready: Callable[[], object]
    ) -> Iterator[int]:
        """Starts a run, and yields its process id when `ready` is true; the caller must kill it."""
        process = subprocess.Popen(
            self.command(target, "--configfile", str(self.write(study))),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        wait_until(ready, process)
        yield process.pid
        assert process.wait(TIMEOUT) != 0

    def cell(self, method: str, epsilon: str, backbone: str = "pixels") -> Path:
        return self.directory / "results/cells/digits" / backbone / method / f"eps-{epsilon}"


def wait_until(ready: Callable[[], object], process: subprocess.Popen[Any]) -> None:
    """Waits until `ready` returns true, while the process runs."""
    deadline = time.monotonic() + TIMEOUT
    while not ready():
        assert process.poll() is None, "it ended before"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def write_scripts(folder: Path, **scripts: str) -> None:
    """Writes executable shell scripts."""
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)


def on_cluster(folder: Path, submit: str, status: str) -> list[str]:
    """Writes the scripts of a simulated cluster; returns a run's options for submitting to it."""
    write_scripts(folder, submit=submit, status=status)
    words = ["--executor", "cluster-generic", "--jobs", "1", "--seconds-between-status-checks", "1"]
    return words + [
        f"--cluster-generic-{name}-cmd={folder}/{name}" for name in ("submit", "status")
    ]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def copy_code(repository: Path, folder: Path) -> Path:
    """Copies all files of the repository that a run reads."""
    for name in ("workflow", "scripts", "profiles", "envs", "resources", "src"):
        shutil.copytree(repository / name, folder / name)
    shutil.copy(repository / "Snakefile", folder)
    return folder


def count_rules(output: str) -> Counter[str]:
    """Counts jobs by rule in the first table of Snakemake's log; empty without a table."""
    counts: Counter[str] = Counter()
    lines = iter(output.splitlines())
    for line in lines:
        if line.startswith("Job stats:"):
            break
    for line in lines:
        rule, _, count = line.rpartition(" ")
        if rule.strip() == "total":
            break
        if count.isdigit():
            counts[rule.strip()] = int(count)
    return counts


Template = Callable[..., None]
PREPARED = ("features", "calibrations")  # all inputs of training heads


@pytest.fixture(scope="session")
def template(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Template:
    """Runs a study in a workspace until some targets are made, or copies an identical earlier run.

    Each such run happens only once, even if several processes run tests.
    """
    root = session_folder(tmp_path_factory.getbasetemp())

    def run(workspace: Workspace, study: Mapping[str, Any], *targets: str) -> None:
        key = hashlib.sha256(json.dumps([study, targets]).encode()).hexdigest()[:16]
        made = root / f"template-{key}"
        with made.with_suffix(".lock").open("w") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX)
            if not made.exists():
                part = made.with_suffix(".part")
                part.mkdir()
                Workspace(repository=repository, directory=part).run(study, *targets)
                part.rename(made)
        shutil.copytree(made, workspace.directory, dirs_exist_ok=True)

    return run


@pytest.fixture
def small() -> dict[str, Any]:
    return copy.deepcopy(SMALL)


@pytest.fixture
def workspace(repository: Path, tmp_path: Path) -> Workspace:
    return Workspace(repository=repository, directory=tmp_path)


@pytest.fixture(scope="module")
def module_workspace(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Workspace]:
    def make(name: str) -> Workspace:
        return Workspace(repository=repository, directory=tmp_path_factory.mktemp(name))

    return make
