"""What releases count, book, say and refuse, over many settings, held against stored answers."""

from __future__ import annotations

import itertools
import math
from typing import Any

from dpprobe.heads.facts import DataFacts
from dpprobe.release import documents, stated_values
from dpprobe.release.release_notes import _compare_classes, _list_changes, state_difference
from dpprobe.release.verification.checks import DEPENDS, NOT_COVERED, Check, Checks, Report
from dpprobe.release.verification.tested_plans import agree
from tests.support.stored_records import check_values
from tests.unit.release.parts.test_many_settings import answer

FACTS = DataFacts(
    n=20_000, dimension=768, classes=2, multi_label=False, epsilon=1.0, delta=1e-6, unit="image"
)


def test_words_of_documents_are_as_before() -> None:
    found: dict[str, Any] = {}
    texts = (
        "",
        "plain, 3.5 %",
        "a|b*c_d`e\\f",
        "<b>&\"'",
        "---",
        "+ x",
        "# h",
        "= x",
        "1. one",
        "12) b",
        "12",
        "3.5",
        "-",
        "two\n\n lines",
        "\u202eturned",
        "a\u200db\u200bc",
        "[x](y)",
        "~x~ $y$",
    )
    shown = (
        documents.in_markdown,
        documents.as_code,
        documents.one_line,
        documents.in_paragraphs,
        documents.as_word,
        documents.as_sentence,
    )
    found["texts"] = {text: [str(function(text)) for function in shown] for text in texts}
    numbers = (0.0, 1e-5, 0.00012, 0.001, 0.00999, 0.01, 0.123456, 0.5, 0.99996, 1.0, 1.23401, 12.0)
    found["numbers"] = {
        str(number): [
            documents.format_price(number),
            documents.format_small(number),
            documents._write_limit(number),
            *([documents.percent_up(number)] if number <= 1 else []),
        ]
        for number in numbers
    }
    for name, each in documents.html_environment().filters.items():
        if name in ("count", "percent", "rate", "digits"):
            found[f"filter {name}"] = [each(number) for number in (0, 0.12345, 1234567)]
    for metric, value, margin in itertools.product(
        ("accuracy", "auc", "macro_accuracy"), (0.75, 0.79, 0.83, 0.85), (0.0, 0.02, 0.05)
    ):
        ours, theirs = (
            {"metric": metric, "value": one, "interval": [one - m, one + m]}
            for one, m in ((value, 0.02), (0.79, margin))
        )
        found[f"{metric} {value} {margin}"] = state_difference(ours, theirs)
    for old, new in itertools.product(
        (["a", "b", "c"], ["a"], ["x", "y"], ["x", "b", "z"], ["b", "z", "c"]), repeat=2
    ):
        for order in (1, -1):
            found[f"classes {old} {new} {order}"] = _compare_classes(new[::order], old)
    nested = {"a": {"b": 1, "c": {"d": None}}, "e": [1], "f": "x"}
    other = {"a": {"b": 2, "c": {"d": 3}}, "e": [1], "g": None, "f": {"y": True}}
    found["changes"] = [_list_changes(one, two) for one in (nested, other) for two in (nested, {})]
    found["changes"].append(_list_changes(other, nested))
    for rates in ((0.49, 0.5), (0.5, 0.1), (0.9, 0.51)):
        table = [
            documents.Attack(false=false, trained=rate, tested=None)
            for false, rate in zip((0.001, 0.01), rates, strict=True)
        ]
        found[f"weak {rates}"] = documents.is_weak(table)
    for images, epsilon in ((None, None), (5, None), (5, math.inf), (5, 2.34561), (1, 0.5)):
        patients = {"images": images, "epsilon": epsilon}
        found[f"patients {images} {epsilon}"] = documents.to_patients(
            {"patients": patients, "delta": 1e-5}
        )
    check_values("words_of_documents", found)


def test_checks_of_bundles_are_told_as_before() -> None:
    results = [
        ("price", True, "p"),
        ("files", True, "f"),
        ("head", False, "bad"),
        ("parts", None, DEPENDS),
        ("backbone", None, "pass it"),
        (NOT_COVERED, None, "n"),
        ("words", False, "x" * 700),
    ]
    found: dict[str, Any] = {}
    for chosen in itertools.product((False, True), repeat=len(results)):
        report = Report(
            tuple(Check(*one) for one, kept in zip(results, chosen, strict=True) if kept)
        )
        case = "".join("01"[kept] for kept in chosen)
        if not chosen[6]:
            found[case] = [report.passed, *report.summarize()]
        if sum(chosen) > 5:
            found[f"{case} all"] = report.list_checks()
    checks = Checks()
    for text in ("x" * 600, "a" * 400 + "b" * 400, "t\tn\nr\x1b[2J"):
        checks.note_check("noted", True, text)
    ran: list[Any] = [
        checks.run_check("ran", lambda *inputs: ("fine", inputs), *given)
        for given in ((), (1, None), (0, False))
    ]
    ran.append(checks.run_check("none", lambda: ("nothing", None)))
    ran.append(checks.run_check("raised", lambda: ("", stated_values.read_block("x", 1, set()))))
    check_values("checks_of_bundles", [found, ran, checks.done])


def test_stated_values_are_read_as_before() -> None:
    values: list[Any] = [
        0,
        1,
        -1,
        1.0,
        1e300,
        -1e300,
        9.9e299,
        True,
        None,
        "x",
        [1],
        {"a": 1},
        {"a": 1.0},
        10**10,
        10**10 + 1,
        "ab" * 32,
        "AB" * 32,
    ]
    found: list[Any] = [
        [
            str(answer(read, "v", value))
            for read in (stated_values.read_real, stated_values.read_whole)
        ]
        + [stated_values.is_hash(value), str(answer(stated_values.read_block, "v", value, {"a"}))]
        for value in values
    ]
    found += [
        [answer(stated_values.require_same, "v", one, two) for two in values]
        for one in (1, 1.0, {"a": 1}, "y" * 101, "y" * 98)
    ]
    close: list[Any] = [
        1.0,
        1.00009,
        1.0002,
        1,
        "1",
        None,
        [1, 2],
        [1],
        [1, 2.0001],
        {"a": 1},
        {"a": 1.00001},
        {"b": 1},
        0.0,
        9e-10,
        2e-9,
    ]
    found.append(["".join(str(answer(agree, one, two))[0] for two in close) for one in close])
    check_values("stated_values", found)
