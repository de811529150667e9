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
    """Its paragraph is generated; sums and differences are those of the page's tables."""
    readme = (repository / "README.md").read_text(encoding="utf-8")
    words = readme.partition("## Published numbers\n")[2].partition("\n## ")[0].strip()
    read = published.read_published(), facts.read(), record.read_reproduced()
    assert words == page.readme_paragraph(page.compare_record(*read)), f"run: {page.COMMAND}"
    text = (repository / "docs/reproduction.md").read_text(encoding="utf-8")
    numbers = re.findall(r"(\d+) (?:numbers \(\[|were|hold|wait|are)", " ".join(words.split()))
    assert numbers == row(text, "All")[1:]
    differences: dict[str, list[float]] = {"MNIST": [], "CIFAR-10": []}
    for line in section("Like for like").splitlines()[3:]:
        if line.startswith("| "):
            cells = line.strip("|").split(" | ")
            name = "MNIST" if "MNIST" in cells[1] else "CIFAR-10"
            assert name in cells[0] + cells[1]
            differences[name].append(-float(cells[6]))
    for name, of in differences.items():
        assert f"{max(of):.1f} points on {name} ({len(of)} numbers)" in " ".join(words.split())


def test_a_number_without_a_run_is_ready_or_not_comparable() -> None:
    """Ready if an entry names a run and the weights are not their owners' alone."""
    known = facts.read()
    comparisons = page.compare_record(published.read_published(), known, record.Record())
    assert {page.state(c) for c in comparisons} == {page.MET, page.WAITING, page.NEVER}
    for comparison in comparisons:
        entry = comparison.entry
        owned = entry.weights is not None and known.weights[entry.weights].access == "private"
        never = owned or not (entry.study or entry.command)
        assert page.state(comparison) == (
            page.MET if entry.met else page.NEVER if never else page.WAITING
        )
