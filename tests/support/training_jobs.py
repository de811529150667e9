"""Jobs that train small heads on stored features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpprobe.training.head_job import train_job
from dpprobe.training.plan_file import write_plans
from dpprobe.training.tasks import Job


def make_job(**changes: Any) -> Job:
    """Makes a job of two seeds at epsilon 4 on the dataset `toy`, its values changed as given."""
    values: dict[str, Any] = {
        "study": "unit",
        "private_datasets": ("toy",),
        "dataset": "toy",
        "backbone": "none",
        "epsilon": "4",
        "methods": {},
        "seeds": 2,
        "study_seed": 0,
        "delta": 1e-4,
        "accountant": "pld",
        "mode": "benchmark",
        "memory_mb": 1000,
    }
    return Job(**values | changes)


def plan_job(job: Job, n: int, plans: Path, cache: Path) -> Path:
    """Writes the plans of a job on n units; returns their file."""
    write_plans(job.methods, job.make_target(n), output=plans, cache=cache, seeds=job.seeds)
    return plans


def run_job(folder: Path, job: Job, plans: Path, **given: Any) -> None:
    """Trains a job on the splits in a folder, into its `cells`."""
    places: dict[str, Any] = {
        "train": folder / "train/manifest.json",
        "test": folder / "test/manifest.json",
        "cells": folder / "cells",
        "device": "cpu",
    }
    train_job(job, plans=plans, **places | given)


def watch_renames(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Returns a list of the files that are renamed from now on, by their new paths, in order."""
    renamed: list[Path] = []
    replace = Path.replace

    def watched(path: Path, target: Path) -> Path:
        renamed.append(Path(target))
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", watched)
    return renamed
