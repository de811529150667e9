"""The axis of epsilons: room at infinity, labels that do not overlap."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.support.figures import curve_axes, write_summary


def test_many_cells_at_infinity_have_more_room(tmp_path: Path) -> None:
    def room(root: Path, backbones: Sequence[str]) -> float:
        ticks = curve_axes(write_summary(root, backbones=backbones)).get_xticks()
        return float(ticks[-1] - ticks[-2])

    assert room(tmp_path / "many", "abcdefg") > 1.3 * room(tmp_path / "few", "ab")


def test_labels_that_would_overlap_are_left_out(tmp_path: Path) -> None:
    epsilons = ("0.01", "1", "1.1", "1.2", "10")
    axes = curve_axes(
        write_summary(tmp_path, backbones=["pixels"], methods=["sgd"], epsilons=epsilons)
    )
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["0.01", "1", "", "", "10"]
