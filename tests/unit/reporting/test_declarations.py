"""Figures of what privacy costs are planned where a study has what they compare."""

from __future__ import annotations

from typing import Any

import pytest

from dpprobe.exhibits.exhibit import Exhibit
from dpprobe.reporting.declarations import (
    COMPARISON,
    LOSS_BY_BACKBONE,
    OPTION,
    SHIFT,
    TIME_COST,
)
from dpprobe.results.study_files import StudyFiles
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study

DIGITS = {"source": "sklearn", "name": "digits"}
PIXELS = {"family": "pixels"}
CEILING = {"nonprivate": {"head": "nonprivate"}}
TWO_DATASETS = {"digits": DIGITS, "part": DIGITS | {"subsample": {"per_class": 20}}}


def make_study(**changes: Any) -> Study:
    values: dict[str, Any] = {
        "datasets": {"digits": DIGITS},
        "backbones": {"pixels": PIXELS},
        "methods": {"sgd": {"head": "sgd"}, **CEILING},
        "epsilons": [1, "inf"],
        "delta": 1e-4,
    }
    return load_study(values | changes)


def backbones(count: int) -> dict[str, Any]:
    return {f"pixels_{index}": PIXELS for index in range(count)}


def test_shift_takes_two_datasets_a_budget_and_a_ceiling() -> None:
    study = make_study(datasets=TWO_DATASETS)
    assert SHIFT.shown(study) == [{}]
    files = StudyFiles(study, results="r")
    assert SHIFT.needs["summaries"].paths(files, {}) == [
        "r/summary/digits.parquet", "r/summary/part.parquet",
    ]  # fmt: skip
    assert SHIFT.needs["zero_shot"].paths(files, {}) == []  # no backbone reads text
    for changes in (
        {"datasets": {"digits": DIGITS}},
        {"datasets": {"a": DIGITS, "b": DIGITS | {"delta": 1e-5}}},  # the same images
        {"methods": {"sgd": {"head": "sgd"}}},
        {"epsilons": ["inf"]},
    ):
        assert SHIFT.shown(make_study(**({"datasets": TWO_DATASETS} | changes))) == []


def test_losses_by_backbone_take_three_backbones_and_a_ceiling() -> None:
    assert LOSS_BY_BACKBONE.shown(make_study(backbones=backbones(3))) == [{"dataset": "digits"}]
    assert LOSS_BY_BACKBONE.shown(make_study(backbones=backbones(2))) == []
    sgd = {"sgd": {"head": "sgd"}}
    assert LOSS_BY_BACKBONE.shown(make_study(backbones=backbones(3), methods=sgd)) == []


def test_times_take_two_private_heads_whose_seconds_compare() -> None:
    assert TIME_COST.shown(make_study()) == []
    assert TIME_COST.shown(make_study(backbones=backbones(2))) == [{"dataset": "digits"}]
    sgd = {"head": "sgd"}
    two = {"sgd": sgd, "prototypes": {"head": "prototypes"}}
    assert TIME_COST.shown(make_study(methods=two)) == [{"dataset": "digits"}]
    assert TIME_COST.shown(make_study(methods=two, epsilons=["inf"])) == []
    search = {"learning_rate": [0.1, 1.0]}
    tuned = {"sgd": sgd, "tuned": {"head": "tuned", "base": sgd, "search": search, "trials": 3}}
    assert TIME_COST.shown(make_study(methods=tuned)) == []


@pytest.mark.parametrize("exhibit", [OPTION, COMPARISON, TIME_COST])
def test_figures_of_a_dataset_wait_for_the_cells_of_the_dataset(exhibit: Exhibit) -> None:
    files = StudyFiles(make_study(datasets=TWO_DATASETS), results="r")
    assert exhibit.needs["marks"].paths(files, {"dataset": "part"}) == [
        "r/cells/part/pixels/.eps-1.done", "r/cells/part/pixels/.eps-inf.done",
    ]  # fmt: skip
