"""Talks to `peers.worker`, which runs adapters in another process or Python environment."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peers import Task

_LIBRARIES = ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "NUMBA")
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in _LIBRARIES} | {"NPROC": "1"}
_XLA = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "TF_CPP_MIN_LOG_LEVEL": "2"}


class Remote:
    """One worker process, which ends at `close`."""

    def __init__(self, python: str, device: str) -> None:
        environment = os.environ | ONE_THREAD | {"PYTHONPATH": str(Path(__file__).parents[1])}
        if device == "cpu":
            environment |= _XLA | {"JAX_PLATFORMS": "cpu"}
        self._process = subprocess.Popen(
            [python, "-m", "peers.worker"],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def version(self, adapter: str) -> str | None:
        result: str | None = self._ask({"version": adapter})
        return result

    def trainer(self, key: str, adapter: str, task: Task, features: Path, labels: Path) -> None:
        files = {"features": str(features), "labels": str(labels)}
        self._ask({"trainer": key, "adapter": adapter, "task": asdict(task), **files})

    def run(self, key: str, steps: int) -> float:
        """Returns the processor time of a number of steps, in seconds."""
        return float(self._ask({"run": key, "steps": steps}))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"peers.worker ended on {request}; its output has the reason")
        return json.loads(line)["result"]
