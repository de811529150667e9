"""The experiments of MLflow and their ready-made views: columns, order, filter.

MLflow's own table shows neither params nor metrics until somebody picks columns.
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

from dpprobe.privacy.limits import epsilon_value
from dpprobe.results.best_private import from_one
from dpprobe.results.cell_record import Measure
from dpprobe.tracking.runs import BEST, CURVES, RunContents

VIEW_KEY = "dpprobe"  # of the ready-made view of an experiment
PRIVATE_VIEW = "dpprobe-private"  # of the same with private cells alone
STUDIES = "all studies"  # the experiment of studies; a space keeps it apart from datasets
RELEASES = "all releases"  # likewise, the experiment of releases
STUDY_COLUMNS = 12  # of the view of all studies
CURRENT = "current"  # tag: "true" while the study names the result, else "false"


@dataclass(frozen=True, kw_only=True)
class ExperimentContents:
    """An experiment as it should be.

    Attributes:
      location: of its artifacts; None if a server decides that.
      note: what its page says of it.
      views: makes its views by key, given the metrics of other studies' runs, which it shows too.
    """

    name: str
    location: Path | None
    note: str
    views: Callable[[Set[str]], Mapping[str, Mapping[str, Any]]]


def cells_experiment(
    dataset: str, location: Path | None, cells: Sequence[RunContents], measure: Measure
) -> ExperimentContents:
    """Describes the experiment of a dataset's cells."""
    headline = f"test/{measure.headline}"
    others_shown = [f"test/{name}" for name in CURVES[measure.headline][1:]]
    columns = [
        headline, f"{headline}_std", f"{headline}_rows_low", f"{headline}_rows_high",
        *others_shown, "test/ece", "privacy/epsilon_realised", "privacy/noise_multiplier",
        "audit/epsilon_lower", "attack/auc",
    ]  # fmt: skip
    params = ["backbone", "method", "epsilon", "seeds"]

    def views(other_metrics: Set[str]) -> dict[str, dict[str, Any]]:
        logged = _logged(cells) | other_metrics
        shown = [name for name in columns if name in logged]
        return {
            key: _view(params, shown, headline, runs=cells, also=also)
            for key, also in ((VIEW_KEY, ""), (PRIVATE_VIEW, ' and tags.private = "true"'))
        }

    return ExperimentContents(
        name=dataset,
        location=location / "cells" if location else None,
        note=f"Cells of {dataset}: one run a backbone, method and epsilon, all seeds together.",
        views=views,
    )


def summary_experiment(
    dataset: str, location: Path | None, summaries: Sequence[RunContents], measure: Measure
) -> ExperimentContents:
    """Describes the experiment of a dataset's results over all epsilons."""
    prefix = f"{measure.headline}/eps_"

    def views(other_metrics: Set[str]) -> dict[str, dict[str, Any]]:
        columns = sorted(
            (name for name in _logged(summaries) | other_metrics if name.startswith(prefix)),
            key=lambda name: epsilon_value(name.removeprefix(prefix)),
        )
        order = columns[-1] if columns else ""
        return {VIEW_KEY: _view(["backbone", "method"], columns, order, runs=summaries)}

    return ExperimentContents(
        name=f"{dataset}/summary",
        location=location / "summary" if location else None,
        note=(
            f"Summary of {dataset}: one run a backbone and method, {measure.title} at each "
            "epsilon; steps of curves are 100 x epsilon."
        ),
        views=views,
    )


def studies_experiment(location: Path | None, run: RunContents) -> ExperimentContents:
    """Describes the experiment of all studies, of which this run is one."""

    def views(other_metrics: Set[str]) -> dict[str, dict[str, Any]]:
        columns = best_columns(_logged([run]) | other_metrics)
        order = columns[0] if columns else ""
        return {VIEW_KEY: _view(["study", "datasets", "cells"], columns, order, runs=[run])}

    return ExperimentContents(
        name=STUDIES,
        location=location,
        note="One run a study: its report and tables, the best private result at each epsilon.",
        views=views,
    )


def releases_experiment(location: Path | None, run: RunContents) -> ExperimentContents:
    """Describes the experiment of all studies' releases, of which this run is one."""
    params = ["study", "release", "dataset", "backbone", "method", "epsilon", "delta", "unit"]
    metrics = ["privacy/epsilon_realised", "evaluation/accuracy", "evaluation/auc"]
    return ExperimentContents(
        name=RELEASES,
        location=location,
        note="One run a release: its guarantee, what was measured of it under noise, its bundle.",
        views=lambda _: {VIEW_KEY: _view(params, metrics, metrics[0], runs=[run])},
    )


def best_columns(metrics: Iterable[str]) -> list[str]:
    """Returns the best private results that a view has room for.

    If there are many, each dataset's at the epsilon nearest to 1 come first, then at the next
    nearest.
    """
    epsilons: dict[str, list[str]] = {}  # by dataset
    for name in metrics:
        dataset, best, epsilon = name.partition(BEST)
        if best:
            epsilons.setdefault(dataset, []).append(epsilon)
    ranked = [
        (rank, dataset, epsilon_value(epsilon), f"{dataset}{BEST}{epsilon}")
        for dataset, tokens in epsilons.items()
        for rank, epsilon in enumerate(sorted(sorted(tokens), key=from_one))
    ]
    chosen = sorted(ranked)[: max(STUDY_COLUMNS, len(epsilons))]
    return [name for *_, name in sorted(chosen, key=lambda each: each[1:])]


def view_tag(key: str) -> str:
    """Returns the tag of an experiment that holds a view, as MLflow 3.17's page names it."""
    return f"mlflow.sharedViewState.{key}"


def changed_view(key: str, view: Mapping[str, Any], present: str | None) -> str | None:
    """Returns the value of a view's tag as MLflow 3.17's page writes it, None if it is up to date.

    Args:
      present: the tag's value, None if there is none.
    """
    packed = zlib.compress(json.dumps(view, sort_keys=True).encode(), 9)
    state = "deflate;" + base64.b64encode(packed).decode()
    try:
        current = json.loads(present or "")["state"]
    except (KeyError, ValueError, TypeError):
        current = None
    if current == state:
        return None
    now = int(1000 * time.time())
    return json.dumps({"name": key, "createdAt": now, "updatedAt": now, "state": state})


def _view(
    params: Sequence[str],
    metrics: Sequence[str],
    order: str,
    *,
    runs: Sequence[RunContents],
    also: str = "",
) -> dict[str, Any]:
    columns = [f"params.`{name}`" for name in params] + [f"metrics.`{name}`" for name in metrics]
    return {
        "selectedColumns": columns,
        "columnOrder": columns,
        "columnWidths": {
            **{f"params.`{name}`": _width(name, runs) for name in params},
            **{f"metrics.`{name}`": max(100, 8 * len(name) + 30) for name in metrics},
        },
        "orderByKey": f"metrics.`{order}`",
        "orderByAsc": False,
        "searchFilter": f'tags.{CURRENT} = "true"{also}',
        "runsHiddenMode": "FIRST_20_RUNS",
        "hideEmptyCharts": True,
    }


def _width(param: str, runs: Sequence[RunContents]) -> int:
    """Returns the pixels that a column of params needs, within reason."""
    longest = max((len(run.params.get(param, "")) for run in runs), default=0)
    return min(260, max(80, 8 * max(longest, len(param)) + 30))


def _logged(runs: Iterable[RunContents]) -> set[str]:
    return {name for item in runs for name, _, _ in item.metrics}
