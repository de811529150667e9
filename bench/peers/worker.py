"""Runs adapters in a separate process, for requests on standard input, one line of JSON each.

`peers.remote` starts this module with its folder's parent on the path. Requests: {"version":
adapter}; {"trainer": key, "adapter", "task", "features", "labels"} with NumPy files; {"run": key,
"steps"}. Each answer is a line {"result": ...}; for "run", the result is processor time in seconds.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import time
from typing import Any

import numpy as np

from peers import Run, Task

_RUNS: dict[str, Run] = {}


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # text that libraries print is no answer
    if hasattr(os, "sched_setaffinity"):
        # The process gets one core, because JAX starts a thread for each core.
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for line in sys.stdin:
        print(json.dumps({"result": _answer(json.loads(line))}), file=answers, flush=True)


def _answer(request: dict[str, Any]) -> Any:
    if "version" in request:
        return importlib.import_module(f"peers.{request['version']}").version()
    if "trainer" in request:
        adapter = importlib.import_module(f"peers.{request['adapter']}")
        arrays = _load(request["features"]), _load(request["labels"])
        _RUNS[request["trainer"]] = adapter.trainer(Task(**request["task"]), *arrays)
        return None
    started = time.process_time()
    _RUNS[request["run"]](request["steps"])
    return time.process_time() - started


@functools.cache
def _load(path: str) -> Any:
    return np.load(path)


if __name__ == "__main__":
    main()
