"""Figures and tables are planned if a study has the data that they compare."""

from __future__ import annotations

from typing import Any

from dpprobe.reporting.registry import EXHIBITS
from dpprobe.results.study_files import StudyFiles
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study

BY_NAME = {exhibit.name: exhibit for exhibit in EXHIBITS}
OPTION = BY_NAME["plot_option"]
TIME_COST = BY_NAME["plot_time_cost"]
DIGITS = {"source": "sklearn", "name": "digits"}
PIXELS = {"family": "pixels"}
CEILING = {"nonprivate": {"head": "nonprivate"}}


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


def test_an_option_has_a_figure_where_methods_differ_only_in_it() -> None:
    scaled = {"head": "sgd", "init": "scaled"}
    methods = {
        f"sgd_{size}_{scale:.0f}": scaled | {"batch_size": size, "init_scale": scale}
        for size in (16, 64)
        for scale in (0.1, 1.0)
    }
    study = make_study(methods=methods | {"momentum": {"head": "momentum"}} | CEILING)
    options = [place["option"] for place in OPTION.shown(study)]
    assert options == ["batch_size", "init_scale"]
    files = StudyFiles(study, results="r")
    records = [
        *(f"r/cells/digits/pixels/{name}/eps-1/metrics.json" for name in [*methods, "momentum"]),
        *(f"r/cells/digits/pixels/{name}/eps-inf/metrics.json" for name in study.methods),
    ]
    assert OPTION.needs["records"].paths(files, {"dataset": "digits"}) == records
    assert not OPTION.needs["records"].read
    assert OPTION.shown(make_study()) == []
    both = make_study(methods={"a": {"head": "momentum"}, "b": {"head": "adam"}})
    assert [place["option"] for place in OPTION.shown(both)] == ["optimiser"]
