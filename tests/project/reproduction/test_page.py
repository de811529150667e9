"""The reproduction page is generated, and contains each published number once."""

from __future__ import annotations

import re
from pathlib import Path

from dpprobe.exhibits import published
from reproduction import facts, page, record
from reproduction.compare import compare_all

ROOT = Path(__file__).resolve().parents[3]


def row(text: str, start: str) -> list[str]:
    """Returns the cells of the first table row that begins with `start`."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {start} |"))
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_the_committed_page_is_generated_from_the_record() -> None:
    read = published.read_published(), facts.read(), record.read_reproduced()
    committed = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert committed == page.reproduction_page(*read), f"write it anew: {page.COMMAND}"


def section(title: str) -> str:
    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_page_has_every_published_number_once() -> None:
    """A reproduced number has its own row; other numbers are counted in a line or a study's row."""
    read, known, kept = published.read_published(), facts.read(), record.read_reproduced()
    results = record.all_results(kept, known.kept)
    comparisons = compare_all(read, known, results, record.read_throughput())
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


def test_the_readme_counts_each_result_once(repository: Path) -> None:
    """The section is generated; its counts and differences agree with the tables of the page."""
    readme = (repository / "README.md").read_text(encoding="utf-8")
    words = readme.partition("## Published numbers\n")[2].partition("\n## ")[0].strip()
    read = published.read_published(), facts.read(), record.read_reproduced()
    comparisons = page.compare_record(*read)
    assert words == page.readme_paragraph(read[0], comparisons), f"run: {page.COMMAND}"
    text = (repository / "docs/reproduction.md").read_text(encoding="utf-8")
    papers, board, every = (
        list(map(int, row(text, name)[1:]))
        for name in ("All papers", "Private ML leaderboard", "All")
    )
    assert [a + b for a, b in zip(papers, board, strict=True)] == every
    distinct: dict[tuple[str, ...], float] = {}
    for line in section("Like for like").splitlines()[3:]:
        if line.startswith("| "):
            cells = line.strip("|").split(" | ")
            name = "MNIST" if "MNIST" in cells[0] + cells[1] else "CIFAR-10"
            assert name in cells[0] + cells[1]
            assert cells[7].split(", ")[1] in ("channels", "from_scratch")  # no foundation model
            distinct[(name, cells[2].strip(), cells[7])] = -float(cells[6])
    names = [name for name, *_ in distinct]
    assert (len(distinct), names.count("MNIST"), names.count("CIFAR-10")) == (7, 6, 1)
    worst = {name: max(g for k, g in distinct.items() if k[0] == name) for name in set(names)}
    flat = " ".join(words.split())
    assert "Seven of our results are like for like: six on MNIST and one on CIFAR-10." in flat
    assert f"print them {every[1]} times" in flat
    assert f"{worst['MNIST']:.1f} points on MNIST and {worst['CIFAR-10']:.1f} points" in flat
    assert f"{papers[0]} of six papers and {board[0]} of the private ML leaderboard" in flat
    assert (
        f"{every[4]} still need computing time or data, and {every[5]} are not comparable" in flat
    )
