"""Checks of a bundle, and the report of their results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from dpprobe.errors import DpprobeError, MissingExtraError
from dpprobe.extras import naming_extras
from dpprobe.release.bundle import CARD_FILE
from dpprobe.wrong_keys_and_values import explain_first

T = TypeVar("T")

DEPENDS = "not checked, because it depends on a check that failed above"
NOT_COVERED, DOCUMENTS = "not covered", "documents"
# Names of checks whose details state what a valid bundle promises.
PROMISES = (
    "bundle.json", "statement", "price", "sites", "evaluation", "calibration", "monitor",
    "choice", "ledger", "predecessors",
)  # fmt: skip
# Characters of a detail: failed checks quote values of untrusted files, others whole statements.
_LONGEST_FAULT, _LONGEST_DETAIL = 600, 6000


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
      passed: True or False; None for information, and for a check that could not run.
    """

    name: str
    passed: bool | None
    detail: str


@dataclass(frozen=True)
class Report:
    """The results of all checks of `verify`."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed is not False for check in self.checks)

    def list_checks(self) -> list[str]:
        words = {True: "ok", False: "FAILED", None: "-"}
        return [
            self._state_verdict(),
            *(f"{words[check.passed]:7} {check.name}: {check.detail}" for check in self.checks),
        ]

    def summarize(self) -> list[str]:
        """Returns the verdict, then the failed checks, or else what the bundle guarantees."""
        told, mark = [check for check in self.checks if check.passed is False], "FAILED "
        if self.passed:
            told = [check for check in self.checks if check.name in PROMISES and check.passed]
            mark = ""
        lines = [self._state_verdict(), *(f"  {mark}{one.name}: {one.detail}" for one in told)]
        if skipped := sum(check.detail == DEPENDS for check in self.checks):
            lines.append(f"  {skipped} more checks depend on a failed check and were skipped")
        unchecked = [
            check
            for check in self.checks
            if check.passed is None and check.detail != DEPENDS and check.name != NOT_COVERED
        ]
        lines += [f"Not checked: {check.name}: {check.detail}" for check in unchecked]
        if self.passed and any(check.name == NOT_COVERED for check in self.checks):
            compared = any(check.name == DOCUMENTS and check.passed for check in self.checks)
            where = f'"What is not covered" in {CARD_FILE}' if compared else "the option --all"
            lines.append(f"Not covered by the guarantee: see {where}")
        return [*lines, "The option --all lists every check."]

    def _state_verdict(self) -> str:
        done = [check.passed for check in self.checks if check.passed is not None]
        if self.passed:
            return f"verified: all {len(done)} checks passed"
        return f"NOT verified: {done.count(False)} of {len(done)} checks failed"


class Checks:
    """Runs checks in order, and skips checks that depend on a failed check."""

    def __init__(self) -> None:
        self.done: list[Check] = []

    def note_check(self, name: str, passed: bool | None, detail: str) -> None:
        self.done.append(Check(name, passed, _one_line(detail, cut=passed is False)))

    def run_check(
        self, name: str, function: Callable[..., tuple[str, T]], *inputs: Any
    ) -> T | None:
        """Returns the check's result; None if the check raises an error, or if an input is None.

        A check returns a detail and a result; its inputs are results of other checks.
        """
        if any(item is None for item in inputs):
            self.note_check(name, None, DEPENDS)
            return None
        try:
            with naming_extras():
                detail, result = function(*inputs)
        except MissingExtraError as error:  # says nothing about the bundle
            self.note_check(name, None, str(error))
            return None
        except ValidationError as error:
            detail, result = explain_first(error), None
        except DpprobeError as error:
            detail, result = str(error), None
        except Exception as error:  # untrusted files may make a library raise any error
            detail, result = f"cannot be read: {error!r}", None
        self.note_check(name, result is not None, detail)
        return result


def _one_line(text: str, *, cut: bool) -> str:
    """Returns one printable line of bounded length: files may contain control characters."""
    longest = _LONGEST_FAULT if cut else _LONGEST_DETAIL
    if len(text) > longest:  # shortens the middle, because remedies come last
        half = longest // 2
        text = f"{text[: half - 3]} ... {text[2 - half :]}"
    return "".join(
        letter if letter.isprintable() else " " if letter.isspace() else "?" for letter in text
    )
