"""Reads a study from plain values, as YAML holds them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpprobe.errors import ConfigError
from dpprobe.messages import validated
from dpprobe.study.study import Study


def load_study(values: Mapping[str, Any]) -> Study:
    """Checks a configuration as read from YAML.

    Raises:
      ConfigError: with one line for each thing that is wrong.
    """
    return validated(Study, values, "config")


def check_yaml(path: Path) -> None:
    """Checks what YAML readers let pass: of a key that stands twice they keep the last, silently.

    Raises:
      ConfigError: for a file that is missing, is not YAML, holds no mapping, or has a key twice
        in one mapping: naming file, line and key.
    """
    import yaml

    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); name a YAML file") from None
    except yaml.YAMLError as error:
        line = " ".join(str(error).split())
        raise ConfigError(f"{path}: not YAML ({line}); correct it") from None
    if not isinstance(root, yaml.MappingNode):
        found = "empty" if root is None else "no mapping"
        raise ConfigError(f"{path}: {found}; write a study, that is keys and their values")
    pending: list[Any] = [root]
    seen: set[int] = set()
    while pending:
        node = pending.pop()
        if id(node) in seen or isinstance(node, yaml.ScalarNode):
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            pending.extend(node.value)
            continue
        lines: dict[tuple[str, str], int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            name = (key.tag, str(key.value))
            if name in lines:
                raise ConfigError(
                    f"{path}: line {line}: key {key.value!r} stands twice, first in line "
                    f"{lines[name]}; rename or remove one"
                )
            lines[name] = line
            pending.append(value)
