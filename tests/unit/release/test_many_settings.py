"""What releases count, book, say and refuse, over many settings, held against stored answers."""

from __future__ import annotations

import itertools
from typing import Any

from dpprobe.heads.facts import DataFacts
from dpprobe.release import stated_values
from dpprobe.release.verification.checks import DEPENDS, NOT_COVERED, Check, Checks, Report
from dpprobe.release.verification.tested_plans import agree
from tests.support.stored_records import check_values
from tests.unit.release.parts.test_many_settings import answer

FACTS = DataFacts(
    n=20_000, dimension=768, classes=2, multi_label=False, epsilon=1.0, delta=1e-6, unit="image"
)


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
