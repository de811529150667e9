"""The page: every published number once, and the committed page is the one that is generated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpprobe.exhibits import published
from reproduction import facts, page, record
from reproduction.compare import compare_all
from reproduction_page import TAIL
from tests.support.reproduction import known, printed, result

ROOT = Path(__file__).resolve().parents[3]


def made(rows: list[dict[str, Any]], *entries: dict[str, Any], **changes: Any) -> str:
    """The page of a published table, with one result beside it where `run` says so."""
    results = changes.pop("results", [result()])
    of = known(*entries)
    given = printed(*rows, **changes)
    text: str
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "all_results", lambda *_: results)
        text = page.reproduction_page(given, of, record.Record())
    return text


def row(text: str, start: str) -> list[str]:
    """The cells of the first row that begins so."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {start} |"))
    return [cell.strip() for cell in line.strip("|").split(" | ")]


FIRST = {"row": "first", "values": {"a": 90.0}}


def test_the_committed_page_is_generated_from_the_record() -> None:
    generated = page.reproduction_page(
        published.read_published(), facts.read(), record.read_reproduced()
    )
    committed = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert committed.startswith(f"{generated}{TAIL}"), (
        f"write it anew: {page.COMMAND}, without a folder"
    )


def test_every_published_number_stands_on_the_page_once() -> None:
    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    read = published.read_published()
    lines = text.splitlines()
    for table in read.tables:
        number = f"Table {table.table}" if table.table.isdecimal() else table.table
        heading = f"### {number[0].upper()}{number[1:]}: {table.title}"
        assert lines.count(heading) == 1
        body = text.partition(f"{heading}\n")[2].partition("\n#")[0]
        cells = [line.split(" | ") for line in body.splitlines() if line.startswith("| ")][2:]
        shown = [
            (cell[0].removeprefix("| "), part) for cell in cells for part in cell[3].split("; ")
        ]
        numbers = read.select_numbers(paper=table.paper, table=table.table)
        assert len(shown) == len(numbers)
        for value in numbers:
            matching = [
                part for name, part in shown if name == value.row and part.endswith(value.text)
            ]
            assert matching, value


@pytest.mark.parametrize(
    ("published_change", "values", "words"),
    [
        (-3.0, (0.2, 0.21), "In the published direction"),
        (3.0, (0.2, 0.21), "Against the published direction"),
        (0.0, (0.2, 0.21), "The paper has no change"),
        (3.0, (0.1, 0.99), "Its interval holds 0"),
        (0.0, (0.1, 0.99), "Its interval holds 0, as published"),
    ],
)
def test_a_change_says_its_direction(
    published_change: float, values: tuple[float, float], words: str
) -> None:
    ours = [{"study": "mine", "methods": ["other"], "base": "sgd"}]
    results = [
        result(values=(0.5, 0.51), mean=0.505),
        result(method="other", values=values, mean=sum(values) / 2),
    ]
    rows = [{"row": "first", "values": {"change": published_change}}]
    cells = row(made(rows, {"ours": ours}, results=results), "first")
    assert cells[6].split(". ")[-1] == words


def test_counts_add_up_to_all_published_numbers() -> None:
    comparisons = compare_all(
        published.read_published(),
        facts.read(),
        record.all_results(record.read_reproduced(), facts.read().kept),
        record.read_reproduced().throughput,
    )
    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    total, *states = map(int, row(text, "All")[1:])
    assert total == sum(states) == len(comparisons) == len(published.read_published().numbers)


def test_nothing_on_a_stand_in_is_called_like_for_like() -> None:
    for comparison in compare_all(
        published.read_published(),
        facts.read(),
        record.all_results(record.read_reproduced(), facts.read().kept),
        record.read_reproduced().throughput,
    ):
        if comparison.like_for_like:
            assert comparison.result is not None
            assert comparison.result.dataset == comparison.number.dataset
            assert comparison.result.epsilon == comparison.number.epsilon
