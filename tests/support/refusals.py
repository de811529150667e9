"""Checks that an error names the object, the value and the remedy, with any wording.

Tables contain changes of valid values, and the lines of the resulting error.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpprobe.errors import DpprobeError


def read_refusals(path: Path, base: Mapping[str, Any]) -> list[Any]:
    """Reads a table of cases: each has changed values, files, and the lines of the error.

    An accepted case has no lines.
    """
    cases = []
    for group, table in yaml.safe_load(path.read_text(encoding="utf-8")).items():
        valid = {**copy.deepcopy(dict(base)), **table.get("study", {})}
        rows = [(each, each["says"]) for each in table["cases"]]
        rows += [({"change": change}, []) for change in table.get("accepted", ())]
        for number, (each, says) in enumerate(rows, start=1):
            lines = [says] if isinstance(says, str) else says
            files = {**table.get("files", {}), **each.get("files", {})}
            change = each.get("change", {})
            name = f"{group} {number}: {', '.join(map(str, change or files))}"
            cases.append(pytest.param(change_values(valid, change), files, lines, id=name))
    return cases


def write_files(folder: Path, files: Mapping[str, str | bytes | None]) -> None:
    """Writes the files of a case into a folder; None omits a file of its group."""
    for name, content in files.items():
        if content is not None:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)


def change_values(values: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of nested values with changes by dotted path; `...` removes a key.

    YAML tables write "..." instead.
    """
    changed = copy.deepcopy(dict(values))
    for path, value in change.items():
        *parents, last = path.split(".")
        place: Any = changed
        for name in parents:
            place = place[int(name)] if isinstance(place, list) else place.setdefault(name, {})
        key = int(last) if isinstance(place, list) else last
        if value in (..., "..."):
            del place[key]
        else:
            place[key] = value
    return changed


def check_lines(text: str, says: Sequence[str]) -> None:
    """Checks that a study's error has exactly the lines `says`, where " ... " matches any text."""
    lines = text.splitlines()
    assert len(lines) == len(says), text
    for line, said in zip(lines, says, strict=True):
        pattern = ".*".join(map(re.escape, f"config: {said}".split(" ... ")))
        assert re.fullmatch(pattern, line), f"{line!r} is not {said!r}"


@contextmanager
def refuses(
    error: type[BaseException] | tuple[type[BaseException], ...], *tokens: object
) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """Checks that a block raises an error with a one-line message that contains all tokens.

    Tokens are what a person needs from the message, however it is worded: the wrong object, its
    value, and the key, option or path that fixes it.
    """
    with pytest.raises(error) as raised:
        yield raised
    message = str(raised.value)
    assert "\n" not in message, message
    check_tokens(message, *tokens)


def check_tokens(text: str, *tokens: object) -> None:
    """Checks that a text contains all tokens as whole words: 0.25 does not contain 0.2."""
    for token in map(str, tokens):
        before = r"(?<!\w)(?<!\d\.)" if re.match(r"\w", token) else ""
        after = r"(?!\w)(?!\.\d)" if re.search(r"\w$", token) else ""
        found = re.search(f"{before}{re.escape(token)}{after}", text)
        assert found, f"{token!r} is not in: {text}"


def refusal_of(call: Callable[..., object], *given: Any, **named: Any) -> str | None:
    """Returns the message of a DpprobeError that a call raises; None if it raises none."""
    try:
        call(*given, **named)
    except DpprobeError as error:
        return str(error)
    return None
