"""jax-privacy's estimators of epsilon on given scores; runs in the peers' environment.

A request a line of standard input, JSON: {"scores": NumPy file of scores_in and scores_out,
"threshold", "delta", "calls"}. The answer, a line, has the bounds by name, the thresholds that its
correction counts, and the median processor time of a call, in seconds.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import numpy as np

ERROR = 0.05


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    from jax_privacy import auditing

    scores = np.load(request["scores"])
    pair, delta = (scores["scores_in"], scores["scores_out"]), request["delta"]
    one = auditing.Explicit(request["threshold"])
    bounds, seconds = {}, {}
    estimators: dict[str, Callable[..., Any]] = {
        "clopper_pearson": lambda a, **o: a.epsilon_clopper_pearson(ERROR, delta, False, **o),
        "gdp": lambda a: a.epsilon_from_gdp(ERROR, delta),
        "one_run": lambda a, **o: a.epsilon_one_run(ERROR, delta, **o),
        "one_run_gaussian": lambda a, **o: a.epsilon_one_run_fdp(ERROR, delta, **o),
    }
    for name, bound in estimators.items():
        times = []
        for _ in range(request["calls"]):
            started = time.process_time()
            bounds[name] = float(bound(auditing.CanaryScoreAuditor(*pair)))
            times.append(time.process_time() - started)
        seconds[name] = statistics.median(times)
        if name != "gdp":
            auditor = auditing.CanaryScoreAuditor(*pair)
            bounds[f"{name}, one threshold"] = float(bound(auditor, threshold_strategy=one))
    thresholds = auditing.CanaryScoreAuditor(*pair)._thresholds.tolist()
    return {
        "bounds": bounds,
        "seconds": seconds,
        "thresholds": thresholds,
        "version": metadata.version("jax-privacy"),
    }


if __name__ == "__main__":
    main()
