"""The report's section on what more images or budget would buy."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from dpprobe.data.table import read_info
from dpprobe.planner.learning_curves import read_curves
from dpprobe.reporting.report.plans import plan_parts, unplanned_words
from dpprobe.results.summary import read_grid, read_summaries
from tests.support.report_page import Made


def test_the_section_has_measured_beside_predicted(made: Made) -> None:
    page = made.page()
    assert "plans-digits" in {part.get("id") for part in page.all("h3")}
    for words in (
        "What more images or a larger budget would buy",
        "public learning curves predict",
        "Accuracy of a private head on digits, pixels, measured and predicted",
        "Images of other kinds may lie outside".lower(),
        "Non-private baseline: ",
        ", ".join(read_curves().sources),
    ):
        assert words in page.words or words in page.words.lower(), words
    figures = [item for item in page.all("img") if "Predicted accuracy" in str(item.get("alt"))]
    assert len(figures) == 1, "one a dataset"


def test_a_part_has_the_best_private_head_and_the_ceiling(made: Made) -> None:
    grid = read_grid(made.sources.summaries)
    summary: pd.DataFrame = read_summaries(made.sources.summaries).to_pandas()
    infos = {name: read_info(path) for name, path in made.sources.datasets.items()}
    parts = plan_parts(grid, summary, infos, has_room=lambda _: True)
    assert [(part["dataset"], part["backbone"]) for part in parts] == [
        ("digits", "pixels"),
        ("digits", "scattering"),
    ]
    assert [part["figure"] is None for part in parts].count(False) == 1
    full = plan_parts(grid, summary, infos, has_room=lambda _: False)
    assert all(part["figure"] is None for part in full)
    first = parts[0]
    assert [row["epsilon"] for row in first["rows"]] == ["0.5", "1", "2"]
    best = max(
        entry.mean
        for (_, epsilon, backbone, _), entry in grid.entries.items()
        if (epsilon, backbone) == (1.0, "pixels") and entry.private
    )
    assert first["rows"][1]["measured"] == best
    assert first["ceiling"] == grid.get(("digits", float("inf")), ("pixels", "nonprivate")).mean  # type: ignore[union-attr]
    assert first["setting"].classes == 4


@pytest.mark.parametrize(
    ("ceilings", "drawn"),
    [((60, 50), 0), ((50, 60), 1), ((None, 60), 1), ((60, None), 0), ((None, None), 0)],
)
def test_the_figure_is_of_the_backbone_with_the_highest_measured_ceiling(
    ceilings: tuple[float | None, float | None], drawn: int, made: Made
) -> None:
    """A ceiling that is only guessed, from public data, is higher here."""
    grid = read_grid(made.sources.summaries)
    for backbone, ceiling in zip(("pixels", "scattering"), ceilings, strict=True):
        for place in [key for key in grid.entries if key[1] == math.inf and key[2] == backbone]:
            entry = grid.entries.pop(place)
            if ceiling is not None and not entry.private:
                grid.entries[place] = replace(entry, mean=float(ceiling))
    summary = read_summaries(made.sources.summaries).to_pandas()
    infos = {name: read_info(path) for name, path in made.sources.datasets.items()}
    parts = plan_parts(grid, summary, infos, has_room=lambda _: True)
    assert [part["figure"] is not None for part in parts] == [drawn == 0, drawn == 1]


def test_the_majority_class_baseline_is_that_of_the_cells(made: Made) -> None:
    """Cells count each patient once, tables of images do not."""
    grid = read_grid(made.sources.summaries)
    summary = read_summaries(made.sources.summaries).to_pandas()
    infos = {name: read_info(path) for name, path in made.sources.datasets.items()}
    assumed = []
    for constant in (0.25, 0.999):
        summary["constant_accuracy"] = constant
        part, *_ = plan_parts(grid, summary, infos, has_room=lambda _: True)
        assumed.append(part["assumed"])
    assert assumed[0] < 99.9 < assumed[1], "a ceiling lies above the baseline"


def test_auc_and_several_labels_are_not_predicted(made: Made) -> None:
    grid = read_grid(made.sources.summaries)
    summary = read_summaries(made.sources.summaries).to_pandas()
    infos = {name: read_info(path) for name, path in made.sources.datasets.items()}
    object.__setattr__(grid.measures["digits"], "headline", "auc")
    assert plan_parts(grid, summary, infos, has_room=lambda _: True) == []
    words = unplanned_words(grid, "digits")
    assert words.startswith("not predicted: public learning curves are of accuracy with one label")
    assert words.endswith("not of AUC; `dpprobe plan` predicts accuracy at any n and ε")
    object.__setattr__(grid.measures["digits"], "multi_label", True)
    assert unplanned_words(grid, "digits").endswith(" labels")


def test_a_report_without_predictions_says_why(tmp_path: Path) -> None:
    made = Made(tmp_path, headline="macro_accuracy")
    page = made.page()
    assert "of accuracy with one label per image, not of macro accuracy" in page.words
    assert "plans-digits" not in {part.get("id") for part in page.all("h3")}
    assert "learning curves of" not in page.words
