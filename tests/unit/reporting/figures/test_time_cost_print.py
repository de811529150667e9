"""Figures for print: as wide as a page, names horizontal, no text over another."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from dpprobe.analyses.tsne import measure
from dpprobe.analyses.tsne.show import plot_tsne
from dpprobe.artifacts import write_table
from dpprobe.exhibits import style
from dpprobe.reporting.figures import time_cost
from dpprobe.reporting.figures.backbones import PAGE_WIDTH, backbone_figure
from dpprobe.results.cell_results import CellResult, read_cell_results
from tests.support.cell_files import write_cell

BACKBONES = ("a_vit_base_patch16_224_of_laion", "bit_resnet50x3_of_imagenet_21k", "small")
METHODS = ("feature_covariance", "momentum_with_many_steps", "nonprivate")
LESIONS = (
    "Pigmented benign keratosis",
    "Basal cell carcinoma",
    "Actinic keratosis",
    "Melanoma",
    "Naevus",
    "Vascular lesion",
    "Dermatofibroma",
    "Squamous cell carcinoma",
)


@pytest.fixture
def cells(tmp_path: Path) -> list[CellResult]:
    paths = [
        write_cell(tmp_path, backbone=backbone, method=method, epsilon=epsilon)
        for backbone, method in itertools.product(BACKBONES, METHODS)
        for epsilon in (("inf",) if method == "nonprivate" else ("1", "8"))
    ]
    return read_cell_results(paths)


def overlapping(figure: Figure, texts: Sequence[Text]) -> list[tuple[str, str]]:
    figure.draw_without_rendering()
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    return [
        (one, other)
        for (one, box), (other, second) in itertools.combinations(boxes, 2)
        if box.overlaps(second)
    ]


def test_backbones_have_horizontal_names_on_one_page(cells: list[CellResult]) -> None:
    with style.use_settings():
        figure = backbone_figure(cells, dataset="digits")
        (axes,) = figure.axes
        names = axes.get_yticklabels()
        assert figure.get_figwidth() <= PAGE_WIDTH
        assert {name.get_rotation() for name in names} == {0.0}
        assert [name.get_text().replace("\n", "") for name in names] == list(BACKBONES)
        assert overlapping(figure, [*names, *axes.get_xticklabels(), *axes.texts]) == []


def test_times_of_many_pairs_have_a_short_legend_on_one_page(
    cells: list[CellResult], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    timed = [replace(cell, seconds=1.0 + place) for place, cell in enumerate(cells)]
    monkeypatch.setattr(time_cost, "read_cell_results", lambda _: timed)
    monkeypatch.setattr(time_cost, "record_paths", lambda *_: [])
    monkeypatch.setattr(time_cost, "read_extraction_seconds", lambda *_: {})

    class Study:
        def list_cells(self, _dataset: str) -> list[Any]:
            return []

    with style.use_settings():
        study: Any = Study()
        figure = time_cost.plot_time_cost(study=study, results=tmp_path, dataset="digits")
        (legend,) = figure.legends
        labels = [text.get_text().replace("\n", "") for text in legend.get_texts()]
        assert figure.get_figwidth() <= PAGE_WIDTH
        assert not any("," in label for label in labels), "a pair of method and backbone"
        assert set(labels) <= {*BACKBONES, *METHODS, "slower or worse", "Pareto front"}
        assert overlapping(figure, legend.get_texts()) == []


@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_names_of_classes_do_not_cover_each_other(tmp_path: Path, spread: float) -> None:
    generator = np.random.default_rng(1)
    labels = generator.integers(len(LESIONS), size=900)
    centres = generator.normal(size=(len(LESIONS), 2))  # all of them beside each other
    plane = centres[labels] + spread * generator.normal(size=(len(labels), 2))
    facts = {
        "format": measure.EMBEDDING_FORMAT,
        "format_version": measure.EMBEDDING_FORMAT_VERSION,
        "method": "tsne",
        "class_names": LESIONS,
        "legend": "class",
        "neighbours": 15,
        "components": 50,
        "pca_agreement": 0.4,
        "tsne_agreement": 0.5,
        "perplexity": 30,
        "points": len(labels),
        "rows": len(labels),
        "seed": None,
    }
    table = pa.table({"x": plane[:, 0], "y": plane[:, 1], "label": labels})
    path = tmp_path / "tsne.parquet"
    metadata = {measure.METADATA_KEY: json.dumps(facts).encode()}
    write_table(path, table.replace_schema_metadata(metadata))
    with style.use_settings():
        figure = plot_tsne(embedding=path, dataset="lesions", backbone="dino", split="test")
        axes = figure.axes[0]
        named = [text for text in axes.texts if text.get_text().replace("\n", " ") in LESIONS]
        assert len(named) >= 6, "names are missing though there is room"
        assert overlapping(figure, named) == []
        points: set[Any] = {tuple(np.asarray(point, np.float32)) for point in plane}
        at: set[Any] = {tuple(np.asarray(text.get_position(), np.float32)) for text in named}
        assert at <= points, "a name is not at a point of its class"
