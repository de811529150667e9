"""Checks that a verification runs, skips and reports, shown on three simple checks."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.errors import DataError, MissingExtraError
from dpprobe.release.checks import DEPENDS, DOCUMENTS, NOT_COVERED, PROMISES, Check, Checks, Report
from tests.support.refusals import check_tokens

PASSED, FAILED = Check("price", True, "epsilon 1"), Check("head", False, "bad weights")
UNTOLD = Check(DOCUMENTS, True, "compared")  # passed, but not a promise
SKIPPED = Check("sites", None, DEPENDS)
UNCHECKED, OPEN = Check("backbone", None, "pass --checkpoint"), Check(NOT_COVERED, None, "a lot")
ALL = (PASSED, UNTOLD, FAILED, SKIPPED, UNCHECKED, OPEN)
REPORTS = [Report(chosen) for count in range(7) for chosen in itertools.combinations(ALL, count)]


@pytest.mark.parametrize(
    "report", REPORTS, ids=lambda report: " ".join(c.name for c in report.checks)
)
def test_a_summary_says_the_verdict_then_what_fails_or_is_promised(report: Report) -> None:
    has = set(report.checks).__contains__
    assert report.passed == (not has(FAILED)), "what could not be checked is no failure"
    done = sum(has(each) for each in (PASSED, UNTOLD, FAILED))
    verdict, *lines, last = report.summarize()
    assert verdict.startswith("verified" if report.passed else "NOT verified")
    check_tokens(verdict, done, *[1] * (not report.passed))
    wanted: list[tuple[object, ...]] = []
    wanted += [("FAILED", "head", "bad weights")] if has(FAILED) else []
    wanted += [("price", "epsilon 1")] if has(PASSED) and not has(FAILED) else []
    wanted += [(1, "skipped")] * has(SKIPPED)
    wanted += [("backbone", "--checkpoint")] * has(UNCHECKED)
    where = "README.md" if has(UNTOLD) else "--all"  # only compared documents are trusted
    wanted += [(where,)] if has(OPEN) and report.passed else []
    for line, tokens in zip(lines, wanted, strict=True):
        check_tokens(line, *tokens)
    check_tokens(last, "--all")
    every = report.list_checks()
    assert every[0] == verdict
    words = {True: "ok      ", False: "FAILED  ", None: "-       "}
    assert every[1:] == [f"{words[c.passed]}{c.name}: {c.detail}" for c in report.checks]


def test_each_check_of_a_valid_bundle_is_reported() -> None:
    told = Report(tuple(Check(name, True, "holds") for name in PROMISES)).summarize()
    assert told[1:-1] == [f"  {name}: holds" for name in PROMISES]
    without = Report(tuple(Check(name, None, "not there") for name in PROMISES)).summarize()
    for line, name in zip(without[1:-1], PROMISES, strict=True):
        check_tokens(line, name, "not there")


def test_a_check_runs_if_all_that_it_needs_was_found() -> None:
    checks = Checks()
    assert checks.run_check("first", lambda: ("fine", 0)) == 0
    assert checks.run_check("second", lambda *given: ("fine", given), 0, False) == (0, False)
    ran: list[Any] = []

    def note(*given: Any) -> tuple[str, int]:
        ran.append(given)
        return "ran", 1

    for inputs in ((None,), (1, None)):
        assert checks.run_check("third", note, *inputs) is None
    assert ran == []
    assert [(each.name, each.passed) for each in checks.done] == [
        *(("first", True), ("second", True), ("third", None), ("third", None))
    ]
    assert {each.detail for each in checks.done[2:]} == {DEPENDS}


@pytest.mark.parametrize(
    ("error", "passed", "detail"),
    [
        (DataError("n: 0 is not from 1"), False, "n: 0 is not from 1"),
        (KeyError("n"), False, "cannot be read: KeyError('n')"),
        (RecursionError(), False, "cannot be read: RecursionError()"),
        (MissingExtraError("install dpprobe[x]"), None, "install dpprobe[x]"),
    ],
)
def test_an_error_fails_the_check_unless_an_optional_package_is_missing(
    error: Exception, passed: bool | None, detail: str
) -> None:
    def fail() -> tuple[str, int]:
        raise error

    checks = Checks()
    assert checks.run_check("files", fail) is None
    (check,) = checks.done
    assert (check.passed, check.detail) == (passed, detail)


def test_a_check_that_returns_no_value_fails() -> None:
    checks = Checks()
    assert checks.run_check("files", lambda: ("nothing there", None)) is None
    assert checks.done == [Check("files", False, "nothing there")]


@given(st.text(max_size=60), st.sampled_from([True, False, None]))
def test_a_detail_is_one_printable_line_of_the_same_letters(text: str, passed: bool | None) -> None:
    checks = Checks()
    checks.note_check("files", passed, text)
    detail = checks.done[0].detail
    assert len(detail) == len(text)
    for shown, letter in zip(detail, text, strict=True):
        if letter.isprintable():
            assert shown == letter
        else:
            assert shown == (" " if letter.isspace() else "?")
