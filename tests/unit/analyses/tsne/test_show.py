"""t-SNE figures: classes, legends, notes."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from dpprobe.analyses.tsne import DATASET_TSNE, show
from dpprobe.study.study_file import load_study
from tests.support.small_study import STUDY


def test_a_class_is_named_at_one_of_its_own_points() -> None:
    # Two clusters of one class: the median lies between them, in another class.
    plane = np.array([[0.0, 0.0], [0.1, 0.0], [10.0, 0.0], [10.1, 0.0], [5.0, 0.0], [5.1, 0.0]])
    labels = np.array([0, 0, 0, 0, 1, 1])
    few = Figure().add_subplot()
    show._draw_plane(few, plane, labels, ["split", "between", "absent"], legend="class")
    assert not few.texts, "a name would hide one of six points"
    plane, labels = np.tile(plane, (10, 1)), np.tile(labels, 10)
    axes = Figure().add_subplot()
    show._draw_plane(axes, plane, labels, ["split", "between", "absent" * 40], legend="class")
    (legend,) = axes.figure.legends
    assert max(len(line) for text in legend.texts for line in text.get_text().split("\n")) <= 41
    places = {text.get_text(): text.get_position() for text in axes.texts}
    assert places.keys() == {"split", "between"}
    assert places["split"] in {tuple(point) for point in plane[labels == 0]}


@pytest.mark.parametrize("others", [0, 1, 2])
def test_one_backbone_needs_no_figure_that_compares_backbones(others: int) -> None:
    backbones = {f"other_{n}": {"family": "pixels", "size": 4 + n} for n in range(others)}
    study = load_study(STUDY | {"backbones": STUDY["backbones"] | backbones})
    assert DATASET_TSNE.places
    assert DATASET_TSNE.places(study) == [{"dataset": "digits"}] * (others > 0)
