"""Finds the steps of a scikit-learn pipeline that transform rows before the estimator."""

from __future__ import annotations

import sys
import traceback
from typing import Any

from sklearn.pipeline import Pipeline


def list_steps_before(estimator: Any) -> list[tuple[str, Any]]:
    """Lists the named steps that pipelines apply before the estimator that is being fitted.

    scikit-learn does not tell an estimator about earlier steps, so pipelines are found among the
    calling functions, inner ones first. Callers in other processes cannot be seen.
    """
    steps: list[tuple[str, Any]] = []
    within: dict[int, int] = {}
    for frame, _ in traceback.walk_stack(sys._getframe()):
        pipeline = frame.f_locals.get("self")
        if not isinstance(pipeline, Pipeline) or pipeline is estimator:
            continue
        if frame.f_code.co_name == "_fit":  # the pipeline is fitting an earlier step
            within[id(pipeline)] = frame.f_locals["step_idx"]
        elif frame.f_code.co_name.startswith("fit"):
            last = within.pop(id(pipeline), len(pipeline.steps) - 1)
            steps += pipeline.steps[:last]
    return steps
