"""Finds states that one program reaches and another does not, such as fuzzing and the tests.

A state is a function of the package with the kinds of its arguments and of its result: none, true,
zero, negative, not a number, empty, one, several, and so on. If fuzzing reaches a state that the
tests do not reach, nobody thought of this situation: write the missing test.

    export PYTHONPATH=bench
    STATES=tests.json python -m pytest -p states -p no:xdist tests/unit/planner
    STATES=drawn.json FUZZ_SECONDS=600 python -m pytest -p states -p no:xdist \
        tests/project/test_fuzzed_inputs.py
    STATES=drawn.json python -m pytest -p states -p no:xdist --hypothesis-seed 7 tests/unit/planner
    python bench/states.py drawn.json tests.json

A second run adds to its file. Child processes are not recorded; compiled functions are not either.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

PACKAGE = str(Path("src", "dpprobe")) + os.sep
_MOST = 200  # different states of one function; a loop over many kinds would fill the memory
_FIELDS = 8


def kind_of(value: object, depth: int = 2) -> str:
    """Says what kind of value it is: what a condition may ask about, and not the value itself."""
    if value is None or isinstance(value, bool | np.bool_):
        return str(value)
    if isinstance(value, int | float | np.number) and not isinstance(
        value, complex | np.complexfloating
    ):
        return _kind_of_number(float(value))
    if isinstance(value, np.ndarray):
        bad = value.dtype.kind == "f" and not np.isfinite(value).all()
        return f"{value.dtype.kind}{value.ndim}{_size(value.size)}{' not finite' if bad else ''}"
    name = type(value).__name__
    if isinstance(value, str | bytes):
        return f"{name}{_size(len(value))}" if len(value) < 2 else name
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and depth:
        fields = [field.name for field in dataclasses.fields(value)][:_FIELDS]
        kinds = (kind_of(getattr(value, field, None), depth - 1) for field in fields)
        return f"{name}({', '.join(kinds)})"
    if isinstance(value, Mapping | Sequence | Set):
        inner = value.values() if isinstance(value, Mapping) else value
        first = kind_of(next(iter(inner)), depth - 1) if depth and len(value) else ""
        return f"{name}{_size(len(value))}[{first}]"
    return name


def _kind_of_number(number: float) -> str:
    if not math.isfinite(number):
        return str(number)
    size = "0" if number == 0 else "1" if abs(number) == 1 else "<1" if abs(number) < 1 else ">1"
    return ("-" if number < 0 else "") + size


def _size(count: int) -> str:
    return ("0", "1")[count] if count < 2 else "+"


class Recorder:
    """Notes the states of the package's functions as they return.

    states: function -> arguments' and result's kinds.
    """

    def __init__(self, package: str = PACKAGE) -> None:
        self.states: dict[str, set[str]] = {}
        self._package = package
        self._names: dict[Any, str | None] = {}

    def __call__(self, frame: FrameType, event: str, result: object) -> None:
        if event != "return":
            return
        code = frame.f_code
        if code not in self._names:
            place = code.co_filename.partition(self._package)[2]
            self._names[code] = f"{place} {code.co_qualname}" if place else None
        name = self._names[code]
        if name is None:
            return
        seen = self.states.setdefault(name, set())
        if len(seen) >= _MOST:
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        sys.setprofile(None)  # reading a value may call the package
        try:
            kinds = [
                f"{each}={kind_of(frame.f_locals.get(each))}" for each in names if each != "self"
            ]
            seen.add(", ".join(kinds) + f" -> {kind_of(result)}")
        except (
            Exception
        ) as error:  # a damaged value may refuse to be looked at; that is a state too
            seen.add(f"raises {type(error).__name__} when looked at")
        finally:
            sys.setprofile(self)

    def add_to(self, path: Path) -> None:
        """Joins the states with those that the file has already."""
        before = read_states(path) if path.exists() else {}
        joined = {
            name: sorted(before.get(name, set()) | self.states.get(name, set()))
            for name in sorted(before.keys() | self.states.keys())
        }
        path.write_text(json.dumps(joined, indent=0))


def read_states(path: Path) -> dict[str, set[str]]:
    return {name: set(states) for name, states in json.loads(path.read_text()).items()}


def new_states(
    drawn: Mapping[str, Set[str]], tested: Mapping[str, Set[str]]
) -> list[tuple[str, str]]:
    """Lists (function, state) of the first that the second never reached, by function."""
    return [
        (name, state)
        for name, states in sorted(drawn.items())
        for state in sorted(states - tested.get(name, set()))
    ]


def pytest_sessionstart(session: Any) -> None:
    session.config.states = recorder = Recorder()
    sys.setprofile(recorder)


def pytest_sessionfinish(session: Any) -> None:
    sys.setprofile(None)
    session.config.states.add_to(Path(os.environ["STATES"]))


def main() -> None:
    drawn, tested = (read_states(Path(path)) for path in sys.argv[1:3])
    found = new_states(drawn, tested)
    for name, state in found:
        print(f"{name}: {state}")
    count = sum(map(len, drawn.values()))
    print(f"{len(found)} of {count} states were not reached by the tests; most are in:")
    for name, number in Counter(name.partition(" ")[0] for name, _ in found).most_common(10):
        print(f"{number:>6}  {name}")


if __name__ == "__main__":
    main()
