"""The page: every published number once, and the committed page is the one that is generated."""

from __future__ import annotations

import re
from pathlib import Path

from dpprobe.exhibits import published
from reproduction import facts, page, record
from reproduction.compare import compare_all
from reproduction_page import TAIL

ROOT = Path(__file__).resolve().parents[3]


def row(text: str, start: str) -> list[str]:
    """The cells of the first row that begins so."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {start} |"))
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_the_committed_page_is_generated_from_the_record() -> None:
    read = published.read_published(), facts.read(), record.read_reproduced()
    generated = page.reproduction_page(*read) + TAIL
    committed = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert committed.startswith(generated), f"write it anew: {page.COMMAND}, without a folder"


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
            parts = [part for name, part in shown if name == value.row]
            assert any(part.endswith(value.text) for part in parts), value


def test_counts_add_up_to_all_published_numbers() -> None:
    read, known, kept = published.read_published(), facts.read(), record.read_reproduced()
    results = record.all_results(kept, known.kept)
    comparisons = compare_all(read, known, results, kept.throughput)
    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    total, *states = map(int, row(text, "All")[1:])
    assert total == sum(states) == len(comparisons) == len(read.numbers)


def test_the_readme_counts_published_numbers_as_the_page_does(repository: Path) -> None:
    page = (repository / "docs/reproduction.md").read_text(encoding="utf-8")
    (counted,) = re.findall(r"^\| All \| (.*) \|$", page, re.MULTILINE)
    papers = page.partition("| All |")[0].partition("| Paper |")[2].count("\n| ") - 1
    readme = (repository / "README.md").read_text(encoding="utf-8")
    words = " ".join(readme.partition("## Published numbers\n")[2].partition("\n## ")[0].split())
    found = re.match(
        r"dpprobe knows (\d+) numbers of (\w+) papers. (\d+) were run like for like, (\d+) in "
        r"another setting, and (\d+) not yet ",
        words,
    )
    assert found is not None
    total, named, *states = found.groups()
    assert [total, *states] == counted.split(" | ")
    assert ["four", "five", "six", "seven", "eight"][papers - 4] == named
    differences: dict[str, list[float]] = {"MNIST": [], "CIFAR-10": []}
    for row in re.findall(r"^\| .* \| like for like \(.*$", page, re.MULTILINE):
        cells = row.split(" | ")
        differences[cells[0].strip("| ").partition(",")[0]].append(-float(cells[5]))
    mnist, cifar = differences.values()
    assert f"at most {max(mnist):g} points below the published one on MNIST ({len(mnist)} " in words
    assert f"{max(cifar):g} points on CIFAR-10 ({len(cifar)})" in words
