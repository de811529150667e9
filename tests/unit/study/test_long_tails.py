"""The datasets whose long tails a study measures, and those that are refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dpprobe.errors import ConfigError
from dpprobe.study.long_tails import long_tail_datasets
from dpprobe.study.study import Study
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.support.small_study import STUDY

ONE_LABEL = {"source": "sklearn", "name": "digits"}


def _study(tmp_path: Path, long_tail: dict[str, Any] | None, *, only: str | None = None) -> Study:
    for number in range(50):
        (tmp_path / f"{number}.png").touch()
    lines = "".join(f"{number}.png,{number % 2},0\n" for number in range(50))
    (tmp_path / "rows.csv").write_text("image,one,two\n" + lines)
    several = {
        "source": "csv", "root": str(tmp_path), "train": "rows.csv", "label_columns": ["one", "two"]
    }  # fmt: skip
    datasets = {"digits": ONE_LABEL, "chest": several}
    chosen = {only: datasets[only]} if only else datasets
    methods = {"sgd": {"head": "sgd", "batch_size": 8, "epochs": 1}}
    return load_study(
        {**STUDY, "datasets": chosen, "methods": methods, "long_tail": long_tail, "delta": 1e-5}
    )


def test_all_datasets_of_one_label_are_measured(tmp_path: Path) -> None:
    assert long_tail_datasets(_study(tmp_path, {})) == ["digits"]
    assert long_tail_datasets(_study(tmp_path, {"datasets": ["digits"]})) == ["digits"]
    assert long_tail_datasets(_study(tmp_path, None)) == []


@pytest.mark.parametrize(
    ("options", "only", "message"),
    [
        ({"datasets": ["digit"]}, None, "datasets: digit is not in this study; write some of"),
        ({"datasets": ["digits", "digits"]}, None, "datasets: digits stands twice; remove one"),
        ({"datasets": ["chest"]}, None, "datasets: chest: its rows have several labels"),
        ({}, "chest", "the rows of all datasets have several labels"),
    ],
)
def test_long_tails_that_cannot_be_measured_are_refused(
    tmp_path: Path, options: dict[str, Any], only: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=f"config: long_tail: {re.escape(message)}"):
        check_study(_study(tmp_path, options, only=only))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clusters": [5, 5]}, "5 stands twice"),
        ({"clusters": [1]}, "clusters"),
        ({"clusters": []}, "clusters"),
        ({"memorisation": {"heads": 10}}, "heads"),
        ({"datasets": []}, "datasets"),
    ],
)
def test_options_out_of_range_are_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        _study(tmp_path, options)
