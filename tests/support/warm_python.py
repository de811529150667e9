"""Forks Pythons with imported heavy libraries; importing takes most of a small run's time.

    python tests/support/warm_python.py serve SOCKET KEPT    forks a process for each request
    python -ISu tests/support/ask_python.py SOCKET -m snakemake ARGUMENTS...    asks for one

A test run requests a Python process for Snakemake. Snakemake requests more: one for each job's
script, and one to describe the networks of a plan. Each forked process gets the arguments, folder,
environment and files of its client, and the client ends in the same way; if the client is killed,
so is the forked process. The server imports libraries and the most used modules of dpprobe
beforehand. A process that would find another dpprobe, such as a copy of the code, imports that one
instead. Tests of the start of a run, of killed runs and of runs on other machines use ordinary
Pythons."""

from __future__ import annotations

import contextlib
import gc
import json
import marshal
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

# Imported at the server's start; modules for jobs and networks are imported at the first request.
FOR_RUNS = (
    "snakemake.cli",
    "snakemake.script",
    "snakemake_executor_plugin_cluster_generic",
    "snakemake.report.html_reporter",
    "snakemake.benchmark",
    "snakemake.storage",
    "nbformat",
    "smart_open",
    "pydantic",
    "packaging.version",
    "argparse_dataclass",
    "platformdirs",
    "dpprobe.study.study_checks",
    "dpprobe.study.dimension_checks",
    "dpprobe.study.run_command",
    "dpprobe.study.snapshot",
    "dpprobe.study.study_file",
    "dpprobe.study.slurm_partitions",
    "dpprobe.tracking.receipt",
    "dpprobe.data.sources.sklearn_datasets",
    "dpprobe.heads.sgd",
    "dpprobe.release.bundle",
    "dpprobe.reporting.registry",
    "dpprobe.backbones.pixels",
    "dpprobe.files.run_marks",
    "dpprobe.study.study_lines",
    "dpprobe.reporting.results_command",
    "snakemake.profiles",
    "snakemake_logger_plugin_dpprobe",
    "encodings.utf_8_sig",
)
FOR_JOBS = (
    "torch",
    "numba",
    "h5py",
    "pyarrow.parquet",
    "pyarrow.dataset",
    "scipy.stats",
    "scipy.special",
    "scipy.linalg",
    "sklearn.metrics",
    "sklearn.datasets",
    "openTSNE",
    "jinja2",
    "matplotlib.figure",
    "matplotlib.pyplot",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "PIL.Image",
    "PIL.ImageOps",
    "PIL.BmpImagePlugin",
    "PIL.GifImagePlugin",
    "PIL.JpegImagePlugin",
    "PIL.PpmImagePlugin",
    "alembic.command",
    "dp_accounting.pld",
    "mlflow.store.tracking.sqlalchemy_store",
    "numba.np.linalg",
    "numba.core.typing.cffi_utils",  # for the first compiled function
    "dpprobe.training.head_fits",
    "dpprobe.training.head_job",
    "dpprobe.reporting.report.write",
    "dpprobe.tracking.ingest",
    "dpprobe.data.dataset_preparation",
    "dpprobe.features.extraction",
    "dpprobe.exhibits.make",
    "dpprobe.reporting.figures.curves",
    "dpprobe.analyses.tsne.measure",
    "dpprobe.analyses.tsne.show",
    "matplotlib.patheffects",
    "dpprobe.results.summary",
)
FOR_NETWORKS = ("timm", "torchvision", "open_clip")
DESCRIBE = "dpprobe.backbones.describe"  # a plan runs this in its own process
ASK = str(Path(__file__).with_name("ask_python.py"))
LENGTH = struct.Struct("!I")
START = 900  # seconds, enough for a busy machine


@contextlib.contextmanager
def serving(python: str, variables: Mapping[str, str], kept: Path | None = None) -> Iterator[str]:
    """Runs a server with this Python and environment; yields the path of its socket.

    Args:
      kept: folder of results that servers with equal code share; default: the server's own.
    """
    import subprocess
    import tempfile

    # keeps imports from starting threads
    quiet = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    quiet["MLFLOW_DISABLE_TELEMETRY"] = "true"
    with tempfile.TemporaryDirectory(prefix="dpprobe-") as folder:
        path = f"{folder}/socket"
        with subprocess.Popen(
            [python, __file__, "serve", path, str(kept or folder)],
            stdin=subprocess.PIPE,  # the server ends with this process
            env={**variables, **quiet},
        ) as server:
            try:
                yield path
            finally:
                server.communicate(timeout=60)


def asking(path: str, *words: str) -> list[str]:
    """Waits for a server; returns the command that asks it for a Python with these words."""
    deadline = time.monotonic() + START
    while not Path(path).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return [sys.executable, "-ISu", ASK, path, *words]


def asking_in_script(path: str) -> str:
    """Returns a shell command that prints a job script whose Python comes from the server."""
    asked = " ".join(asking(path, "-m", "snakemake"))
    return f"sed 's#[^ ]*python[0-9.]* -m snakemake#{asked}#'"  # without a shared disk: `python`


class Server:
    """The process from which all others are forked; it never starts a thread."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(path)
        self._socket.listen(64)
        self._asked: dict[int, socket.socket] = {}
        self._woken, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> dict[str, Any] | None:
        """Answers requests; returns the request in each forked process, and None at the end."""
        while True:
            connections = {each.fileno(): process for process, each in self._asked.items()}
            files = [0, self._woken, self._socket.fileno(), *connections]
            ready, _, _ = select.select(files, [], [])
            for file in ready:
                if file == 0:
                    self._kill(*list(self._asked))
                    return None
                if file == self._woken:
                    os.read(self._woken, 4096)
                    self._tell()
                elif file in connections:
                    self._kill(connections[file])
                elif file == self._socket.fileno() and (request := self._answer()):
                    return request

    def _answer(self) -> dict[str, Any] | None:
        connection, _ = self._socket.accept()
        head, files, _, _ = socket.recv_fds(connection, LENGTH.size, 3)
        (length,) = LENGTH.unpack(head)
        content = b""
        while len(content) < length:
            content += connection.recv(length - len(content))
        request: dict[str, Any] = marshal.loads(content)
        prepare(request["arguments"])
        process = os.fork()
        if process:
            for file in files:
                os.close(file)
            self._asked[process] = connection
            with contextlib.suppress(OSError):  # a client that is gone is noticed in the next round
                connection.sendall(LENGTH.pack(process))
            return None
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in (self._socket, connection, *self._asked.values()):
            each.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        return request

    def _tell(self) -> None:
        """Sends the exit statuses of finished processes to their clients."""
        for process in list(self._asked):
            done, status = os.waitpid(process, os.WNOHANG)
            if done:
                with self._asked.pop(process) as connection, contextlib.suppress(OSError):
                    connection.sendall(LENGTH.pack(status))

    def _kill(self, *processes: int) -> None:
        """Kills the processes whose clients are gone."""
        for process in processes:
            if process in self._asked:  # it may have finished already
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
                self._asked.pop(process).close()


def prepare(arguments: list[str]) -> None:
    """Imports the modules that a process with these arguments needs."""
    import importlib

    names = list(FOR_RUNS)
    if arguments[0] != "-m":
        names += FOR_JOBS
        job = Path(arguments[0]).read_bytes()  # contains the study
        if b"timm" in job or b"open_clip" in job:
            names += FOR_NETWORKS
    elif arguments[1] == DESCRIBE:
        names += ("torch", *FOR_NETWORKS)
    for name in names:
        if name not in sys.modules:
            importlib.import_module(name)
    tasks = [
        each.joinpath("comm").read_text().strip() for each in Path("/proc/self/task").iterdir()
    ]
    threads = len(tasks) - tasks.count("jemalloc_bg_thd")  # pyarrow's allocator handles forks
    assert threads == 1, f"importing {names} started {threads - 1} threads, which a fork loses"
    gc.collect()
    gc.freeze()  # a collection would copy every shared page


def let_runs_ask(path: str) -> None:
    """Makes Snakemake use the server for job scripts, networks and results that a run prints."""
    import subprocess

    from snakemake.script import PythonScript

    def execute_script(script: Any, fname: str, edit: bool = False) -> None:
        del edit
        words = [sys.executable, "-ISu", ASK, path, str(Path(fname).absolute())]
        command = " ".join(f"{{words[{index}]:q}}" for index in range(len(words)))
        script._execute_cmd(command, words=words)

    PythonScript.execute_script = execute_script
    run = subprocess.run

    def asked(*words: Any, **options: Any) -> Any:
        command = words[0] if words else None
        if isinstance(command, list) and command[:2] == [sys.executable, "-m"]:
            words = ([sys.executable, "-ISu", ASK, path, *command[1:]], *words[1:])
        return run(*words, **options)

    subprocess.run = asked


def shorten_waits() -> None:
    """Spares a second at each run's end, and most of the second between two questions for states.

    The scheduler starts a timer that wakes it for jobs beyond the rate limit; Python's end waits
    for this timer.
    """
    import asyncio
    import threading

    from snakemake.scheduling.job_scheduler import JobScheduler
    from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor

    def wake_later(scheduler: Any, delay: float) -> None:
        timer = threading.Timer(delay, scheduler._open_jobs.release)
        timer.daemon = True
        timer.start()

    async def sleep(executor: Any) -> None:
        del executor
        await asyncio.sleep(0.1)

    JobScheduler._schedule_reevalutation = wake_later
    RemoteExecutor.sleep = sleep


def begin_snakemake(folder: Path) -> None:
    """Finds Snakemake's plugins once, and compiles each rule file once for all processes.

    Both took half of a plan's time. The folder contains compiled files, named by a hash of all
    inputs of the parser: path, text, number of earlier rules. Each process finds its own logger
    plugin, since it may import another dpprobe.
    """
    import hashlib

    from snakemake import cli, workflow

    list_modules_once()
    for kind in ("Executor", "Report", "Scheduler", "Storage"):
        getattr(cli, f"{kind}PluginRegistry")()  # a singleton
    parse = workflow.parse

    def parse_once(path: Any, of: Any, linemap: dict[int, int], rulecount: int = 0) -> Any:
        name = path.get_path_or_uri(secret_free=True)
        text = (name, rulecount, Path(name).read_bytes())
        kept = folder / f"parsed-{hashlib.sha256(repr(text).encode()).hexdigest()}"
        if not kept.exists():
            code, count = parse(path, of, linemap, rulecount=rulecount)
            part = kept.with_suffix(f".{os.getpid()}")
            part.write_bytes(marshal.dumps((compile(code, name, "exec"), count, linemap)))
            part.rename(kept)
        code, rulecount, lines = marshal.loads(kept.read_bytes())
        linemap.update(lines)
        return code, rulecount

    workflow.parse = parse_once
    workflow.compile = lambda code, *_: code  # `exec` accepts compiled code as well as text


def list_modules_once() -> None:
    """Lists each module folder only once; Snakemake searches these folders for plugins."""
    import functools
    import pkgutil

    list_modules = pkgutil.iter_modules
    listed = functools.cache(lambda place: list(list_modules([place])))

    def list_once(path: Any = None, prefix: str = "") -> Iterator[Any]:
        if path is not None or prefix:
            return list_modules(path, prefix)
        found = [each for place in sys.path for each in listed(place)]
        return iter({each.name: each for each in reversed(found)}.values())

    pkgutil.iter_modules = list_once


def describe_networks_once(folder: Path) -> None:
    """Caches descriptions of networks for all studies, as a study does for its later starts."""
    from dpprobe.backbones import feature_dimensions as known
    from dpprobe.files.atomic_writes import write_text

    ask_process = known._ask_process

    def ask_for_new(backbones: Any, dimensions: Any) -> dict[str, Any]:
        path = folder / known.FILE
        keys = {name: known._hash_options(one) for name, one in backbones.items()}
        kept = known._read_known(path)
        new = {name: one for name, one in backbones.items() if keys[name] not in kept}
        answers = ask_process(new, dimensions) if new else {}
        found = {keys[name]: one for name, one in answers.items() if "dimension" in one}
        if found:
            write_text(path, json.dumps({"format": known.FORMAT, "networks": kept | found}))
        return answers | {name: kept[key] for name, key in keys.items() if key in kept}

    known._ask_process = ask_for_new


def keep_prices(folder: Path) -> None:
    """Computes each price once for all processes, cached by a hash of all arguments.

    Each job prices its plans again, and most plans equal those of other tests' jobs.
    """
    from dpprobe.privacy import noise_calibration, trade_off

    for name in ("_cached_price", "_cached_checks", "_fits_price", "_group_price"):
        answers = keep_answers(getattr(noise_calibration, name), folder)
        setattr(noise_calibration, name, answers)
    trade_off._cached_profile = keep_answers(trade_off._cached_profile, folder)


def keep_answers(function: Any, folder: Path) -> Any:
    """Returns a function that caches its answers in files, by the `repr` of its arguments."""
    import functools
    import hashlib
    import pickle

    @functools.lru_cache
    def ask_once(*words: Any, **options: Any) -> Any:
        text = repr((function.__qualname__, words, sorted(options.items())))
        kept = folder / f"price-{hashlib.sha256(text.encode()).hexdigest()}"
        if not kept.exists():
            part = kept.with_suffix(f".{os.getpid()}")
            part.write_bytes(pickle.dumps(function(*words, **options)))
            part.rename(kept)
        return pickle.loads(kept.read_bytes())

    return ask_once


def python_path() -> list[str]:
    """Returns the folders in PYTHONPATH."""
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def forget_other_code() -> None:
    """Unloads dpprobe if this process would import another dpprobe."""
    from importlib.machinery import PathFinder

    found = PathFinder.find_spec("dpprobe")
    if found is None or found.origin != sys.modules["dpprobe"].__file__:
        packages = ("dpprobe", "snakemake_logger_plugin_dpprobe")
        for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
            del sys.modules[name]


def become(request: dict[str, Any]) -> None:
    """Runs the requested program, as Python does with these arguments."""
    import runpy

    os.chdir(request["folder"])
    before = python_path()
    for name in set(os.environ) - set(request["environment"]):
        del os.environ[name]
    os.environ.update(request["environment"])
    sys.path[1:] = python_path() + [path for path in sys.path[1:] if path not in before]
    first, *rest = request["arguments"]
    if first == "-m":
        name, *words = rest
        sys.path[0] = str(Path.cwd())
        forget_other_code()
        sys.argv = [name, *words]
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(first).parent)
        forget_other_code()
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


def end_with(action: Callable[[], None]) -> NoReturn:
    """Ends this process after an action like Python, but frees no memory: pages stay shared."""
    import atexit
    import threading
    import traceback

    status: Any = 0
    try:
        action()
    except SystemExit as end:
        status = 0 if end.code is None else end.code
        if not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    path, kept = sys.argv[2], Path(sys.argv[3])
    server = Server(path)
    prepare(["-m", "snakemake"])
    let_runs_ask(path)
    shorten_waits()
    begin_snakemake(kept)
    describe_networks_once(kept)
    keep_prices(kept)
    request = server.serve()
    # The server also ends at once: otherwise Triton prints pages of messages about frozen objects.
    end_with(lambda: become(request) if request else None)


if __name__ == "__main__":
    main()
