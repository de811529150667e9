"""The memory requests of jobs with linear heads."""

from __future__ import annotations

from typing import Any

import pytest

from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study
from dpprobe.training.training_cost import estimate_memory_mb

FULL = {"head": "sgd", "batch_size": "full", "steps": 3}


def study_of(*methods: dict[str, Any], memory_mb: int = 1000) -> Study:
    return load_study(
        {
            "datasets": {"digits": {"source": "sklearn", "name": "digits"}},
            "backbones": {"vit": {"family": "timm", "model": "test_vit", "pretrained": False}},
            "methods": {f"m{number}": values for number, values in enumerate(methods)},
            "epsilons": [1],
            "delta": 1e-4,
            "features": {"memory_mb": memory_mb},
        }
    )


def test_a_job_needs_its_rows_in_float32_and_the_names_of_all_rows() -> None:
    """100 MB of float16 shards take 200 MB in float32, plus a reserve of 10%; names take 13 MB."""
    study = study_of(FULL)
    assert estimate_memory_mb(study, 0) == 2000
    assert estimate_memory_mb(study, 100) == pytest.approx(2000 + 220 + 13)
