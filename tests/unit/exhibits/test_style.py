"""The common style of figures: series that differ, names that fit, intervals that are drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from dpprobe.analyses.fairness.show import gap_figure
from dpprobe.analyses.tsne.show import plot_tsne
from dpprobe.exhibits import style
from dpprobe.exhibits.published import read_published
from dpprobe.reporting.figures.curves import epsilon_accuracy
from tests.support.fairness_records import made_record
from tests.support.figures import bar_ends, save_bytes, write_embedding, write_summary


def test_equal_inputs_give_equal_bytes(tmp_path: Path) -> None:
    summary = write_summary(tmp_path)
    embedding = write_embedding(tmp_path / "digits/clip/tsne.parquet", classes=4, seed=0)
    for draw in (
        lambda: epsilon_accuracy(summary, published=read_published(), name="mnist"),
        lambda: plot_tsne(embedding=embedding, dataset="digits", backbone="clip", split="test"),
        lambda: gap_figure([made_record()]),
    ):
        first, second = (save_bytes(draw(), tmp_path / "figure") for _ in range(2))
        assert first == second
        assert b"<dc:date>" not in first[0]


def test_a_hundred_series_look_different() -> None:
    looks = style.choose_looks(100)
    assert len({repr(look) for look in looks}) == 100
    dozen = looks[: len(style.COLOURS)]
    assert len({colour for colour, _ in dozen}) == len({marker for _, (_, marker) in dozen}) == 12
    assert style.choose_looks(3) == looks[:3], "a series keeps its look as others join"
    markers = style.choose_markers(["a", "b", "c"])
    assert list(markers) == ["a", "b", "c"]
    assert len(set(markers.values())) == 3


@pytest.mark.parametrize(
    ("counts", "words"),
    [([1], "1 seed"), ([5], "5 seeds"), ([1, 3], "1 to 3 seeds"), ([2, 3, 9], "2 to 9 seeds")],
)
def test_numbers_of_seeds_are_a_range(counts: list[int], words: str) -> None:
    assert style.counted_seeds(counts) == words


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("a_long_name", 11, ["a_long_name"]),
        ("a_long_name", 6, ["a_", "long_", "name"]),
        ("short enough", 5, ["short", "enough"]),
        ("vit-b/16", 4, ["vit-", "b/16"]),
        ("abcdefghij", 4, ["abcd", "efgh", "ij"]),
        ("", 4, [""]),
    ],
)
def test_names_break_behind_separators_or_where_they_must(
    text: str, width: int, lines: list[str]
) -> None:
    assert style.wrap_name(text, width).split("\n") == lines


@given(st.text("ab _-/", max_size=40), st.integers(2, 12))
def test_a_wrapped_name_loses_spaces_at_ends_of_lines_alone(text: str, width: int) -> None:
    lines = style.wrap_name(text, width).split("\n")
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert max(map(len, lines)) <= width + 1
    if len(text) <= width:
        assert lines == [text.rstrip(" ")]


@pytest.mark.parametrize(
    ("width", "expected"), [(3, "a…j"), (4, "a…j"), (8, "abc…hij"), (9, "abcd…ghij"), (10, None)]
)
def test_a_long_text_loses_its_middle(width: int, expected: str | None) -> None:
    assert style.shorten_middle("abcdefghij", width) == (expected or "abcdefghij")


def test_lines_of_texts_are_counted() -> None:
    assert [style.count_lines(each) for each in ([], ["a"], ["a\nb", "", "c\n"])] == [0, 1, 5]
    assert style.fit_name("x" * 200, 20).count("\n") == 2, "60 characters at most"


@pytest.mark.parametrize(
    ("panels", "columns", "shape"),
    [(1, None, (1, 1)), (3, None, (1, 3)), (4, None, (2, 3)), (3, 2, (2, 2)), (7, 3, (3, 3))],
)
def test_panels_fill_rows_and_the_first_of_each_row_has_the_label(
    panels: int, columns: int | None, shape: tuple[int, int]
) -> None:
    figure, grid = style.panel_grid(panels, legend=3, columns=columns)
    style.label_outer_panels(grid, "percent")
    assert len(grid) == panels
    spec = grid[0].get_subplotspec()
    assert spec is not None
    assert spec.get_gridspec().get_geometry() == shape
    labelled = [index for index, axes in enumerate(grid) if axes.get_ylabel()]
    assert labelled == list(range(0, panels, shape[1]))
    assert [axes.axison for axes in figure.axes] == [True] * panels + [False] * (
        shape[0] * shape[1] - panels
    )


@pytest.mark.parametrize(("panels", "joined"), [(1, False), (2, True)])
def test_a_title_is_a_line_of_its_own_above_one_panel(panels: int, joined: bool) -> None:
    figure, _ = style.panel_grid(panels, legend=1)
    style.title_figure(figure, "title", "words " * 30, panels=panels)
    text = figure.get_suptitle()
    assert text.startswith("title; words" if joined else "title\nwords")
    assert len(text.split()) == 31
    longest = max(map(len, text.splitlines()))
    assert longest * style.CAPTION_LETTER < figure.get_figwidth()
    figure, _ = style.panel_grid(panels, legend=1)
    figure.legend(handles=style.make_dot_handles([("a legend of some width", "red", "o")]))
    style.title_figure(figure, "title", "words " * 30, panels=panels)
    assert max(map(len, figure.get_suptitle().splitlines())) < longest, "beside the legend"


VALUES: list[style.Interval] = [
    (0.5, 0.25, 0.75),
    (0.6, None, None),
    (0.7, 0.8, 0.9),
    (0.5, 0, 0.4),
]


@pytest.mark.parametrize("across", [False, True])
def test_error_bars_end_where_intervals_do(across: bool) -> None:
    axes = Figure().add_subplot()
    style.draw_error_bars(axes, [0, 1, 2, 3], VALUES, across=across, linestyle="none")
    container: Any = axes.containers[0]
    ends = bar_ends(container, across=across)
    assert ends == pytest.approx(np.array([(0.25, 0.75), (0.6, 0.6), (0.7, 0.9), (0.0, 0.5)]))
    points = container.lines[0]
    means, places = points.get_ydata(), points.get_xdata()
    if across:
        means, places = places, means
    assert list(means) == [0.5, 0.6, 0.7, 0.5]
    assert list(places) == [0, 1, 2, 3]


def test_a_band_leaves_out_means_without_an_interval() -> None:
    axes = Figure().subplots()
    values: list[style.Interval] = [(50.0, 40.0, 70.0), (60.0, None, None)]
    style.draw_banded(axes, [1.0, 2.0], values, ("#000000", ("-", "o")), alpha=0.3)
    (line,), (band,) = axes.lines, axes.collections
    assert np.asarray(line.get_ydata()).tolist() == [50.0, 60.0]
    places = {tuple(point) for point in np.round(np.asarray(band.get_paths()[0].vertices), 9)}
    assert places == {(1.0, 40.0), (1.0, 70.0)}
    assert band.get_alpha() == 0.3


def test_a_long_subtitle_leaves_the_axes_their_width() -> None:
    """It once took the axes to a fifth of their width, as part of the layout."""
    widths = []
    for words in ("few words", "a subtitle of several words " * 11):
        figure = Figure(figsize=(7.2, 4.3), layout="constrained")
        axes = figure.add_subplot()
        axes.plot([0, 1], [0, 1], label="a line")
        legend = axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        style.title_axes(axes, "title", words)
        figure.canvas.draw()
        widths.append(axes.get_position().width)
        small = axes.texts[0].get_window_extent()
        assert small.x1 < legend.get_window_extent().x0
    assert widths[0] == pytest.approx(widths[1], abs=0.01)


def test_a_reason_is_written_in_place_of_a_figure() -> None:
    (text,) = style.write_reason("nothing to see here " * 8).texts
    assert text.get_text().split() == ["nothing", "to", "see", "here"] * 8
    assert "\n" in text.get_text()
    assert style.draw_svg(style.write_reason("x")).startswith(b"<?xml")
