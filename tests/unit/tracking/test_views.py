"""Ready-made views: the columns that are there, in the dataset's metric, for all studies."""

from __future__ import annotations

import base64
import json
import zlib

import pytest

from dpprobe.results.cell_record import ACCURACY, Measure
from dpprobe.results.summary import summarise_cells
from dpprobe.tracking.runs import BEST, RunContents
from dpprobe.tracking.views import (
    STUDY_COLUMNS,
    best_columns,
    cells_experiment,
    changed_view,
    nearest_to_one,
    summary_experiment,
)
from tests.support.cell_files import write_study
from tests.support.tracked_study import Study


def test_the_ready_made_view_names_logged_columns(study: Study) -> None:
    study.ingest()
    for name in ("digits", "digits/summary"):
        view = study.view(name)
        runs = study.runs(name).values()
        present = {f"metrics.`{key}`" for run in runs for key in run.data.metrics}
        present |= {f"params.`{key}`" for run in runs for key in run.data.params}
        assert set(view["selectedColumns"]) <= present
        assert view["orderByKey"] in present
        assert view["orderByAsc"] is False, "the best result stands first"
        view = study.view(name, "dpprobe-all" if name == "digits" else "dpprobe")
        assert view["searchFilter"] == 'tags.current = "true"'
        filtered = study.all_runs(name, filter_string=view["searchFilter"])
        assert len(filtered) == len(study.runs(name))


def test_the_page_of_cells_opens_on_the_epsilon_nearest_to_one(study: Study) -> None:
    study.ingest()
    view = study.view("digits")
    shown = study.all_runs(filter_string=view["searchFilter"])
    # of 0.5 and 2, as far from 1, the smaller
    assert {run.data.params["epsilon"] for run in shown} == {"0.5"}
    keys = {key for key, run in study.runs().items() if run.data.params["epsilon"] == "0.5"}
    assert {run.data.tags["result_key"] for run in shown} == keys
    assert "groupBy" not in view
    for key in ("dpprobe-private", "dpprobe-all"):
        group = study.view("digits", key)["groupBy"]
        assert group["groupByKeys"] == [{"mode": "param", "groupByData": "epsilon"}]


@pytest.mark.parametrize(
    ("epsilons", "nearest"),
    [(("inf", "8", "0.1"), "8"), (("inf", "10", "0.1", "10"), "0.1"), (("inf",), "inf")],
)
def test_the_finite_epsilon_nearest_to_one_is_taken(
    epsilons: tuple[str, ...], nearest: str
) -> None:
    assert nearest_to_one(epsilons) == nearest


def test_where_the_metric_is_auc_it_is_the_first_column_and_chart() -> None:
    measure = Measure(headline="auc", multi_label=True, labels=3, num_classes=3)
    cell = contents({"method": "m" * 40, "backbone": "b" * 40, "epsilon": "1"}, ["test/auc"])
    (view, *_) = cells_experiment("scans", None, [cell], [], measure).views(set()).values()
    assert view["columnOrder"][0] == view["orderByKey"] == "metrics.`test/auc`"
    summary = contents({}, ["auc/eps_10", "auc/eps_2", "auc/by_100_eps"])
    (view,) = summary_experiment("scans", None, [summary], measure).views(set()).values()
    charts = [chart["metricKey"] for chart in view["compareRunCharts"]]
    assert charts == ["auc/by_100_eps", "auc/eps_2", "auc/eps_10"]


def test_a_view_has_a_name_that_tells_its_epsilon_and_no_key_that_mlflow_does_not_know() -> None:
    cell = contents({"epsilon": "0.5"}, ["test/accuracy"])
    (view, *_) = cells_experiment("lesions", None, [cell], [], ACCURACY).views(set()).values()
    tag = changed_view(view, None)
    assert tag is not None
    assert json.loads(tag)["name"] == "cells at epsilon 0.5"
    assert changed_view(view, tag) is None
    renamed = {**view, "name": "another"}
    assert changed_view(renamed, tag) is not None
    packed = base64.b64decode(json.loads(tag)["state"].removeprefix("deflate;"))
    assert "name" not in json.loads(zlib.decompress(packed))


@pytest.mark.parametrize("present", ["", "no json", "[]", "{}", '{"name": 1}'])
def test_a_view_that_somebody_spoilt_is_written_again(present: str) -> None:
    assert changed_view({"name": "cells", "groupBy": None}, present) is not None


def contents(params: dict[str, str], metrics: list[str]) -> RunContents:
    """Makes a run of these params and metrics."""
    return RunContents(
        key="", content_hash="", name="", note="", params=params, tags={}, artifacts=[],
        metrics=[(name, 0.5, 0) for name in metrics],
    )  # fmt: skip


def test_the_views_show_the_metric_of_the_dataset(study: Study) -> None:
    receipt = study.ingest()
    for key in ("dpprobe", "dpprobe-private", "dpprobe-all"):
        assert study.view("digits", key)["columnOrder"][0] == "metrics.`test/accuracy`"
    assert study.view("digits/summary")["columnOrder"][0] == "metrics.`accuracy/eps_0.5`"
    private = study.view("digits", "dpprobe-private")["searchFilter"]
    assert private == 'tags.current = "true" and tags.private = "true"'
    pages = receipt["pages"]
    assert pages["private"].endswith("viewStateShareKey=dpprobe-private")
    assert pages["all"].endswith("viewStateShareKey=dpprobe-all")
    assert pages["charts"].endswith("compareRunsMode=CHART")
    view = study.view("digits")
    assert [name for name in view["selectedColumns"] if "test/" in name] == [
        "metrics.`test/accuracy`",
        "metrics.`test/accuracy_rows_low`", "metrics.`test/accuracy_rows_high`",
        "metrics.`test/accuracy_std`",
        "metrics.`test/macro_accuracy`", "metrics.`test/ece`",
    ]  # fmt: skip
    assert not [name for run in study.runs().values() for name in run.data.metrics if "auc" in name]


def test_the_view_of_all_studies_has_columns_for_each(study: Study) -> None:
    study.ingest_whole()
    other = write_study(study.root / "other", dataset="letters", epsilons=("1", "4"))
    summary = study.root / "letters.parquet"
    summarise_cells(other, summary, study="second")
    study.ingest_whole(
        name="second", summaries=[summary], dataset_infos={"letters": study.info},
        receipt=study.root / "second.json",
    )  # fmt: skip
    best = [name for name in study.view("all studies")["selectedColumns"] if "best" in name]
    assert best == [
        f"metrics.`{dataset}/best_private_eps_{epsilon}`"
        for dataset, epsilons in (("digits", ("0.5", "2")), ("letters", ("1", "4")))
        for epsilon in epsilons
    ]


def test_where_room_is_short_every_dataset_has_its_result_nearest_to_one() -> None:
    names = [f"d{d}{BEST}{e}" for d in range(7) for e in ("0.01", "0.5", "1", "8", "10")]
    chosen = best_columns([*names, "d0/gap_eps_1"])
    assert len(chosen) == STUDY_COLUMNS
    assert {f"d{d}{BEST}1" for d in range(7)} <= set(chosen)
    assert {name.partition(BEST)[2] for name in chosen} == {"0.5", "1"}
    assert chosen[:2] == [f"d0{BEST}0.5", f"d0{BEST}1"]


def test_of_two_epsilons_as_far_from_one_the_view_always_takes_the_same() -> None:
    names = {f"d{d}{BEST}{e}" for d in range(STUDY_COLUMNS + 1) for e in "25"}
    names |= {name.replace("_5", "_0.5") for name in names}
    chosen = best_columns(names)
    assert len(chosen) == STUDY_COLUMNS + 1
    assert {name.partition(BEST)[2] for name in chosen} == {"0.5"}


def test_every_line_of_a_chart_has_a_colour_of_its_own(study: Study) -> None:
    study.ingest()
    runs = [run for run in study.runs("digits/summary").values() if "method" in run.data.params]
    colours = [run.data.tags["mlflow.runColor"] for run in runs]
    assert len(set(colours)) == len(colours) > 2


def test_cells_of_two_studies_share_a_view(study: Study) -> None:
    study.ingest()
    columns = study.view("digits")["selectedColumns"]
    assert "metrics.`privacy/noise_multiplier`" in columns
    other = write_study(study.root / "other", methods=["nonprivate"], epsilons=["inf"])
    study.ingest(study="second", metrics_files=other, receipt=study.root / "second.json")
    assert study.view("digits")["selectedColumns"] == columns
    other = write_study(study.root / "third", methods=["sgd"], epsilons=("8",))
    study.ingest(study="third", metrics_files=other, receipt=study.root / "third.json")
    columns = study.view("digits/summary")["selectedColumns"]
    assert [name for name in columns if "/eps_" in name] == [
        f"metrics.`accuracy/eps_{epsilon}`" for epsilon in ("0.5", "2", "8", "inf")
    ]
