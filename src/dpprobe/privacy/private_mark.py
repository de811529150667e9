"""Marks heads that were trained on private examples: no study may use such a head as public.

The metadata of a head's file names its cell. The mark survives copying and renaming the file, but
is lost if the weights are saved to another file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from dpprobe.errors import PrivacyError
from dpprobe.json_values import canonical_json

FORMAT = "dpprobe-heads"
FORMAT_VERSION = 1
# a single key, because safetensors writes several keys in random order
KEY = "dpprobe"


def mark_metadata(cell: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, str]:
    """Returns the metadata of a file of heads that were trained on private examples."""
    mark = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "private_rows": dict(cell),
        "options": dict(options),
    }
    return {KEY: canonical_json(mark)}


def check_unmarked(path: Path, *, option: str, written: str) -> None:
    """Raises PrivacyError for a file of heads that were trained on private examples.

    Ignores a file that cannot be read, because its reader will report the error.
    """
    try:
        with safe_open(path, framework="numpy") as stream:
            mark = json.loads((stream.metadata() or {})[KEY])
    except (OSError, SafetensorError, KeyError, ValueError):
        return
    if not isinstance(mark, Mapping):
        return
    # a network's training checkpoint has only its head's options
    if mark.get("format") == FORMAT or "head" in mark:
        raise PrivacyError(
            f"{option} {written}: {_describe_origin(mark)}. Epsilon does not cover a start from "
            "private results; name a file that derives only from public data"
        )


def _describe_origin(mark: Mapping[str, Any]) -> str:
    cell = mark.get("private_rows")
    if not isinstance(cell, Mapping):
        return f"heads that {mark.get('head', 'a method')} trained on private rows"
    return (
        f"heads that {cell.get('method')} trained on private rows of {cell.get('dataset')} at "
        f"epsilon {cell.get('epsilon')}"
    )
