"""A job's files, params and wildcards become arguments of the function that makes an exhibit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from dpprobe.errors import NothingToShow
from dpprobe.exhibits import make, style
from dpprobe.exhibits.exhibit import Exhibit, many, one, waits
from dpprobe.exhibits.make import make_exhibit
from dpprobe.exhibits.style import SETTINGS
from dpprobe.exhibits.tables import Column, Table, make_row

EXHIBIT = Exhibit(
    name="write_small",
    kind="table",
    files={"": "tables/{dataset}/small", "pair": ("tables/{dataset}/a", "tables/{dataset}/b")},
    needs={
        "summary": one(lambda files, place: files.locate_summary(place["dataset"])),
        "ceiling": one(lambda _files, _place: None),
        "records": many(lambda _files, _place: ["one.json", "two.json"]),
        "marks": waits(lambda _files, _place: [".done"]),
    },
    make="dpprobe.exhibits.make:find_function",
    words="small",
    category=None,
    params={"name": "digits", "version": 1},
)


def _make(exhibit: Exhibit, monkeypatch: pytest.MonkeyPatch, made_by: Any, **job: Any) -> None:
    """Makes an exhibit with a function of the test."""
    monkeypatch.setattr(make, "find_function", lambda _words: made_by)
    given: dict[str, Any] = {
        "inputs": {},
        "params": {},
        "wildcards": {"dataset": "d"},
        "read_study": _no_study,
    }
    make_exhibit(exhibit, **given | job)


def _no_study() -> Any:
    pytest.fail("nobody asked for the study")


def test_a_job_s_files_params_and_wildcards_become_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: dict[str, Any] = {}

    def write_small(
        *,
        summary: Any,
        ceiling: Any,
        records: Any,
        name: Any,
        dataset: Any,
        results: Any,
        folder: Any,
    ) -> None:
        heard.update(locals())

    inputs = {
        "summary": ["r/s.parquet"],
        "ceiling": [],
        "records": ["one.json", "two.json"],
        "marks": [".done"],
    }
    _make(
        EXHIBIT,
        monkeypatch,
        write_small,
        inputs=inputs,
        outputs={"csv": ["r/tables/d/small.csv"]},
        params={"name": "digits", "version": 1},
    )
    del heard["heard"]
    assert heard == {
        "summary": Path("r/s.parquet"),
        "ceiling": None,
        "records": [Path("one.json"), Path("two.json")],
        "name": "digits",
        "dataset": "d",
        "results": Path("r"),
        "folder": Path("r/tables/d"),
    }


def test_the_study_and_published_numbers_are_read_if_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[Any] = []

    def write(*, study: Any, published: Any) -> None:
        heard.extend([study, len(published.citations) > 9])

    exhibit = replace(EXHIBIT, needs={})
    outputs = {"csv": ["r/tables/d/small.csv"]}
    _make(exhibit, monkeypatch, write, outputs=outputs, read_study=lambda: "the study")
    assert heard == ["the study", True]


def test_each_figure_file_shows_the_reason_if_there_is_nothing_to_draw(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def draw() -> Any:
        raise NothingToShow("no cell to draw")

    files = {"": "figures/{dataset}/x", "law": "figures/{dataset}/y"}
    outputs = {"svg": [str(tmp_path / "figures/d/x.svg")]}
    exhibit = replace(EXHIBIT, kind="figure", files=files, needs={})
    seen: list[str] = []

    def write_reason(text: str) -> Figure:
        seen.append(text)
        return Figure()

    monkeypatch.setattr(style, "write_reason", write_reason)
    _make(exhibit, monkeypatch, draw, outputs=outputs)
    assert seen == ["no cell to draw"] * 2
    written = sorted(path.name for path in (tmp_path / "figures/d").iterdir())
    assert written == ["x.png", "x.svg", "y.png", "y.svg"]


@pytest.mark.parametrize("several", [True, False])
def test_returned_tables_are_written_for_people_and_for_programs(
    several: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = Table(name="b", columns=(Column(title="x"),), rows=[make_row("1")])
    table = Table(name="a", columns=(Column(title="x"),), rows=[make_row("2")], numbers=numbers)
    monkeypatch.setattr(make, "find_function", lambda _: lambda: [table] * 2 if several else table)
    stems = ("tables/{dataset}/a", "tables/{dataset}/b")
    exhibit = replace(EXHIBIT, files={"": stems if several else stems[0]}, needs={})
    make_exhibit(
        exhibit,
        inputs={},
        outputs={"csv": [str(tmp_path / "tables/d/a.csv")], "markdown": []},
        params={},
        wildcards={"dataset": "d"},
        read_study=lambda: pytest.fail("nobody asked for the study"),
    )
    written = sorted(path.name for path in (tmp_path / "tables/d").iterdir())
    assert written == ["a.csv", "a.md", *(["b.csv", "b.md"] if several else [])]
    assert (tmp_path / "tables/d/a.csv").read_text() == "x\n1\n"
    assert "| 2 |" in (tmp_path / "tables/d/a.md").read_text()


def test_returned_figures_are_drawn_and_saved_in_the_common_style(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []

    def draw() -> Figure:
        sizes.append(mpl.rcParams["font.size"])
        return Figure()

    monkeypatch.setattr(make, "find_function", lambda _: draw)
    outputs = {kind: [str(tmp_path / f"figures/x.{kind}")] for kind in ("svg", "png")}
    with mpl.rc_context({"font.size": 30.0}):
        make_exhibit(
            replace(EXHIBIT, kind="figure", files={"": "figures/x"}, needs={}),
            inputs={},
            outputs=outputs,
            params={},
            wildcards={},
            read_study=lambda: pytest.fail("nobody asked for the study"),
        )
    assert sizes == [SETTINGS["font.size"]]
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == ["x.png", "x.svg"]
