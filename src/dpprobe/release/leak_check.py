"""Searches bundles and their facts for keys and texts that look private: paths, times, seeds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dpprobe.errors import DataError

FORBIDDEN_KEYS = re.compile(
    r"(?i)(^|_)(seeds?|fingerprints?|user(name)?|host(name)?|path|folder|time(stamp)?|date|"
    r"created|started|seconds|duration|git_?commit|identity|near_duplicates|histor(y|ies)|"
    r"predictions?|test_ids)$"
)
PUBLIC_KEYS = {"crop_seed", "public_seed"}
FORBIDDEN_TEXTS = {
    "a path": re.compile(
        r"(?<![\w.:/<])/(home|Users|root|tmp|mnt|var|usr|data|work|scratch|media|opt|srv|private)/"
        r"|\b[A-Za-z]:\\{1,2}[A-Z]|file://|(?<!\w)~/"
    ),
    "a time": re.compile(r"\b(19|20)\d\d-[01]\d-[0-3]\d[T ][0-2]\d:[0-5]\d"),
    "a number of 128 bits, like a seed": re.compile(r"(?<![0-9A-Fa-f])[0-9a-f]{32}(?![0-9a-fA-F])"),
}


def check_published(values: Mapping[str, Any]) -> None:
    """Raises DataError if a block that will be published has a forbidden key or text."""
    for name, block in values.items():
        check_keys(block, where=name)
        check_text(json.dumps(block, ensure_ascii=False), where=name)


def check_keys(values: Any, *, where: str) -> None:
    keys = {key for key in _all_keys(values) if FORBIDDEN_KEYS.search(key)} - PUBLIC_KEYS
    if keys:
        raise DataError(f"{where}: contains {', '.join(sorted(keys))}, which must not be published")


def check_text(text: str, *, where: str) -> None:
    for what, pattern in FORBIDDEN_TEXTS.items():
        if match := pattern.search(text):
            raise DataError(f"{where}: contains {what}, {match[0]!r}, which must not be published")


def _all_keys(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key)
            yield from _all_keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _all_keys(inner)
