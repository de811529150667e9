"""The memory that jobs of linear heads ask for."""

from __future__ import annotations

from typing import Any

import pytest

from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study
from dpprobe.training.training_cost import estimate_memory_mb

FULL = {"head": "sgd", "batch_size": "full", "steps": 3}
AUTO, WHITENED = {"head": "auto"}, {"head": "newton", "normalize": "whitened"}


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
    """Shards of 100 MB in float16 are 200 MB in float32, with 10% to spare; names take 13 MB."""
    study = study_of(FULL)
    assert estimate_memory_mb(study, 0) == 2000
    assert estimate_memory_mb(study, 100) == pytest.approx(2000 + 220 + 13)


def test_streamed_rows_need_the_limit_alone() -> None:
    study = study_of(FULL, memory_mb=100)
    assert estimate_memory_mb(study, 10_000) == pytest.approx(2000 + 100 + 1300)


@pytest.mark.parametrize("methods", [(AUTO,), (WHITENED,), (FULL, WHITENED), (AUTO, FULL)])
def test_whitening_needs_a_copy_of_the_rows(methods: tuple[dict[str, Any], ...]) -> None:
    study = study_of(*methods)
    assert estimate_memory_mb(study, 100) == pytest.approx(2000 + 2 * 220 + 13)
    assert estimate_memory_mb(study, 10_000) == pytest.approx(2000 + 2 * 1000 + 1300)
