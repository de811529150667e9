"""Checks made one after the other, and what they come to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from dpprobe.errors import DpprobeError
from dpprobe.wrong_keys_and_values import explain_first

T = TypeVar("T")

_LONGEST_DETAIL = 600


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
      passed: None for what cannot be checked here, and for information.
    """

    name: str
    passed: bool | None
    detail: str


@dataclass(frozen=True)
class Report:
    """The result of `verify`."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """True if no check failed; those that could not be made are listed with None."""
        return all(check.passed is not False for check in self.checks)


class Checks:
    """Runs checks one after the other; what rests on a failed one is not checked."""

    def __init__(self) -> None:
        self.done: list[Check] = []

    def note_check(self, name: str, passed: bool | None, detail: str) -> None:
        self.done.append(Check(name, passed, _one_line(detail)))

    def run_check(
        self, name: str, function: Callable[..., tuple[str, T]], *inputs: Any
    ) -> T | None:
        """Returns the function's result; None where it fails, whatever it raises.

        Args:
          function: returns a detail and a result.
          inputs: results of other checks.
        """
        if any(item is None for item in inputs):
            self.note_check(name, None, "not checked: it rests on what failed above")
            return None
        try:
            detail, result = function(*inputs)
        except Exception as error:  # whatever a stranger's file makes a library raise
            self.note_check(name, False, _describe_reason(error))
            return None
        self.note_check(name, True, detail)
        return result


def _describe_reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return explain_first(error)
    return str(error) if isinstance(error, DpprobeError) else f"cannot be read: {error!r}"


def _one_line(text: str) -> str:
    """Returns one printable line of bounded length: a file may hold control characters."""
    clean = "".join(
        letter if letter.isprintable() else " " if letter.isspace() else "?"
        for letter in text[: 2 * _LONGEST_DETAIL]
    )
    return clean if len(clean) <= _LONGEST_DETAIL else f"{clean[: _LONGEST_DETAIL - 3]}..."
