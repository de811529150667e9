"""The page: every published number once, and the committed page is the one that is generated."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dpprobe.exhibits import published
from reproduction import facts, page, record
from reproduction.compare import compare_all
from reproduction.disk import Disk
from tests.support.reproduction import known, printed, result

ROOT = Path(__file__).resolve().parents[3]


DISK = Disk(
    study="config/mine.yaml", fetched={"cifar10": 0.163, "mnist": None}, weights=2.44,
    features=0.0, activations=40.2, networks=7,
)  # fmt: skip


def made(rows: list[dict[str, Any]], *entries: dict[str, Any], **changes: Any) -> str:
    """The page of a published table, with one result beside it where `run` says so."""
    results = changes.pop("results", [result()])
    of = known(*entries)
    given = printed(*rows, **changes)
    text: str
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "all_results", lambda *_: results)
        patch.setattr(page, "measure_disk", lambda *_: DISK)
        text = page.reproduction_page(given, of, record.Record())
    return text


def row(text: str, start: str) -> list[str]:
    """The cells of the first row that begins so."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {start} |"))
    return [cell.strip() for cell in line.strip("|").split(" | ")]


FIRST = {"row": "first", "values": {"a": 90.0}}


def test_another_accountant_s_noise_stands_with_pld_s_price() -> None:
    ours = [result(noise=5.668, pld_epsilon=2.38364)]
    assert row(made([FIRST], results=ours), "first")[4].endswith(
        "2 seeds; noise 5.67, ε 2.38 by PLD"
    )
    assert "PLD" not in row(made([FIRST]), "first")[4]


def test_the_committed_page_is_generated_from_the_record() -> None:
    generated = page.reproduction_page(
        published.read_published(), facts.read(), record.read_reproduced()
    )
    committed = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert committed == generated, f"write it anew: {page.COMMAND}, without a folder"


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


def test_a_difference_like_for_like() -> None:
    cells = row(made([FIRST]), "first")
    assert cells == [
        "first", "2", "1e-05", "A 90.0", "89.0 ± 2.0, 2 seeds", "-1.0",
        "like for like (mine, sgd)", "[1](#note-1)",
    ]  # fmt: skip


def test_a_stand_in_says_what_is_not_as_published() -> None:
    cells = row(made([FIRST], results=[result(delta=1e-6)]), "first")
    assert cells[6] == "stand-in (mine, sgd): δ 1e-06, not 1e-05"


def test_what_was_not_run_has_its_command_and_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = made([FIRST], {"missing": "It takes a week.", "target": "heads"}, results=[])
    assert row(text, "first")[4:] == ["", "", "not run", "[1](#note-1)"]
    assert "1 number. It takes a week. Weights: pixels, none needed. Data: CIFAR-10 (open)." in text
    words = "heads --cores all --configfile config/mine.yaml"
    assert f"    snakemake {words}\n" in text
    assert "No rate of it was measured: no hours." in " ".join(text.split())
    monkeypatch.chdir(tmp_path)  # not the root of a clone
    text = made([FIRST], {"missing": "It takes a week.", "target": "heads"}, results=[])
    assert f"    dpprobe run {words}\n" in text


def test_a_study_says_what_it_fetches_and_keeps() -> None:
    study = "[config/mine.yaml](../config/mine.yaml)"
    assert row(made([FIRST]), study) == [
        study, "CIFAR-10 0.16, MNIST", "2.4", "", "40", "7", "[1](#note-1)",
    ]  # fmt: skip


def test_reasons_stand_only_beside_something_that_was_run() -> None:
    entry = {"reasons": ["The moon."]}
    assert "Why ours differs: The moon." in made([FIRST], entry)
    assert "The moon." not in made([FIRST], entry, results=[])


def test_words_are_shown_without_a_difference() -> None:
    cells = row(made([{"row": "first", "values": {"a": "random chance"}}]), "first")
    assert cells[3:6] == ["A random chance", "89.0 ± 2.0, 2 seeds", ""]


def test_areas_are_fractions() -> None:
    rows = [{"row": "first", "values": {"a": 0.9}}]
    cells = row(made(rows, metric="auc", results=[result(metric="auc")]), "first")
    assert cells[3:6] == ["A 0.90", "0.890 ± 0.020, 2 seeds", "-0.010"]


@pytest.mark.parametrize(
    ("epsilon", "delta", "shown"),
    [([0.5, 1.5], 1e-5, ["[0.5, 1.5]", "1e-05"]), (None, None, ["", ""]), (3, None, ["3", ""])],
)
def test_ranges_and_unstated_values(epsilon: Any, delta: Any, shown: list[str]) -> None:
    cells = row(made([FIRST], epsilon=epsilon, delta=delta, results=[]), "first")
    assert cells[1:3] == shown


def test_an_inferred_epsilon_says_so() -> None:
    rows = [FIRST | {"inferred": {"epsilon": ["a"]}}]
    cells = row(made(rows), "first")
    assert cells[1] == "2 (inferred)"
    assert cells[6] == "like for like (mine, sgd). The paper does not state ε"


def test_an_inferred_delta_says_so() -> None:
    cells = row(made([FIRST | {"inferred": {"delta": ["a"]}}]), "first")
    assert cells[2] == "1e-05 (inferred)"
    assert cells[6] == "like for like (mine, sgd). The paper does not state δ"


def test_a_row_that_was_not_run_says_what_stands_in() -> None:
    cells = row(made([FIRST], {"stands_in": "the moon stands for Mars"}, results=[]), "first")
    assert cells[6] == "not run; in the study the moon stands for Mars"
    near = {"title": "the secret one", "access": "private", "nearest": "vit_b16"}
    of = known({"weights": "secret"}, weights={"secret": near})
    (comparison,) = compare_all(printed(FIRST), of, [])
    assert page._stands_in(comparison.entry, of) == (
        "; in the study `vit_b16` of the catalog stands for the secret one"
    )


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


def test_entries_that_say_the_same_share_a_note() -> None:
    rows = [{"row": name, "values": {"a": 1.0}} for name in ("first", "second", "third")]
    entries: list[dict[str, Any]] = [{}, {"rows": ["second"]}, {"rows": ["third"], "missing": "M"}]
    text = made(rows, *entries, results=[])
    assert re.findall(r"^### Note (\d+)$", text, flags=re.MULTILINE) == ["1", "2"]
    assert [row(text, name)[-1][1] for name in ("first", "second", "third")] == ["1", "1", "2"]


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
