"""A study's analyses list exactly their files, jobs and figures."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from dpprobe.analyses.analysis import Analysis, Cost, JobSize, Section
from dpprobe.analysis_registry import ANALYSES, load_analyses
from dpprobe.exhibits.exhibit import Exhibit, many
from dpprobe.results.study_files import StudyFiles
from dpprobe.study.study import Study
from tests.support.asking_studies import BACKBONES, METHODS

Ask = Callable[..., Study]
BY_NAME = dict(zip(ANALYSES, load_analyses(), strict=True))
EVERY = pytest.mark.parametrize("name", BY_NAME)
ASKED: dict[str, Any] = {
    "audit": {"membership": {}, "methods": ["sgd", "ceiling", "ours"]},
    "long_tail": {},
    "sites": {"splits": ["equal", "labels"]},
    "fairness": {},
    "group_gradients": {},
    "representation_law": {},
    "few_shot": {},
    "imbalance": {"datasets": ["digits"], "classes": ["3"], "fractions": [0.5]},
}
RARE = "digits_3_0p5"  # the copy with a rare class
DATASETS = ("digits", "chest", "skin", RARE)
SINGLE = ("digits", RARE)  # with one label per image
NETWORKS = ("clip", "net")
WITH_TEXT = ("clip",)
MEASURED = {
    "audit": (DATASETS, BACKBONES),
    "long_tail": (SINGLE, BACKBONES),
    "representation_law": (SINGLE, NETWORKS),
    "fairness": (DATASETS, BACKBONES),
    "group_gradients": (DATASETS, BACKBONES),
    "imbalance": (("digits",), BACKBONES),
    "tsne": (DATASETS, BACKBONES),
    "sites": (SINGLE, BACKBONES),
    "zero_shot": (DATASETS, WITH_TEXT),
    "few_shot": (DATASETS, WITH_TEXT),
}
ONE_EACH = [{"dataset": dataset} for dataset in DATASETS]
# The wildcards of each exhibit's jobs.
PLACES: dict[str, list[dict[str, str]]] = {
    "plot_audit": ONE_EACH,
    "plot_membership": [
        {"dataset": d, "backbone": b, "method": m, "epsilon": e}
        for d, b, e, m in product(DATASETS, BACKBONES, ("1", "10"), ("sgd", "ours"))
    ],
    "write_long_tail_tables": [{}],
    "plot_long_tail": [{"dataset": dataset} for dataset in SINGLE],
    "plot_law": [{"dataset": d, "backbone": b} for d, b in product(SINGLE, NETWORKS)],
    "write_law_tables": [{"dataset": dataset} for dataset in SINGLE],
    "plot_fairness": ONE_EACH,
    "write_fairness_table": ONE_EACH,
    "write_group_gradients": ONE_EACH,
    "plot_group_gradients": [
        {"dataset": d, "backbone": b, "method": m}
        for d, b, m in product(DATASETS, BACKBONES, ("sgd", "auto"))
    ],
    "plot_imbalance": [{"dataset": "digits", "backbone": backbone} for backbone in BACKBONES],
    "write_imbalance_tables": [{"dataset": "digits"}],
    "plot_tsne_grid": [{}],
    "plot_dataset_tsne": ONE_EACH,
    "plot_tsne": [{"dataset": d, "backbone": b} for d, b in product(DATASETS, BACKBONES)],
    "write_sites_table": [{"dataset": dataset} for dataset in SINGLE],
    "plot_sites": [{"dataset": d, "backbone": b} for d, b in product(SINGLE, BACKBONES)],
}


@pytest.fixture
def everything(ask: Ask) -> StudyFiles:
    return StudyFiles(ask(**ASKED), results="r")


@EVERY
def test_a_study_measures_its_datasets_on_its_backbones(name: str, everything: StudyFiles) -> None:
    analysis, study = BY_NAME[name], everything.study
    datasets, backbones = MEASURED[name]
    assert (tuple(analysis.datasets(study)), tuple(analysis.backbones(study))) == (
        datasets,
        tuple(backbones),
    )
    if analysis.measurement is None:
        return
    outputs = analysis.measurement.outputs.values()
    listed = [
        f"r/{path.format(dataset=d, backbone=b)}"
        for d in datasets
        for b in backbones
        for path in outputs
    ]
    assert analysis.list_files(study, "r") == listed
    first = len(listed) // len(datasets)
    assert analysis.list_files(study, "r", datasets[0]) == listed[:first]
    assert analysis.list_files(study, "r", "gone") == []


@pytest.mark.parametrize("name", [name for name, each in BY_NAME.items() if each.measurement])
def test_a_job_needs_the_features_or_cells_only_of_its_place(
    name: str, everything: StudyFiles
) -> None:
    analysis = BY_NAME[name]
    assert analysis.measurement is not None
    datasets, backbones = MEASURED[name]
    for dataset, backbone in product(datasets, backbones):
        place = {"dataset": dataset, "backbone": backbone}
        for need in analysis.measurement.needs.values():
            paths = need.paths(everything, place)
            assert paths
            assert len(paths) == 1 or need.many
            for path in paths:
                assert re.match(rf"r/(features|cells)/{dataset}/{backbone}/", path), path


@EVERY
def test_exhibits_are_made_where_there_are_records_and_from_all_of_them(
    name: str, everything: StudyFiles
) -> None:
    analysis, study = BY_NAME[name], everything.study
    for exhibit in analysis.exhibits:
        assert [dict(place) for place in exhibit.shown(study)] == PLACES[exhibit.name]
        for place in exhibit.shown(study):
            for need in exhibit.needs.values():
                paths = need.paths(everything, place)
                _check_paths(paths, place, name)
                assert len(paths) == len(set(paths)) > 0
    shown = {exhibit.name for each in BY_NAME.values() for exhibit in each.exhibits}
    assert shown == set(PLACES)


def _check_paths(paths: Any, place: Any, name: str) -> None:
    datasets, backbones = MEASURED[name]
    found = set()
    for path in paths:
        parts = path.split("/")
        dataset = next(each for each in DATASETS if each in (*parts, parts[-1].split(".")[0]))
        if parts[1] == "summary":
            continue
        found.add((dataset, next(b for b in BACKBONES if b in (*parts, parts[-1].split(".")[0]))))
    wanted = {
        (d, b)
        for d, b in product(datasets, backbones)
        if place.get("dataset", d) == d and place.get("backbone", b) == b
    }
    assert found in (wanted, set()), f"{place}: of {found}, not of {wanted}"


@EVERY
def test_a_section_has_the_records_of_all_datasets(name: str, everything: StudyFiles) -> None:
    section = BY_NAME[name].section
    if section is None:
        return
    records = section.needs[section.records].paths(everything, {})
    datasets, backbones = MEASURED[name]
    assert len(records) == len(set(records))
    places = {
        (d, b) for d, b in product(datasets, backbones) for path in records if f"/{d}/{b}" in path
    }
    assert places == set(product(datasets, backbones))
    for files in (need.paths(everything, {}) for need in section.needs.values()):
        assert all(path.startswith("r/") for path in files)


@EVERY
def test_an_analysis_that_a_study_does_not_request_lists_no_exhibits(name: str, ask: Ask) -> None:
    files = StudyFiles(ask(few_shot={"backbones": []}), results="r")
    analysis = BY_NAME[name]
    always = name in ("tsne", "zero_shot", "few_shot")
    assert always or not analysis.datasets(files.study)
    for exhibit in analysis.exhibits if not always else ():
        assert exhibit.shown(files.study) == []
    if analysis.section:
        assert [need.paths(files, {}) for need in analysis.section.needs.values()] == [[]] * len(
            analysis.section.needs
        )


def test_chosen_datasets_and_backbones_keep_the_order_of_the_study(ask: Ask) -> None:
    study = ask(
        long_tail={"datasets": ["digits"]},
        sites={"backbones": ["net", "clip"], "datasets": ["digits"]},
        few_shot={"backbones": ["net"]},
    )
    assert BY_NAME["long_tail"].datasets(study) == ["digits"]
    assert BY_NAME["sites"].backbones(study) == ["clip", "net"]
    assert [*BY_NAME["few_shot"].backbones(study)] == ["net"]
    assert BY_NAME["sites"].list_unpriced(study, "digits") == [
        "clip/simulated sites",
        "net/simulated sites",
    ]
    assert BY_NAME["sites"].list_unpriced(study, "skin") == []
    gradients = ask(group_gradients={"methods": ["sgd"]})
    assert BY_NAME["group_gradients"].list_unpriced(gradients, "chest") == [
        f"{name}/gradients of subgroups" for name in BACKBONES
    ]
    assert BY_NAME["zero_shot"].list_unpriced(study, "digits") == [], "reads no training image"


def _cost(analysis: Analysis, study: Study, mb: float, train: int, test: int) -> Cost:
    """Returns the cost of an analysis if each file has `mb` megabytes."""
    declared = analysis.measurement
    assert declared is not None
    place = {"dataset": "digits", "backbone": analysis.backbones(study)[0]}
    files = StudyFiles(study, results="r")
    size = JobSize(
        inputs={name: need.paths(files, place) for name, need in declared.needs.items()},
        measure_mb=lambda paths: mb * len(list(paths)),
        count_rows=lambda: (train, test),
    )
    return declared.cost(study, place, size)


def test_memory_and_time_follow_what_a_job_holds_and_does(ask: Ask) -> None:
    study = ask(**ASKED)
    costs = {
        name: _cost(each, study, 5000.0, 60_000, 12_000)
        for name, each in BY_NAME.items()
        if each.measurement
    }
    # 4 float64 copies of 50,000 out of 60,000 float16 rows, and three matrices of 10,000 rows
    held = 4 * 4 * 5000 * 50_000 / 60_000 + 3 * 8 * 10_000**2 / 1e6
    assert costs["long_tail"].memory_mb == pytest.approx(2000 + held)
    assert costs["long_tail"].minutes == pytest.approx(20 + 25 + 0.03 * 200 * 100 / 60)
    # two seeds, two budgets, two splits with 2 + 5 + 10 sites
    assert costs["sites"].minutes == pytest.approx(20 + 0.1 * 2 * 2 * 2 * 17)
    assert costs["sites"].memory_mb == pytest.approx(3000 + 6 * 2 * 5000), "both splits' shards"
    assert costs["tsne"] == (2000 + 4 * 2 * 5000, 60)
    assert costs["zero_shot"].memory_mb == 2000 + 2 * 3 * 5000
    # 4 private methods at 2 budgets and 5 at inf, two seeds each; half a minute per 25,000 rows
    heads = 2 * (4 * 2 + 5)
    assert costs["fairness"].minutes == pytest.approx(30 + heads * (0.5 + 0.5 * 12_000 / 25_000))
    # sgd and auto at two budgets and at inf, two seeds each
    assert costs["group_gradients"] == (3000 + 3 * 2.2 * 5000, 20 + 2 * 2 * 3 * 5)
    unscored = ask(long_tail={"memorisation": None, "rows": 1000})
    few = _cost(BY_NAME["long_tail"], unscored, 6.0, 60_000, 10)
    assert few.memory_mb == pytest.approx(2000 + 4 * 4 * 6 / 60)
    assert few.minutes == pytest.approx(20 + 0.5)
    small = _cost(BY_NAME["long_tail"], study, 1.0, 100, 10)
    assert small.memory_mb == pytest.approx(2000 + 4 * 4 + 24 * 100**2 / 1e6), "all 100 rows"


def test_a_size_sums_the_files_of_some_needs_or_of_all() -> None:
    size = JobSize(
        inputs={"a": ["1", "2"], "b": ["3"]},
        measure_mb=lambda paths: sum(map(float, paths)),
        count_rows=lambda: (0, 0),
    )
    assert (size.megabytes(), size.megabytes("b"), size.megabytes("b", "a")) == (6, 3, 6)


def test_records_are_the_first_need_of_a_section() -> None:
    needs = {"first": many(lambda *_: []), "second": many(lambda *_: [])}
    figures = {"law_a_": "{} of a", "law_": "{}", "law_b": "whole"}
    section = Section(anchor="a", title="A", template="t", make="m", needs=needs, figures=figures)
    assert section.records == "first"
    assert section.title_figure("law_a_b") == "b of a"
    assert section.title_figure("law_b") == "whole"
    assert section.title_figure("law_bc") == "bc"


def test_places_of_laws_need_a_network(ask: Ask) -> None:
    study = ask(backbones={"pixels": BACKBONES["pixels"]}, representation_law={}, methods=METHODS)
    exhibits: tuple[Exhibit, ...] = BY_NAME["representation_law"].exhibits
    assert [exhibit.shown(study) for exhibit in exhibits] == [[], []]
