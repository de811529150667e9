"""Figures and tables are planned where a study has what they compare."""

from __future__ import annotations

from typing import Any

from dpprobe.exhibits.exhibit import Exhibit
from dpprobe.exhibits.published import published_digest
from dpprobe.reporting.registry import EXHIBITS
from dpprobe.results.study_files import StudyFiles
from dpprobe.study.published_names import published_names
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study
from dpprobe.versions import VERSIONS

BY_NAME = {exhibit.name: exhibit for exhibit in EXHIBITS}
ACCURACY = BY_NAME["plot_accuracy"]
ACCURACY_TABLE = BY_NAME["write_tables"]
COMPARISON = BY_NAME["plot_comparison"]
DATASET_TABLE = BY_NAME["write_dataset_table"]
DATASETS = BY_NAME["plot_datasets"]
LOSS_BY_BACKBONE = BY_NAME["plot_loss_by_backbone"]
OPTION = BY_NAME["plot_option"]
PAPERS = BY_NAME["write_paper_tables"]
SHIFT = BY_NAME["plot_distribution_shift"]
TIME_COST = BY_NAME["plot_time_cost"]
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
        "r/summary/digits.parquet",
        "r/summary/part.parquet",
    ]
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


def _params(exhibit: Exhibit, study: Study, place: dict[str, str]) -> dict[str, Any]:
    """Returns the params of a job, as its rule computes them."""
    return {
        name: value(study, place) if callable(value) else value
        for name, value in exhibit.job_params.items()
    }


def test_every_dataset_has_its_figure_and_table_and_all_have_one() -> None:
    study = make_study(datasets=TWO_DATASETS)
    files = StudyFiles(study, results="r")
    places = [{"dataset": "digits"}, {"dataset": "part"}]
    for exhibit in (ACCURACY, DATASET_TABLE):
        assert exhibit.shown(study) == places
    summary = ["r/summary/part.parquet"]
    assert ACCURACY.needs["summary"].paths(files, places[1]) == summary
    assert DATASET_TABLE.needs["summaries"].paths(files, places[1]) == summary
    assert len(ACCURACY_TABLE.needs["summaries"].paths(files, {})) == 2
    assert ACCURACY_TABLE.list_files(study, "r", [{}]) == [
        "r/tables/accuracy.csv",
        "r/tables/accuracy.md",
    ]
    params = _params(ACCURACY, study, places[1])
    name = published_names(study)["part"]
    version = VERSIONS["figures"]
    assert params == {"name": name, "published": published_digest(), "version": version}


def test_an_option_has_a_figure_where_methods_differ_in_it_alone() -> None:
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


VIT = {"family": "timm", "model": "vit_tiny_patch16_224", "pretrained": False}
SIZED = {f"v{size}": VIT | {"preprocessing": {"size": size}} for size in (224, 192)}


def test_backbones_are_compared_by_model_and_those_of_two_sizes_by_size() -> None:
    def figures(study: Study) -> list[str]:
        return [place["figure"] for place in COMPARISON.shown(study)]

    assert figures(make_study()) == []
    assert figures(make_study(backbones=backbones(2))) == ["by_backbone"]
    study = make_study(backbones=SIZED)
    assert figures(study) == ["by_backbone", "by_resolution"]
    files = StudyFiles(study, results="r")
    manifests = COMPARISON.needs["manifests"]
    place = {"dataset": "digits", "figure": "by_resolution"}
    assert manifests.paths(files, place) == [
        f"r/features/digits/{name}/train/manifest.json" for name in ("v224", "v192")
    ]
    assert manifests.paths(files, place | {"figure": "by_backbone"}) == []
    params = _params(COMPARISON, study, place)
    assert list(params["backbones"]) == ["v224", "v192"]
    assert params["base"] is None


def test_datasets_and_deltas_are_compared_by_their_cells_alone() -> None:
    deltas = {"a": DIGITS, "b": DIGITS | {"delta": 1e-5}, "part": TWO_DATASETS["part"]}
    study = make_study(datasets=deltas)
    files = StudyFiles(study, results="r")
    assert [place["figure"] for place in DATASETS.shown(study)] == ["datasets", "deltas"]

    def compared(figure: str) -> set[str]:
        paths = DATASETS.needs["metrics"].paths(files, {"figure": figure})
        assert all(path.endswith("metrics.json") for path in paths)
        return {path.split("/")[2] for path in paths}

    assert compared("deltas") == {"a", "b"}
    assert compared("datasets") == {"a", "part"}, "equal images once"
    groups = [list(group) for group in _params(DATASETS, study, {})["groups"]]
    assert groups == [["a", "b"]]
    assert DATASETS.shown(make_study()) == []


def test_the_papers_tables_are_of_studies_with_their_datasets() -> None:
    study = make_study(datasets={"mine": DIGITS}, papers={"datasets": {"mine": "cifar10"}})
    assert PAPERS.shown(study) == [{}]
    assert PAPERS.shown(make_study()) == []
    files = StudyFiles(study, results="r")
    cells = PAPERS.needs["metrics"].paths(files, {})
    assert "r/cells/mine/pixels/sgd/eps-1/metrics.json" in cells
    written = PAPERS.list_files(study, "r", [{}])
    assert written[-1] == "r/tables/papers/references.bib"
    assert "r/tables/papers/foundation_features_table2.tex" in written
    params = _params(PAPERS, study, {})
    assert params["names"] == {"mine": "cifar10"}
    assert params["version"] == VERSIONS["papers"]
    assert params["papers"]["datasets"] == {"mine": "cifar10"}


def test_a_network_s_times_are_not_compared() -> None:
    methods = {"sgd": {"head": "sgd"}, "net": {"head": "fine_tune", "tune": "all"}}
    study = make_study(backbones={"vit": VIT}, methods=methods | CEILING)
    assert TIME_COST.shown(study) == []
