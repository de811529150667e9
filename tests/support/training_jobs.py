"""Jobs that train small heads on stored features."""

from __future__ import annotations

from typing import Any

from dpprobe.training.tasks import Job


def make_job(**changes: Any) -> Job:
    """Makes a job of two seeds at epsilon 4 on the dataset `toy`, its values changed as given."""
    values: dict[str, Any] = {
        "study": "unit", "private_datasets": ("toy",), "dataset": "toy", "backbone": "none",
        "epsilon": "4", "methods": {}, "seeds": 2, "study_seed": 0, "delta": 1e-4,
        "accountant": "pld", "mode": "benchmark", "memory_mb": 1000,
    }  # fmt: skip
    return Job(**values | changes)
