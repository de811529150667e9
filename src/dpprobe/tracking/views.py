"""Describes MLflow experiments and their views: columns, order, filter, groups and charts.

Without a view, MLflow's table shows neither params nor metrics until a person selects columns. A
view has the keys of the page's state in MLflow 3.17, without the assistant's panel.
"""

from __future__ import annotations

import base64
import json
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpprobe.privacy.limits import INFINITE
from dpprobe.privacy.risk import budget_order
from dpprobe.results.best_private import from_one
from dpprobe.results.cell_record import Measure
from dpprobe.tracking.runs import AGAINST_EPSILON, BEST, CURVES, RunContents

VIEW_KEY = "dpprobe"  # key of the default view of an experiment's page
PRIVATE_VIEW = "dpprobe-private"  # key of the view of private cells at all epsilons
ALL_VIEW = "dpprobe-all"  # key of the view of all cells
BASELINES_VIEW = "dpprobe-baselines"  # key of the view of baselines and comparable cells
STUDIES = "all studies"  # the experiment of all studies; dataset names have no space
RELEASES = "all releases"  # the experiment of releases
STUDY_COLUMNS = 12  # number of columns in the view of all studies
CURRENT = "current"  # tag: "true" while the study names the result, else "false"
COMPARED = "compared"  # tag: "true" for baselines and comparable cells
NAME = "name"  # a view's title in the menu of the page; not a key of the page's state
CHART_COLUMNS = 2  # MLflow's default of 3 cuts the epsilon from titles on a page of 1,600 pixels
RUNS_SHOWN = 20  # number of runs in charts, until a person selects more


@dataclass(frozen=True, kw_only=True)
class ExperimentContents:
    """The intended contents of an experiment.

    Attributes:
      location: the folder of the experiment's artifacts; None if a server chooses the folder.
      views: returns the views by key, given the metrics of other studies' runs in the experiment.
    """

    name: str
    location: Path | None
    note: str
    views: Callable[[Set[str]], Mapping[str, Mapping[str, Any]]]


def cells_experiment(
    dataset: str,
    location: Path | None,
    cells: Sequence[RunContents],
    baselines: Sequence[RunContents],
    measure: Measure,
) -> ExperimentContents:
    """Describes the experiment of a dataset's cells and baselines.

    The page first shows the cells at the epsilon nearest to 1, so that accuracies are comparable.
    """
    headline = f"test/{measure.headline}"
    others_shown = [f"test/{name}" for name in (*CURVES[measure.headline][1:], "auc")]
    columns = [
        headline,
        f"{headline}_rows_low",
        f"{headline}_rows_high",
        f"{headline}_std",
        *dict.fromkeys(name for name in others_shown if name != headline),
        "test/ece",
        "privacy/epsilon_realised",
        "privacy/noise_multiplier",
        "audit/epsilon_lower",
        "attack/auc",
    ]
    params = ["method", "backbone", "epsilon", "seeds"]
    epsilon = nearest_to_one(run.params["epsilon"] for run in cells)

    def make_views(other_metrics: Set[str]) -> dict[str, dict[str, Any]]:
        logged = _logged_metrics([*cells, *baselines]) | other_metrics
        shown = [name for name in columns if name in logged]
        view = _make_view(params, shown, headline)
        at_epsilon = f'{view["searchFilter"]} and tags.epsilon = "{epsilon}"'
        private = f'{view["searchFilter"]} and tags.private = "true"'
        # a group's row in the table shows the maximum of each metric
        keys = [{"mode": "param", "groupByData": "epsilon"}]
        grouped = view | {"groupBy": {"aggregateFunction": "max", "groupByKeys": keys}}
        views = {
            VIEW_KEY: view | {NAME: f"cells at epsilon {epsilon}", "searchFilter": at_epsilon},
            PRIVATE_VIEW: grouped | {NAME: "private cells by epsilon", "searchFilter": private},
            ALL_VIEW: grouped | {NAME: "all cells by epsilon"},
        }
        if baselines:
            charts = _make_charts("baselines", [("BAR", headline)])
            views[BASELINES_VIEW] = (view | charts) | {
                NAME: f"zero-shot, few-shot, and private cells at epsilon {epsilon}",
                "searchFilter": f'{view["searchFilter"]} and tags.{COMPARED} = "true"',
            }
        return views

    return ExperimentContents(
        name=dataset,
        location=location / "cells" if location else None,
        note=f"Cells of {dataset}: one run per backbone, method and epsilon, all seeds together."
        + (" The menu of views has zero-shot and few-shot results." if baselines else ""),
        views=make_views,
    )


def summary_experiment(
    dataset: str, location: Path | None, summaries: Sequence[RunContents], measure: Measure
) -> ExperimentContents:
    prefix = f"{measure.headline}/eps_"

    def make_views(other_metrics: Set[str]) -> dict[str, dict[str, Any]]:
        logged = _logged_metrics(summaries) | other_metrics
        columns = sorted(
            (name for name in logged if name.startswith(prefix)),
            key=lambda name: budget_order(name.removeprefix(prefix)),
        )
        order = prefix + nearest_to_one(name.removeprefix(prefix) for name in columns)
        view = _make_view(["method", "backbone"], columns, order)
        curve = f"{measure.headline}/{AGAINST_EPSILON}"
        kinds = [("LINE", curve)] if curve in logged else []
        charts = _make_charts(measure.headline, [*kinds, *(("BAR", name) for name in columns)])
        return {VIEW_KEY: view | charts | {NAME: "every method, by epsilon"}}

    return ExperimentContents(
        name=f"{dataset}/summary",
        location=location / "summary" if location else None,
        note=(
            f"Summary of {dataset}: one run per backbone and method, {measure.title} at each "
            f"epsilon; steps of curves are 100 x epsilon. Run {dataset}, Artifacts, has t-SNE."
        ),
        views=make_views,
    )


def studies_experiment(location: Path | None, run: RunContents) -> ExperimentContents:
    """Describes the experiment of all studies; the view's columns come from `run`."""

    def make_views(other_metrics: Set[str]) -> dict[str, dict[str, Any]]:
        columns = best_columns(_logged_metrics([run]) | other_metrics)
        order = columns[0] if columns else ""
        view = _make_view(["study", "datasets", "cells"], columns, order)
        return {VIEW_KEY: view | {NAME: "studies"}}

    return ExperimentContents(
        name=STUDIES,
        location=location,
        note="One run per study: its report and tables, the best private result at each epsilon.",
        views=make_views,
    )


def releases_experiment(location: Path | None) -> ExperimentContents:
    params = ["study", "release", "dataset", "backbone", "method", "epsilon", "delta", "unit"]
    metrics = ["privacy/epsilon_realised", "evaluation/accuracy", "evaluation/auc"]
    return ExperimentContents(
        name=RELEASES,
        location=location,
        note="One run per release: its guarantee, its noisy test result, its bundle.",
        views=lambda _: {VIEW_KEY: _make_view(params, metrics, metrics[0]) | {NAME: "releases"}},
    )


def nearest_to_one(epsilons: Iterable[str]) -> str:
    """Returns the finite epsilon nearest to 1; infinity if no epsilon is finite."""
    return min(
        epsilons, key=lambda token: (_distance(token), budget_order(token)), default=INFINITE
    )


def _distance(token: str) -> float:
    return from_one(budget_order(token))


def best_columns(metrics: Iterable[str]) -> list[str]:
    """Returns best private results to fill a view's columns, preferring epsilons near 1."""
    epsilons: dict[str, list[str]] = {}  # by dataset
    for name in metrics:
        dataset, best, epsilon = name.partition(BEST)
        if best:
            epsilons.setdefault(dataset, []).append(epsilon)
    ranked = [
        (rank, dataset, budget_order(epsilon), f"{dataset}{BEST}{epsilon}")
        for dataset, tokens in epsilons.items()
        for rank, epsilon in enumerate(sorted(sorted(tokens), key=_distance))
    ]
    chosen = sorted(ranked)[: max(STUDY_COLUMNS, len(epsilons))]
    return [name for *_, name in sorted(chosen, key=lambda each: each[1:])]


def view_tag(key: str) -> str:
    """Returns the name of the tag in which MLflow 3.17 stores an experiment's view."""
    return f"mlflow.sharedViewState.{key}"


def changed_view(view: Mapping[str, Any], present: str | None) -> str | None:
    """Returns a view's new tag value, in the format of MLflow 3.17; None if it is up to date."""
    state = {name: value for name, value in view.items() if name != NAME}
    packed = zlib.compress(json.dumps(state, sort_keys=True).encode(), 9)
    wanted = {"name": view[NAME], "state": "deflate;" + base64.b64encode(packed).decode()}
    try:
        current = json.loads(present or "")
        if wanted.items() <= current.items():
            return None
    except (AttributeError, ValueError):
        pass
    now = int(1000 * time.time())
    return json.dumps({**wanted, "createdAt": now, "updatedAt": now})


def _make_view(params: Sequence[str], metrics: Sequence[str], order: str) -> dict[str, Any]:
    """Makes a table: the first metric (so that it is always visible), params, other metrics."""
    columns = [
        *(f"metrics.`{name}`" for name in metrics[:1]),
        *(f"params.`{name}`" for name in params),
        *(f"metrics.`{name}`" for name in metrics[1:]),
    ]
    return {
        "selectedColumns": columns,
        "columnOrder": columns,
        "orderByKey": f"metrics.`{order}`",
        "orderByAsc": False,
        "searchFilter": f'tags.{CURRENT} = "true"',
        "runsHiddenMode": f"FIRST_{RUNS_SHOWN}_RUNS",
        "hideEmptyCharts": True,
    }


def _make_charts(name: str, kinds: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Lays out the first section of charts, in the given order.

    MLflow adds charts of other metrics, and names each chart after its metric. MLflow sorts
    sections by name, with accuracy before AUC, unless they are marked as reordered. MLflow also
    sorts a section's charts if its name is a prefix of the metrics' names, as in test/accuracy.

    Args:
      kinds: for each chart, LINE or BAR, and the metric.
    """
    section = f"dpprobe-{name}"
    shared = {"metricSectionId": section, "deleted": False, "isGenerated": True}
    # With the default smoothness, MLflow would draw averages over epsilons.
    line = {
        "lineSmoothness": 0,
        "useGlobalLineSmoothing": False,
        "xAxisKey": "step",
        "useGlobalXaxisKey": False,
        "xAxisScaleType": "linear",
        "scaleType": "linear",
        "range": {},
    }
    return {
        "compareRunCharts": [
            {
                **shared,
                **(line if kind == "LINE" else {}),
                "type": kind,
                "uuid": f"dpprobe-{metric}",
                "metricKey": metric,
                "runsCountToCompare": RUNS_SHOWN,
            }
            for kind, metric in kinds
        ],
        "isAccordionReordered": True,
        "compareRunSections": [
            {
                "uuid": section,
                "name": name,
                "display": True,
                "deleted": False,
                "isGenerated": True,
                "isReordered": False,
                "columns": CHART_COLUMNS,
            }
        ],
    }


def _logged_metrics(runs: Iterable[RunContents]) -> set[str]:
    return {name for item in runs for name, _, _ in item.metrics}
