"""The report's section on the gain from more images or more budget."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

import pandas as pd
import pytest

from dpprobe.data.table import DatasetInfo, read_info
from dpprobe.planner.plan_text import format_span, round_count
from dpprobe.planner.predicted_accuracy import Setting, Start, n_to_keep, predict
from dpprobe.privacy.risk import RiskEpsilon, nominal_epsilon, row_words
from dpprobe.reporting.report.plans import plan_parts, unplanned_words
from dpprobe.results.summary import Grid, read_grid, read_summaries
from tests.support.report_page import ReportedStudy


def read(made: ReportedStudy) -> tuple[Grid, pd.DataFrame, dict[str, DatasetInfo]]:
    infos = {name: read_info(path) for name, path in made.sources.datasets.items()}
    summaries = made.sources.summaries
    return read_grid(summaries), read_summaries(summaries).to_pandas(), infos


def test_a_part_has_the_best_private_head_and_the_ceiling(made: ReportedStudy) -> None:
    grid, summary, infos = read(made)
    best = max(
        (entry for key, entry in grid.entries.items() if key[1:3] == (1.0, "pixels")),
        key=lambda entry: entry.mean,
    )
    for epsilon in (1.0, 8.0):  # predictions never start from a fine-tuned network
        network = replace(best, mean=99.0, network=True)
        grid.entries["digits", epsilon, "pixels", "network"] = network
    train = infos["digits"].splits["train"]
    infos["digits"] = infos["digits"].model_copy(update={"units": {"train": train.rows}})
    parts = plan_parts(grid, summary, infos, has_room=lambda _: True)
    assert [(part["dataset"], part["backbone"]) for part in parts] == [
        ("digits", "pixels"),
        ("digits", "scattering"),
    ]
    assert [part["figure"] is None for part in parts].count(False) == 1
    several = {"train": train.model_copy(update={"rows": 5 * train.rows})}
    infos["digits"] = infos["digits"].model_copy(update={"splits": several})
    full = plan_parts(grid, summary, infos, has_room=lambda _: False)
    assert {(part["figure"], part["unit"]) for part in full} == {(None, "patient")}
    first, row = parts[0], parts[0]["rows"][1]
    assert first["unit"] == "image"
    assert [each["epsilon"] for each in first["rows"]] == ["0.5", "1", "2"]
    assert row["measured"] == best.mean
    assert first["ceiling"] == grid.get(("digits", float("inf")), ("pixels", "nonprivate")).mean  # type: ignore[union-attr]
    setting, ceiling = first["setting"], first["ceiling"] / 100
    assert (setting.classes, setting.n) == (4, train.rows)
    shares = [(a - 1 / 4) / (ceiling - 1 / 4) for a in (best.mean / 100, ceiling - 0.02)]
    start = Start.of_measured(setting, shares[0])
    more = [setting.with_n(2000), setting.with_n(10_000), setting.with_epsilon(2)]
    assert [*row["images"], row["budget"]] == [
        format_span(predict(at, start=start).predict_accuracy(chance=1 / 4, ceiling=ceiling))
        for at in more
    ]
    enough = n_to_keep(setting, shares[1], start=start)
    assert row["enough"] == f"{round_count(enough or 0):,}"


@pytest.mark.parametrize("points", [-100, -40, -20, 0, 2, 40])
def test_predictions_start_from_the_measured_accuracy_or_are_omitted(
    made: ReportedStudy, points: int
) -> None:
    grid, summary, infos = read(made)
    for key, entry in grid.entries.items():
        if entry.private:
            moved = min(max(entry.mean + points, 0.0), 100.0)
            grid.entries[key] = replace(entry, mean=moved)
    parts = plan_parts(grid, summary, infos, has_room=lambda _: True)
    fitting = [part for part in parts if not part["misfit"]]
    drawn = [part for part in parts if part["figure"] is not None]
    assert len(drawn) == bool(fitting)
    assert all(part["ceiling"] <= drawn[0]["ceiling"] for part in fitting)
    for part in parts:
        assert bool(part["misfit"]) == (not part["rows"])
        for row in part["rows"]:
            low, high = map(int, re.findall(r"(-?\d+) to (\d+)", row["here"])[0])
            assert low - 1 <= row["measured"] <= high + 1
            for text in filter(None, [*row["images"], row["budget"]]):
                expected, least, most = map(int, re.findall(r"-?\d+", text))
                assert round(row["measured"]) <= least + 1 <= expected + 1 <= most + 1


def test_the_report_predicts_nothing_for_auc_multi_label_or_one_dominant_class(
    made: ReportedStudy,
) -> None:
    grid, summary, infos = read(made)
    whole = summary.assign(constant_accuracy=0.999)
    assert plan_parts(grid, whole, infos, has_room=lambda _: True) == []
    object.__setattr__(grid.measures["digits"], "headline", "auc")
    assert plan_parts(grid, summary, infos, has_room=lambda _: True) == []
    words = unplanned_words(grid, "digits")
    assert words.startswith("not predicted: public learning curves are of accuracy with one label")
    assert words.endswith("not of AUC; `dpprobe plan` predicts accuracy at any n and ε")
    object.__setattr__(grid.measures["digits"], "multi_label", True)
    assert unplanned_words(grid, "digits").endswith(" labels")


def _as_predicted(grid: Grid, moved: Mapping[float, float]) -> Grid:
    """Renames epsilons of a grid, and sets private heads to their predicted accuracy."""
    entries = {}
    for (dataset, was, backbone, method), entry in grid.entries.items():
        at, mean = moved.get(was, was), entry.mean
        if entry.private:
            budget = nominal_epsilon(at.token, 1e-5) if isinstance(at, RiskEpsilon) else at
            setting = Setting(n=1000, classes=4, dimension=64, epsilon=budget, delta=1e-5)
            ceiling = grid.entries[dataset, math.inf, backbone, "nonprivate"].mean
            mean = 25 + predict(setting).expected * (ceiling - 25)
        entries[dataset, at, backbone, method] = replace(entry, mean=mean)
    return replace(grid, entries=entries, rows=tuple(dict.fromkeys(key[:2] for key in entries)))


def test_a_permitted_risk_is_planned_at_the_epsilon_without_sampling(made: ReportedStudy) -> None:
    grid, summary, infos = read(made)
    risk = RiskEpsilon(0.9, "tpr-0.05-at-0.01", 1e-5)
    parts = plan_parts(_as_predicted(grid, {1.0: risk}), summary, infos, has_room=lambda _: False)
    assert [row["epsilon"] for row in parts[0]["rows"]][1] == row_words(risk)
    budget = nominal_epsilon(risk.token, 1e-5)
    own = parts[0]["setting"].with_epsilon(budget)
    low, expected, high = predict(own).predict_accuracy(
        chance=0.25, ceiling=parts[0]["ceiling"] / 100
    )
    assert parts[0]["rows"][1]["here"] == format_span((low, expected, high))


def test_no_prediction_is_made_without_a_baseline_or_a_private_head(made: ReportedStudy) -> None:
    grid, summary, infos = read(made)
    for gone in ("nonprivate", "sgd"):
        entries = {key: e for key, e in grid.entries.items() if not key[3].startswith(gone)}
        few = replace(grid, entries=entries)
        assert plan_parts(few, summary, infos, has_room=lambda _: True) == []
    assert unplanned_words(grid, "digits").startswith("not predicted: needs a private linear head")
