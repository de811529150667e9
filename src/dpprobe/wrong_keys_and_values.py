"""Reads options, and explains each error in one line: the place, the value, the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from dpprobe.errors import ConfigError
from dpprobe.options import (
    FOLDER_PATTERN,
    NAME_PATTERN,
    REGISTRIES,
    Options,
    options_class,
    registered_name,
    takes_key,
    written_keys,
)

OptionsT = TypeVar("OptionsT", bound=Options)
_REMEDY = "remove it or correct its spelling"
_ALIKE = 0.75  # from 0 to 1, of keys that are taken for one another
# Keys of a study that are gone, and why.
_REMOVED = {
    "features.compile": "no gain was ever measured",
    "tsne.components": "t-SNE starts from 50, and from more where they keep too few neighbours",
    "tsne.perplexity": "it is 30, and less where there are few rows",
}


def validate_options(cls: type[OptionsT], values: Mapping[str, Any], where: str) -> OptionsT:
    """Reads options from plain values.

    Args:
      values: as YAML and rules' params hold them.
      where: begins each line of an error.

    Raises:
      ConfigError: with one line for each thing that is wrong.
    """
    try:
        return cls.model_validate(dict(values))
    except ValidationError as error:
        lines = [f"{where}: {line}" for line in _explain_all(error.errors(), values, cls)]
        raise ConfigError("\n".join(lines)) from None


def read_options(
    registry: Mapping[str, str], key: str, values: Mapping[str, Any], base: type[OptionsT]
) -> OptionsT:
    """Reads options by the module that their `key` names in a registry.

    Args:
      base: the class that all options of the registry derive from.

    Raises:
      ConfigError: with one line for each thing that is wrong.
    """
    try:
        name = registered_name(registry, key, values.get(key))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    options = validate_options(options_class(registry, name), values, key)
    assert isinstance(options, base)
    return options


def _explain_all(
    items: Sequence[Any], values: Mapping[str, Any], cls: type[BaseModel]
) -> list[str]:
    """Returns one line for each thing that is wrong: the alternatives of a union are one thing."""
    groups: dict[tuple[Any, ...], list[tuple[tuple[Any, ...], Any]]] = {}
    for number, item in enumerate(items):
        path, union = _locate_error(item, values)
        place = ("alone", number) if union is None else ("union", *union)
        groups.setdefault(place, []).append((path, item))
    lines = []
    for place, group in groups.items():
        deeper = [pair for pair in group if len(pair[0]) > len(place) - 1]
        if place[0] == "alone" or deeper:
            lines += [_explain_error(path, item, values, cls) for path, item in deeper or group]
            continue
        wanted = [_describe_wanted(item) for _, item in group]
        name = ".".join(map(str, place[1:]))
        lines.append(f"{name}: {group[0][1]['input']!r}: write {' or '.join(wanted)}")
    return lines


def _locate_error(item: Any, values: Any) -> tuple[tuple[Any, ...], tuple[Any, ...] | None]:
    """Returns an error's path in the values, and the path of the union that it is in, if any.

    Pydantic's names of a union's alternatives, which the user has not written, are left out.
    """
    path: list[Any] = []
    union = None
    for part in item["loc"]:
        if part == "[key]":
            continue
        inside: Any = None
        if isinstance(values, Mapping):
            known = part in values or item["type"] == "missing"
            inside = values.get(part)
        else:
            known = isinstance(part, int)
            if known and isinstance(values, Sequence) and part < len(values):
                inside = values[part]
        if known:
            path.append(part)
            values = inside
        elif union is None:
            union = tuple(path)
    return tuple(path), union


def _describe_wanted(item: Any) -> str:
    """Returns the value that one alternative of a union asks for, in words."""
    text = str(item["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
    return text.partition(",")[0] if item["type"].endswith("_parsing") else text


def _unknown_key(place: Sequence[Any], values: Any, cls: type[BaseModel]) -> str:
    """Returns the remedy for a key that is not known: those that take it, or to spell it right."""
    if reason := _REMOVED.get(".".join(map(str, place))):
        return f"this option was removed ({reason}): remove it"
    block: Any = values
    for part in place[:-1]:
        try:
            block = block[part]
        except (KeyError, IndexError, TypeError):  # options that a catalog wrote
            return _REMEDY
    for selector, registry in REGISTRIES.items():
        name = block.get(selector) if isinstance(block, Mapping) else None
        if not isinstance(name, str) or name not in registry:
            continue
        takers = [other for other in registry if takes_key(registry, other, place[-1])]
        if takers:
            counterpart = options_class(registry, name).suggest_key(str(place[-1]))
            remedy = f"remove it, or write {counterpart}" if counterpart else "remove it"
            return (
                f"{selector} {name} has none of that name, which is of {selector} "
                f"{', '.join(takers)}; {remedy}"
            )
    close = difflib.get_close_matches(str(place[-1]), _known_keys(place, values, cls), 2, _ALIKE)
    return f"write {' or '.join(close)}, or remove it" if close else _REMEDY


def _known_keys(place: Sequence[Any], values: Any, cls: type[BaseModel]) -> list[str]:
    """Lists the keys that the block has in which a key stands."""
    classes = [cls]
    for part in place[:-1]:
        values = values[part]
        fields = [each.model_fields[part] for each in classes if part in each.model_fields]
        if fields:  # a name or a number, as of a dataset, is in the field's own kind
            classes = [inner for field in fields for inner in _list_classes(field.annotation)]
        if isinstance(values, Mapping):
            classes = [
                options_class(registry, name)
                for selector, registry in REGISTRIES.items()
                if isinstance(name := values.get(selector), str) and name in registry
            ] or classes
    return sorted({name for each in classes for name in written_keys(each)})


def _list_classes(annotation: Any) -> list[type[BaseModel]]:
    """Lists the blocks of options that an annotation names, at any depth."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [cls for inner in get_args(annotation) for cls in _list_classes(inner)]


def _explain_error(place: Sequence[Any], item: Any, values: Any, cls: type[BaseModel]) -> str:
    """Returns one line for one of pydantic's errors: the place, the value, the remedy."""
    path = ".".join(map(str, place))
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        return f"{path}: unknown key; {_unknown_key(place, values, cls)}"
    if item["type"] == "missing":
        return f"{path}: missing; it must be given"
    if item["type"] == "string_pattern_mismatch" and NAME_PATTERN in item["ctx"]["pattern"]:
        return f"{path}: a name is lower-case letters, digits and underscores"
    if item["type"] == "string_pattern_mismatch" and FOLDER_PATTERN in item["ctx"]["pattern"]:
        return (
            f"{path}: {item['input']!r}: a folder's path without spaces, ~, doubled slashes, "
            "braces and other signs that paths in rules cannot have; write another"
        )
    if item["type"] == "value_error":
        return f"{path}: {message}" if path else message
    return f"{path}: {item['input']!r}: {message[0].lower()}{message[1:]}"
