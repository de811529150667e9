"""Reads a study from its file or from the values that the file holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from dpprobe.errors import ConfigError
from dpprobe.messages import validated
from dpprobe.study.study import Study


def load_study(values: Mapping[str, Any]) -> Study:
    """Reads a study from the values of its YAML file.

    Raises:
      ConfigError: with one line for each thing that is wrong.
    """
    return validated(Study, values, "config")


def check_yaml(path: Path) -> None:
    """Checks a study's file for duplicate keys, of which YAML readers silently keep the last.

    Raises:
      ConfigError: for a file that is missing, is not YAML, holds no mapping, or has a key twice
        in one mapping: naming file, line and key.
    """
    root = _parse_yaml(path)
    if not isinstance(root, yaml.MappingNode):
        content = "empty" if root is None else "no mapping"
        raise ConfigError(f"{path}: {content}; write a study, that is keys and their values")
    pending: list[yaml.Node] = [root]
    seen: set[int] = set()
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            pending.extend(node.value)
        elif isinstance(node, yaml.MappingNode):
            _check_keys(path, node)
            pending.extend(value for _, value in node.value)


def _parse_yaml(path: Path) -> yaml.Node | None:
    try:
        root: yaml.Node | None = yaml.compose(
            path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader
        )
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); name a YAML file") from None
    except yaml.YAMLError as error:
        line = " ".join(str(error).split())
        raise ConfigError(f"{path}: not YAML ({line}); correct it") from None
    return root


def _check_keys(path: Path, mapping: yaml.MappingNode) -> None:
    lines: dict[tuple[str, str], int] = {}
    for key, _ in mapping.value:
        line = key.start_mark.line + 1
        name = (key.tag, str(key.value))
        if name in lines:
            raise ConfigError(
                f"{path}: line {line}: key {key.value!r} stands twice, first in line "
                f"{lines[name]}; rename or remove one"
            )
        lines[name] = line
