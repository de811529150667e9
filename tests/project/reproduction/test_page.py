"""The page: every published number once, and the committed page is the one that is generated."""

from __future__ import annotations

import re
from pathlib import Path

from dpprobe.exhibits import published
from reproduction import facts, page, record
from reproduction.compare import compare_all

ROOT = Path(__file__).resolve().parents[3]


def row(text: str, start: str) -> list[str]:
    """The cells of the first row that begins so."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {start} |"))
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_the_committed_page_is_generated_from_the_record() -> None:
    read = published.read_published(), facts.read(), record.read_reproduced()
    committed = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert committed == page.reproduction_page(*read), f"write it anew: {page.COMMAND}"


def section(title: str) -> str:
    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_every_published_number_stands_on_the_page_once() -> None:
    """A number that was run has a row, others are counted: in a line, or in a study's row."""
    read, known, kept = published.read_published(), facts.read(), record.read_reproduced()
    results = record.all_results(kept, known.kept)
    comparisons = compare_all(read, known, results, kept.throughput)
    shown = section("Like for like") + section("Stand-ins")
    lines = [line for line in shown.splitlines() if line.startswith("| ") and "---" not in line]
    ran = [c for c in comparisons if page.state(c) in (page.LIKE, page.STAND_IN)]
    assert len([line for line in lines if "Published |" not in line]) == len(ran)
    for comparison in ran:
        number = comparison.number
        found = [line for line in lines if f"| {number.row} |" in line and number.text in line]
        assert found, number
    described = section("Not run") + section("Met")
    counted = sum(map(int, re.findall(r", (\d+) numbers? \(", described)))
    bare = [c for c in comparisons if not (c.entry.study or c.entry.command)]
    assert counted == len(bare) + sum(bool(c.entry.met) for c in comparisons if c not in bare)
    ready = section("Studies that are ready").splitlines()
    studies = [int(line.split(" | ")[1]) for line in ready if line.startswith("| `")]
    left = [c for c in comparisons if page.state(c) not in (page.LIKE, page.MET) and c not in bare]
    assert sum(studies) == len(left)


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
        r"(\w+) papers have (\d+) numbers, of which (\d+) were run like for like, and (\d+) hold "
        r"without a run. Another (\d+) were run in another setting, and (\d+) not yet ",
        words,
    )
    assert found is not None
    named, total, *states = found.groups()
    assert [total, *states] == counted.split(" | ")
    assert ["Four", "Five", "Six", "Seven", "Eight"][papers - 4] == named
    differences: dict[str, list[float]] = {"MNIST": [], "CIFAR-10": []}
    for line in section("Like for like").splitlines()[3:]:
        if line.startswith("| "):
            cells = line.split(" | ")
            differences[cells[1].partition(",")[0]].append(-float(cells[6]))
    mnist, cifar = differences.values()
    assert f"at most {max(mnist):g} points below the published one on MNIST ({len(mnist)} " in words
    assert f"{max(cifar):g} points on CIFAR-10 ({len(cifar)})" in words
