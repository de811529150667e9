"""Damages inputs reproducibly by a seed: bytes, values of JSON and YAML, and words of commands."""

from __future__ import annotations

import copy
import random
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeVar

from dpprobe.errors import DpprobeError

T = TypeVar("T")

# Texts that often break parsers.
TEXTS = (
    "",
    " ",
    "nan",
    "NaN",
    "-1",
    "1e999",
    "0x10",
    "1_000",
    "\0",
    "a\0b",
    "\ud800",
    "\u202e",
    "é",
    "e\u0301",
    "../..",
    "/dev/zero",
    "/dev/null",
    "/dev/stdin",
    "/",
    "~",
    "~nobody",
    "a/b",
    "a\\b",
    "a\nb",
    "a,b",
    '"',
    "'",
    "*",
    "[",
    "{",
    "{x}",
    "{x:}",
    "${HOME}",
    "%s",
    "x" * 5000,
    "#offset=0,size=99,member=a.png",
    "9" * 30,
    "inf",
    "null",
    "true",
    "2024-13-45",
    "sgd",
    "csv",
    "parquet",
    "timm",
    "pixels",
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63 - 1,
    2**63,
    10**400,
    0.5,
    -0.0,
    1e308,
    5e-324,
    float("nan"),
    float("inf"),
    [],
    [[]],
    {},
    {"x": 1},
    [None],
    ["a", "a"],
    [1, "a"],
    {"": {}},
    {1: 2},
    *TEXTS,
)


class Hang(BaseException):
    """Raised if an input takes too long; not an Exception, so that no handler catches it."""


@dataclass
class Tally:
    """Counts outcomes by kind of input, and collects failures with their kind and seed."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add_outcome(self, kind: str, seed: int, run: Callable[[], object], seconds: int) -> None:
        """Runs an input and counts its outcome."""
        told, outcome = "", "accepted"
        try:
            with limited(seconds):
                run()
        except DpprobeError as error:
            outcome = "refused" if str(error).strip() else "traceback"
            told = repr(error)
        except SystemExit as error:
            outcome = "refused" if error.code else "accepted"
        except Hang:
            outcome, told = "hang", traceback.format_exc()
        except MemoryError:
            outcome, told = "memory", traceback.format_exc()
        except BaseException:
            outcome, told = "traceback", traceback.format_exc()
        self.counts.setdefault(kind, Counter())[outcome] += 1
        if outcome not in ("refused", "accepted"):
            self.failures.append(f"{kind} {seed}: {outcome}\n{told[-3000:]}")

    def describe_counts(self) -> str:
        """Returns one line per kind of input, and a line with the totals."""
        whole: Counter[str] = sum(self.counts.values(), Counter())
        outcomes = ("refused", "accepted", "traceback", "hang", "memory")
        lines = [f"{'':10} {'inputs':>8} {' '.join(f'{name:>9}' for name in outcomes)}"]
        for kind, counts in [*sorted(self.counts.items()), ("all", whole)]:
            numbers = " ".join(f"{counts[name]:9}" for name in outcomes)
            lines.append(f"{kind:10} {counts.total():8} {numbers}")
        return "\n".join(lines)


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raises Hang in the main thread after `seconds`."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def damage_bytes(chance: random.Random, data: bytes) -> bytes:
    """Returns the bytes with one to four edits."""
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        data = _edit_bytes(chance, data)
    return data


def _edit_bytes(chance: random.Random, data: bytes) -> bytes:
    place = chance.randrange(len(data) + 1)
    size = chance.choice([1, 1, 2, 4, 8, 64, 512])
    new = chance.choice([b"\0", b"\xff", b"\x80", b"9", b"[", chance.randbytes(1)]) * size
    before, part, after = data[:place], data[place : place + size], data[place + size :]
    flipped = bytes(byte ^ (1 << (size & 7)) for byte in part)
    edits = [
        before + new + after,
        before + new + part + after,
        before + after,
        before,
        before + part * 3 + after,
        before + flipped + after,
    ]
    return chance.choice(edits)


def damage_values(chance: random.Random, values: T) -> T:
    """Returns a copy of nested values with one to three places changed, removed or moved."""
    values = copy.deepcopy(values)
    for _ in range(chance.choice([1, 1, 2, 3])):
        places = list(_list_places(values))
        if not places:
            return values
        block, key = chance.choice(places)
        action = chance.random()
        if action < 0.1:
            del block[key]
        elif action < 0.2:
            other, another = chance.choice(places)
            block[key] = copy.deepcopy(other[another]) if another in _keys(other) else None
        elif action < 0.25:
            block[key] = [[[[block[key]]]]]
        elif action < 0.3 and isinstance(block, dict):
            block[chance.choice(TEXTS)] = block.pop(key)
        elif action < 0.4 and isinstance(block[key], int | float) and abs(block[key]) < 2**63:
            block[key] = block[key] * chance.choice([-1, 0, 2, 10, 1e6, 1 + 1e-9])
        else:
            block[key] = copy.deepcopy(chance.choice(VALUES))
    return values


def damage_words(chance: random.Random, words: Sequence[str], known: Sequence[str]) -> list[str]:
    """Returns a command's words with one to three changed, removed, doubled or added."""
    changed = list(words)
    for _ in range(chance.choice([1, 1, 2, 3])):
        place = chance.randrange(len(changed) + 1)
        new = chance.choice([*TEXTS, *known])
        if "\0" in new or "\ud800" in new:  # no system passes these to programs
            new = "--"
        kept = changed[place + 1 :] if chance.random() < 0.6 else changed[place:]
        changed = [*changed[:place], *([new] if chance.random() < 0.8 else []), *kept]
    return changed


def _keys(block: Any) -> list[Any]:
    return list(block) if isinstance(block, dict) else list(range(len(block)))


def _list_places(values: Any) -> Iterator[tuple[Any, Any]]:
    """Yields every block and key below the root."""
    pending = [values]
    while pending:
        block = pending.pop()
        for key in _keys(block):
            yield block, key
            if isinstance(block[key], dict | list):
                pending.append(block[key])
