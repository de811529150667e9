"""Counts that would take days are refused when a study is planned, with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from dpprobe.errors import ConfigError
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.support.small_study import changed

TUNED = {"head": "tuned", "base": {"head": "sgd", "steps": 100_000_000}}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            "methods.sgd.steps",
            100_000_000,
            "methods.sgd.steps: 100,000,000: at most 1,000,000 .*pricing more",
        ),
        ("methods.sgd.epochs", 1e9, "methods.sgd.epochs: 1,000,000,000: at most 100,000 .*pass"),
        ("methods.sgd", TUNED, "methods.sgd.base.steps: 100,000,000: at most"),
        ("methods.sgd", {"head": "newton", "steps": 10**6}, "steps: 1,000,000: at most 100,000"),
        ("methods.ceiling.folds", 1000, "folds: 1,000: at most 100 .*a fit"),
        ("seeds", 100_000, "seeds: 100,000: at most 1,000 .*every head"),
        ("features", {"shards": 10**6}, "features.shards: 1,000,000: at most 10,000 .*one job"),
    ],
)
def test_a_count_beyond_reason_is_refused(path: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^config: .*{message}.*; write fewer$"):
        load_study(changed(path, value))


def test_epochs_that_come_to_too_many_steps_are_refused_where_rows_are_known() -> None:
    study = load_study(changed("methods.sgd", {"head": "sgd", "batch_size": 1, "epochs": 99_999}))
    with pytest.raises(ConfigError, match=r"gradients: steps 143,798,562: at most .*batch_size"):
        check_study(study)
    check_study(load_study(changed("methods.sgd", {"head": "sgd", "batch_size": 1, "epochs": 90})))
