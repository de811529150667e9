"""A real Slurm of one node for tests: no systemd, nothing under /etc, own ports, own folder.

    python tests/slurm/cluster.py up DIRECTORY [--accounting]
    python tests/slurm/cluster.py down DIRECTORY

It needs root and the packages that tests/install_system_packages.sh installs. Another one can run
beside it, and a real one is not touched: all commands find it by SLURM_CONF.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

NEEDED = ("munged", "munge", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "scancel")
ACCOUNTING = ("slurmdbd", "sacctmgr", "sacct", "mariadbd", "mariadb", "mariadb-install-db")
# sacctmgr uses only the default socket, so all clusters on a machine share one munged.
MUNGE_PID = Path("/run/munge/dpprobe-tests.pid")
PATIENCE = 240.0
SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin"

CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
SlurmctldPidFile={root}/pid/slurmctld.pid
SlurmdPidFile={root}/pid/slurmd.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd.log
SwitchType=switch/none
MpiDefault=none
# no cgroups: they are not everywhere where tests run
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill,UsePss
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
# an impossible request is refused at once, not queued for ever
EnforcePartLimits=ALL
ReturnToService=2
# a file with a line for every job that ended: what Slurm really ran
JobCompType=jobcomp/filetxt
JobCompLoc={root}/log/jobs.log
MinJobAge={min_job_age}
KillWait=5
SlurmctldTimeout=60
SlurmdTimeout=60
MessageTimeout=5
InactiveLimit=0
# more CPUs than the machine has, so that jobs overlap on a small one
SlurmdParameters=config_overrides
{accounting}
# fails where a test says so
Prolog={root}/prolog
{devices}
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory_mb} State=UNKNOWN {gres}
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE DefaultTime=60 State=UP
"""

DATABASE = """\
AuthType=auth/munge
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={ports[2]}
SlurmUser=root
PidFile={root}/pid/slurmdbd.pid
LogFile={root}/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={ports[3]}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm_acct_db
"""


def missing(*, accounting: bool = False) -> str | None:
    """Returns why no cluster can be started here; None if a cluster can."""
    path = f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"
    needed = NEEDED + (ACCOUNTING if accounting else ())
    absent = [name for name in needed if shutil.which(name, path=path) is None]
    if absent:
        return f"missing: {', '.join(absent)}; run tests/install_system_packages.sh as root"
    if os.geteuid() != 0:
        return "a Slurm of one's own needs root"
    return None


def processes(name: str) -> Iterator[Path]:
    """Yields the processes of a command."""
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if path.read_text().strip() == name:
                yield path.parent


def jobs_of(setting: bytes) -> Iterator[Path]:
    """Yields the job processes that have a setting in their environment."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            values = path.read_bytes().split(b"\0")
            if setting in values and any(value.startswith(b"SLURM_JOB_ID=") for value in values):
                yield path.parent


def free_ports(count: int) -> list[int]:
    """Returns ports on which no process listens."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster with one node and the partition `main`; state, logs and job list are under `root`.

    The GPUs are files, which Slurm counts and assigns like devices.
    """

    root: Path
    cpus: int = 4
    gpus: int = 0
    memory_mb: int = 12_000
    min_job_age: int = 300
    accounting: bool = False
    host: str = field(default_factory=lambda: socket.gethostname().split(".")[0])

    @property
    def config(self) -> Path:
        return self.root / "slurm.conf"

    @property
    def jobs_log(self) -> Path:
        """The file into which Slurm writes a line for every job that ended."""
        return self.root / "log" / "jobs.log"

    def environment(self) -> dict[str, str]:
        """The environment variables with which commands and Snakemake find this cluster."""
        path = f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"
        return {**os.environ, "SLURM_CONF": str(self.config), "PATH": path}

    def command(self, *words: str, check: bool = True, timeout: float = 60) -> str:
        """Runs a Slurm command and returns its standard output."""
        result = subprocess.run(
            words,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and result.returncode:
            raise RuntimeError(f"{shlex.join(words)}: {result.stderr or result.stdout}")
        return result.stdout

    def start(self) -> None:
        """Starts all daemons; returns when the node accepts jobs."""
        for name in ("state", "spool", "log", "pid", "munge", "database"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        with one_at_a_time():
            self._start_munge()
            if not self.config.is_file():
                self._write_config()
            if self.accounting:
                self._start_database()
            self.start_controller()
        self.start_node()
        wait_until(self._idle, "the node to become idle")

    def start_jobs(self, start: bool) -> None:
        """Lets the partition start jobs, or only queue them."""
        state = "UP" if start else "DOWN"
        self.command("scontrol", "update", "PartitionName=main", f"State={state}")

    def resume_node(self) -> None:
        self.command("scontrol", "update", f"NodeName={self.host}", "State=RESUME")

    def start_node(self) -> None:
        if not self._alive("slurmd"):
            self.command("slurmd", "-N", self.host, "-f", str(self.config))

    def crash_node(self) -> None:
        """Kills slurmd and its jobs, as a power cut does, and marks the node as down."""
        self._stop("slurmd", signal.SIGKILL)
        mine = f"SLURM_CONF={self.config}".encode()
        for path in [*processes("slurmstepd"), *jobs_of(mine)]:
            with contextlib.suppress(OSError):
                if mine in (path / "environ").read_bytes().split(b"\0"):
                    os.kill(int(path.name), signal.SIGKILL)
        self.command("scontrol", "update", f"NodeName={self.host}", "State=DOWN", "Reason=test")

    def start_controller(self) -> None:
        if not self._alive("slurmctld"):
            self.command("slurmctld", "-f", str(self.config))
        wait_until(lambda: "UP" in self.command("scontrol", "ping", check=False), "slurmctld")

    def saved(self, text: str) -> int:
        """Counts a text in the jobs that slurmctld would still know after a crash.

        It saves jobs every few seconds; after a crash it forgets others, and reuses their ids.
        """
        path = self.root / "state/job_state"
        return path.read_bytes().count(text.encode()) if path.exists() else 0

    def describe_state(self) -> str:
        """Returns the queue, the node's state and the ends of the logs."""
        said = [
            self.command("squeue", "-a", "-o", "%i %j %T %r %S", check=False),
            self.command("scontrol", "show", "node", check=False),
            f"slurmd is {'alive' if self._alive('slurmd') else 'gone'}",
        ]
        for name in ("slurmctld", "slurmd"):
            lines = (self.root / f"log/{name}.log").read_text(errors="replace").splitlines()
            said += [f"{name}.log:", *lines[-25:]]
        return "\n".join(said)

    def kill_controller(self) -> None:
        """Kills slurmctld, as a crash does."""
        self._stop("slurmctld", signal.SIGKILL)

    def stop(self) -> None:
        """Stops all jobs, then everything that `start` started."""
        if self._alive("slurmctld"):
            self.command("scancel", "--user=root", "--state=PENDING", check=False)
            self.command("scancel", "--user=root", "--full", "--signal=KILL", check=False)
            self.command("scancel", "--user=root", check=False)
            with contextlib.suppress(TimeoutError):
                wait_until(lambda: not self.command("squeue", "-h", check=False), "jobs", 15)
        with one_at_a_time():
            for name in ("slurmd", "slurmctld", "slurmdbd", "mariadbd"):
                self._stop(name, signal.SIGTERM)
            if not any(processes("slurmctld")):  # other clusters here use it
                self._stop("munged", signal.SIGTERM)

    def _idle(self) -> bool:
        state = self.command("sinfo", "-h", "-o", "%T", "-n", self.host, check=False)
        return state.strip() == "idle"

    def _write_config(self) -> None:
        ports = free_ports(4)
        accounting = "AccountingStorageType=accounting_storage/none"
        if self.accounting:
            accounting = (
                "AccountingStorageType=accounting_storage/slurmdbd\n"
                f"AccountingStorageHost=127.0.0.1\nAccountingStoragePort={ports[2]}\n"
                "AccountingStorageEnforce=limits"
            )
            text = DATABASE.format(
                host=self.host, root=self.root, ports=ports, password=secrets.token_hex(8)
            )
            path = self.root / "slurmdbd.conf"
            path.touch(mode=0o600)
            path.write_text(text)
        # older versions reject "disabled"; a missing mount point has the same effect
        (self.root / "cgroup.conf").write_text(
            f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={self.root}/none\n"
        )
        gpus = [self.root / f"gpu{index}" for index in range(self.gpus)]
        for path in gpus:
            path.touch()
        (self.root / "gres.conf").write_text(
            "".join(f"NodeName={self.host} Name=gpu File={path}\n" for path in gpus)
        )
        prolog = self.root / "prolog"
        prolog.write_text(f"#!/bin/sh\ntest ! -e {self.root}/broken\n")
        prolog.chmod(0o755)
        self.config.write_text(
            CONFIG.format(
                host=self.host,
                root=self.root,
                ports=ports,
                accounting=accounting,
                devices="GresTypes=gpu" if gpus else "",
                gres=f"Gres=gpu:{self.gpus}" if gpus else "",
                cpus=self.cpus,
                memory_mb=self.memory_mb,
                min_job_age=self.min_job_age,
            ),
        )

    def _start_munge(self) -> None:
        """Starts munged unless the system or another cluster already runs it."""
        if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode == 0:
            return
        key = self.root / "munge" / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(1024))
        folder = MUNGE_PID.parent
        folder.mkdir(mode=0o755, exist_ok=True)
        os.chown(folder, 0, 0)
        self.command(
            "munged",
            "--force",
            f"--key-file={key}",
            f"--pid-file={MUNGE_PID}",
            f"--log-file={self.root}/log/munged.log",
            f"--seed-file={self.root}/munge/seed",
        )
        wait_until(
            lambda: (
                subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode == 0
            ),
            "munged",
        )

    def _start_database(self) -> None:
        """Starts mariadb and slurmdbd, and adds the records that slurmctld needs."""
        settings = dict(
            line.split("=", 1) for line in (self.root / "slurmdbd.conf").read_text().splitlines()
        )
        data, sock = self.root / "database", self.root / "pid" / "mariadb.sock"
        if not (data / "mysql").is_dir():
            self.command(
                "mariadb-install-db",
                "--no-defaults",
                "--user=root",
                f"--datadir={data}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
            )
        if not self._alive("mariadbd"):
            with (self.root / "log" / "mariadbd.log").open("ab") as log:
                subprocess.Popen(
                    [
                        "mariadbd",
                        "--no-defaults",
                        "--user=root",
                        f"--datadir={data}",
                        f"--socket={sock}",
                        f"--port={settings['StoragePort']}",
                        "--bind-address=127.0.0.1",
                        f"--pid-file={self.root}/pid/mariadbd.pid",
                        "--innodb-buffer-pool-size=128M",
                        "--innodb-lock-wait-timeout=900",
                        "--innodb-flush-log-at-trx-commit=2",
                    ],
                    env=self.environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        mariadb = ["mariadb", "--no-defaults", f"--socket={sock}", "-uroot", "-e"]
        wait_until(lambda: bool(self.command(*mariadb, "select 1", check=False)), "mariadbd")
        user = f"'slurm'@'localhost' identified by '{settings['StoragePass']}'"
        self.command(
            *mariadb,
            f"create database if not exists slurm_acct_db; create user if not exists {user};"
            "grant all on slurm_acct_db.* to 'slurm'@'localhost'",
        )
        if not self._alive("slurmdbd"):
            self.command("slurmdbd")
        listed = ("sacctmgr", "-n", "-i", "-P")
        wait_until(lambda: self._answers(*listed, "list", "cluster"), "slurmdbd")
        for what, words in (
            ("cluster", ("test",)),
            ("account", ("tests", "Cluster=test")),
            ("user", ("root", "Account=tests", "Cluster=test")),
        ):
            if words[0] not in self.command(*listed, "list", what).split("|")[0:1]:
                self.command(*listed, "add", what, *words, check=False)

    def _answers(self, *words: str) -> bool:
        result = subprocess.run(words, env=self.environment(), capture_output=True, check=False)
        return result.returncode == 0

    def _pid(self, name: str) -> int | None:
        """Returns the process id of a daemon that this cluster started."""
        try:
            pid = int(self._pid_file(name).read_text())
            comm = Path(f"/proc/{pid}/comm").read_text().strip()
        except (FileNotFoundError, ValueError, ProcessLookupError):
            return None
        return pid if comm == name[:15] else None

    def _pid_file(self, name: str) -> Path:
        return MUNGE_PID if name == "munged" else self.root / "pid" / f"{name}.pid"

    def _alive(self, name: str) -> bool:
        return self._pid(name) is not None

    def _stop(self, name: str, number: signal.Signals) -> None:
        pid = self._pid(name)
        if pid is None:
            return
        os.kill(pid, number)
        try:
            wait_until(lambda: self._pid(name) != pid, name, 20)
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
        self._pid_file(name).unlink(missing_ok=True)


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Locks against other clusters on this machine, which share munged and choose free ports."""
    with Path("/run/dpprobe-tests.lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def wait_until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    """Waits until a condition is true.

    Raises:
        TimeoutError: If the condition was not true within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(0.1)


@contextlib.contextmanager
def running(cluster: Cluster) -> Iterator[Cluster]:
    """Yields a running cluster and always stops it at the end."""
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["up", "down"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--accounting", action="store_true")
    arguments = parser.parse_args()
    cluster = Cluster(root=arguments.directory.resolve(), accounting=arguments.accounting)
    if arguments.action == "down":
        cluster.stop()
        return
    problem = missing(accounting=arguments.accounting)
    if problem:
        sys.exit(problem)
    cluster.start()
    print(f"export SLURM_CONF={shlex.quote(str(cluster.config))}")


if __name__ == "__main__":
    main()
