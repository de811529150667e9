"""Trains by a `use_*` adapter in any environment: a request per line of standard input, as JSON.

A request names the adapter, the .npz file and the rest of a `peers.Fit`. The answer has the
accuracy on the test rows, and the seconds of processor time that `train` took.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import warnings
from functools import cache
from typing import Any

import numpy as np

from peers import Fit


@cache
def _load(path: str) -> dict[str, Any]:
    with np.load(path) as arrays:
        return dict(arrays)


def answer(request: dict[str, Any]) -> dict[str, float]:
    rows = _load(request["path"])
    train = importlib.import_module(f"peers.{request['adapter']}").train
    groups = rows["groups"] if request["groups"] else None
    fit = Fit(X=rows["X"].copy(), y=rows["y"], groups=groups, **request["target"])
    started = time.process_time()
    predict = train(fit)
    seconds = time.process_time() - started
    right = predict(rows["X_test"]) == rows["y_test"]
    return {"accuracy": float(right.mean()), "seconds": seconds}


def main() -> None:
    warnings.simplefilter("ignore")
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
