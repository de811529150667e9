"""An MLflow server on a free local port, for tests and pictures."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

WAIT_SECONDS = 60.0


@contextlib.contextmanager
def serve(store: Path, backend: str | None = None) -> Iterator[str]:
    """Serves a database and yields the server's URL; artifacts go to `store`.

    Args:
      backend: URI of the database; default: `store`/mlflow.db.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--backend-store-uri",
        backend or f"sqlite:///{store}/mlflow.db",
        "--workers",
        "1",
        "--artifacts-destination",
        str(store / "server_artifacts"),
    ]
    environment = os.environ | {
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    address = f"http://127.0.0.1:{port}"
    with (store / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=store, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            _await_answer(address, process, store / "server.log")
            yield address
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 15)
            process.wait(timeout=30)


def _await_answer(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    limit = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < limit:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"the MLflow server did not answer: {log.read_text()[-2000:]}")
