"""A job's files, params and wildcards become the arguments of the function that makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpprobe.exhibits import make
from dpprobe.exhibits.exhibit import Exhibit, many, one, waits
from dpprobe.exhibits.make import find_function, make_exhibit

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


def test_a_job_s_files_become_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def write_small(
        *, summary: Any, ceiling: Any, records: Any, csv: Any, markdown: Any, pair_csv: Any,
        pair_markdown: Any, name: Any, dataset: Any, results: Any,
    ) -> None:  # fmt: skip
        given.update(locals())

    monkeypatch.setattr(make, "find_function", lambda _words: write_small)
    make_exhibit(
        EXHIBIT,
        inputs={
            "summary": ["r/s.parquet"], "ceiling": [], "records": ["one.json"], "marks": [".done"]
        },
        outputs={
            "csv": ["r/tables/d/small.csv"],
            "markdown": ["r/tables/d/small.md"],
            "pair_csv": ["r/tables/d/a.csv", "r/tables/d/b.csv"],
            "pair_markdown": ["r/tables/d/a.md", "r/tables/d/b.md"],
        },
        params={"name": "digits", "version": 1},
        wildcards={"dataset": "d"},
        read_study=lambda: pytest.fail("nobody asked for the study"),
    )  # fmt: skip
    del given["given"]
    assert given == {
        "summary": Path("r/s.parquet"),
        "ceiling": None,
        "records": [Path("one.json")],
        "csv": Path("r/tables/d/small.csv"),
        "markdown": Path("r/tables/d/small.md"),
        "pair_csv": [Path("r/tables/d/a.csv"), Path("r/tables/d/b.csv")],
        "pair_markdown": [Path("r/tables/d/a.md"), Path("r/tables/d/b.md")],
        "name": "digits",
        "dataset": "d",
        "results": Path("r"),
    }


def test_the_function_is_found_by_its_name() -> None:
    assert find_function(EXHIBIT.make).__name__ == "find_function"
