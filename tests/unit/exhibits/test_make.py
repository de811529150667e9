"""A job's files, params and wildcards become the arguments of the function that makes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from dpprobe.exhibits import make
from dpprobe.exhibits.exhibit import Exhibit, many, one, waits
from dpprobe.exhibits.make import make_exhibit
from dpprobe.exhibits.style import SETTINGS
from dpprobe.exhibits.tables import Column, Table, make_row

EXHIBIT = Exhibit(
    name="write_small",
    kind="table",
    files={"": "tables/{dataset}/small"},
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
            inputs={}, outputs=outputs, params={}, wildcards={},
            read_study=lambda: pytest.fail("nobody asked for the study"),
        )  # fmt: skip
    assert sizes == [SETTINGS["font.size"]]
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == ["x.png", "x.svg"]
