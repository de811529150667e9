"""Reads a study from the values in its file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpprobe.study.copies import with_copies
from dpprobe.study.study import Study
from dpprobe.wrong_keys_and_values import validate_options


def load_study(values: Mapping[str, Any]) -> Study:
    """Reads a study from its YAML values; raises ConfigError with one line per fault."""
    return validate_options(Study, with_copies(values), "config")
