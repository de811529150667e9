"""Reads a study and its parts from plain values, as YAML and rules' params hold them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpprobe.backbones.options import BackboneOptions
from dpprobe.backbones.registry import FAMILIES
from dpprobe.data.options import DatasetOptions
from dpprobe.data.registry import SOURCES
from dpprobe.errors import ConfigError
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import HEADS
from dpprobe.options import options_class, registered_name
from dpprobe.study.messages import OptionsT, validated
from dpprobe.study.study import Study


def load_study(values: Mapping[str, Any]) -> Study:
    """Checks a configuration as read from YAML.

    Raises:
      ConfigError: with one line for each thing that is wrong.
    """
    return validated(Study, values, "config")


def dataset_options(values: Mapping[str, Any]) -> DatasetOptions:
    """A dataset's options from their serialised form, as a rule's params carry them."""
    return _by_registry(SOURCES, "source", values, DatasetOptions)  # type: ignore[type-abstract]


def backbone_options(values: Mapping[str, Any]) -> BackboneOptions:
    """A backbone's options from their serialised form."""
    return _by_registry(FAMILIES, "family", values, BackboneOptions)  # type: ignore[type-abstract]


def method_options(values: Mapping[str, Any]) -> MethodOptions:
    """A method's options from their serialised form."""
    return _by_registry(HEADS, "head", values, MethodOptions)  # type: ignore[type-abstract]


def _by_registry(
    registry: Mapping[str, str], key: str, values: Mapping[str, Any], base: type[OptionsT]
) -> OptionsT:
    try:
        name = registered_name(registry, key, values.get(key))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    options = validated(options_class(registry, name), values, key)
    assert isinstance(options, base)
    return options


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
