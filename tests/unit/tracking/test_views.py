"""Views of experiments have logged columns, an order, filters and charts."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Set
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from dpprobe.results.cell_record import read_cell
from dpprobe.tracking import runs, views
from dpprobe.tracking.baseline_runs import list_baseline_runs
from tests.support.baseline_records import write_zero_shot
from tests.support.cell_files import write_cell

EPSILONS = ("0.5", "8", "inf")
CURRENT = 'tags.current = "true"'


def _cells(root: Path, **kind: Any) -> tuple[list[runs.RunContents], list[runs.RunContents], Any]:
    """Returns runs of cells at three epsilons, their summary run, and the dataset's measure."""
    paths = [write_cell(root, epsilon=epsilon, **kind) for epsilon in EPSILONS]
    records = [(path, read_cell(path)) for path in paths]
    cells = [runs.cell_run(path, record, "s", {}, Mock()) for path, record in records]
    return cells, [runs.summary_run(records, "s", {}, Mock())], records[0][1].measure


def _made(experiment: views.ExperimentContents, others: Set[str] = frozenset()) -> dict[str, Any]:
    return {key: dict(view) for key, view in experiment.views(others).items()}


@pytest.mark.parametrize(
    ("kind", "headline"),
    [
        ({}, "accuracy"),
        ({"multi_label": True, "class_names": ("round", "e/ven", "absent")}, "auc"),
        ({"shares": [0.7, 0.1, 0.1, 0.1], "headline": "macro_accuracy"}, "macro_accuracy"),
    ],
    ids=["accuracy", "auc", "macro accuracy"],
)
def test_cells_open_at_the_epsilon_nearest_to_one(
    tmp_path: Path, kind: dict[str, Any], headline: str
) -> None:
    cells, _, measure = _cells(tmp_path, **kind)
    shown = _made(views.cells_experiment("digits", Path("r"), cells, [], measure))
    assert list(shown) == ["dpprobe", "dpprobe-private", "dpprobe-all"]
    logged = {name for run in cells for name, _, _ in run.metrics}
    for view in shown.values():
        columns = view["selectedColumns"]
        assert columns == view["columnOrder"]
        assert columns[0] == f"metrics.`test/{headline}`" == view["orderByKey"]
        assert columns[1:5] == [f"params.`{p}`" for p in ("method", "backbone", "epsilon", "seeds")]
        metrics = [name[9:-1] for name in columns if name.startswith("metrics")]
        assert len(metrics) == len(set(metrics))
        assert set(metrics) <= logged, "an empty column tells nothing"
        assert {"privacy/epsilon_realised", f"test/{headline}_rows_low"} <= set(metrics)
        assert view["orderByAsc"] is False
    first, private, every = shown.values()
    assert first["searchFilter"] == f'{CURRENT} and tags.epsilon = "0.5"'
    assert private["searchFilter"] == f'{CURRENT} and tags.private = "true"'
    assert every["searchFilter"] == CURRENT
    assert (first["name"], every["name"]) == ("cells at epsilon 0.5", "all cells by epsilon")
    assert private["name"] == "private cells by epsilon"
    assert "groupBy" not in first
    grouped = {"mode": "param", "groupByData": "epsilon"}
    for view in (private, every):
        assert view["groupBy"] == {"aggregateFunction": "max", "groupByKeys": [grouped]}


def test_baselines_have_a_view_and_are_reported(tmp_path: Path) -> None:
    cells, _, measure = _cells(tmp_path)
    baselines = list_baseline_runs(
        [write_zero_shot(tmp_path, accuracy=0.7)], [], study="s", shared_tags={}, source=Mock()
    )
    without = views.cells_experiment("digits", None, cells, [], measure)
    experiment = views.cells_experiment("digits", Path("r"), cells, baselines, measure)
    view = _made(experiment)["dpprobe-baselines"]
    assert view["searchFilter"] == f'{CURRENT} and tags.compared = "true"'
    assert view["name"] == "zero-shot, few-shot, and private cells at epsilon 0.5"
    (chart,) = view["compareRunCharts"]
    assert (chart["type"], chart["metricKey"]) == ("BAR", "test/accuracy")
    (section,) = view["compareRunSections"]
    assert (section["name"], section["uuid"]) == ("baselines", chart["metricSectionId"])
    assert "zero-shot" in experiment.note
    assert "zero-shot" not in without.note
    assert (experiment.location, without.location) == (Path("r/cells"), None)
    assert experiment.name == without.name == "digits"


def test_a_summary_has_a_column_and_a_chart_for_each_epsilon(tmp_path: Path) -> None:
    _, summaries, measure = _cells(tmp_path)
    experiment = views.summary_experiment("digits", Path("r"), summaries, measure)
    (view,) = _made(experiment, {"accuracy/eps_10", "auc/eps_9"}).values()
    names = [f"accuracy/eps_{epsilon}" for epsilon in ("0.5", "8", "10", "inf")]
    metrics = [f"metrics.`{name}`" for name in names]
    params = ["params.`method`", "params.`backbone`"]
    assert view["selectedColumns"] == [metrics[0], *params, *metrics[1:]]
    assert view["orderByKey"] == "metrics.`accuracy/eps_0.5`"
    charts = [(chart["type"], chart["metricKey"]) for chart in view["compareRunCharts"]]
    assert charts == [("LINE", "accuracy/by_100_eps"), *(("BAR", name) for name in names)]
    line, bar = view["compareRunCharts"][:2]
    assert (line["lineSmoothness"], line["useGlobalLineSmoothing"]) == (0, False)
    assert "lineSmoothness" not in bar
    assert (experiment.name, experiment.location) == ("digits/summary", Path("r/summary"))
    assert "100 x epsilon" in experiment.note
    bare = [replace(summaries[0], metrics=[("accuracy/eps_8", 0.5, 0)])]
    (view,) = _made(views.summary_experiment("digits", None, bare, measure)).values()
    assert [chart["type"] for chart in view["compareRunCharts"]] == ["BAR"], "there is no curve"


def test_releases_and_studies_have_a_view_each() -> None:
    (view,) = _made(views.releases_experiment(None)).values()
    assert view["orderByKey"] == view["selectedColumns"][0] == "metrics.`privacy/epsilon_realised`"
    assert {"params.`delta`", "metrics.`evaluation/auc`"} <= set(view["selectedColumns"])
    run: Any = Mock(metrics=[("a/best_private_eps_8", 0.5, 0), ("a/gap_eps_8", 0.5, 0)])
    studies = views.studies_experiment(Path("r"), run)
    (view,) = _made(studies, {"b/best_private_eps_1"}).values()
    params = ["params.`study`", "params.`datasets`", "params.`cells`"]
    assert view["selectedColumns"] == [
        "metrics.`a/best_private_eps_8`",
        *params,
        "metrics.`b/best_private_eps_1`",
    ]
    assert (studies.name, studies.location) == ("all studies", Path("r"))
    (view,) = _made(views.studies_experiment(None, Mock(metrics=[]))).values()
    assert view["selectedColumns"] == params


def test_a_view_is_written_as_mlflow_s_page_reads_it() -> None:
    view = {"selectedColumns": ["a"], "columnOrder": ["b"], views.NAME: "name"}
    text = views.changed_view(view, None)
    assert text is not None
    stored = json.loads(text)
    kind, _, packed = stored["state"].partition(";")
    assert kind == "deflate"
    state = json.loads(zlib.decompress(base64.b64decode(packed)))
    assert state == {"selectedColumns": ["a"], "columnOrder": ["b"]}
    assert stored["name"] == "name"
    assert stored["createdAt"] == stored["updatedAt"]


def test_a_view_is_written_where_it_changed() -> None:
    view = {"selectedColumns": ["a"], views.NAME: "name"}
    first = views.changed_view(view, None)
    assert first is not None
    assert views.changed_view(view, first) is None
    for present in ("", "[]", "{", "{}", first.replace("name", "title"), "3"):
        assert views.changed_view(view, present) is not None
    for other in (view | {views.NAME: "b"}, view | {"selectedColumns": ["b"]}):
        assert views.changed_view(other, first) is not None
    assert views.view_tag("k") == "mlflow.sharedViewState.k"
