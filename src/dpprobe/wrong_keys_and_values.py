"""Reads options, and explains each error in one line: the key, its value and the remedy."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
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
from dpprobe.shown_text import join_lines

OptionsT = TypeVar("OptionsT", bound=Options)
_REMEDY = "remove it or correct its spelling"
_LONGEST = 100  # number of characters of a value that an error shows
_DEEPEST, _MOST_VALUES = 32, 300_000
_NO_TEXT = re.compile("[\0\ud800-\udfff]")  # characters that paths or UTF-8 cannot have
_ALIKE = 0.75  # keys with at least this similarity, from 0 to 1, may be misspellings
# The expected value in words, by pydantic's type of error; pydantic fills in numbers in braces.
_WANTED = {
    **dict.fromkeys(["string_type", "string_unicode", "string_sub_type"], "a string"),
    **dict.fromkeys(
        ["int_type", "int_from_float", "int_parsing", "int_parsing_size"], "a whole number"
    ),
    **dict.fromkeys(["float_type", "float_parsing"], "a number"),
    **dict.fromkeys(["bool_type", "bool_parsing"], "true or false"),
    **dict.fromkeys(["list_type", "tuple_type", "set_type", "frozen_set_type"], "a list"),
    **dict.fromkeys(
        ["dict_type", "mapping_type", "model_type", "model_attributes_type"],
        "a mapping (keys and their values)",
    ),
    "finite_number": "a finite number",
    "none_required": "null",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number of {ge} or more",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number of {le} or less",
    "too_short": "a list or mapping with {min_length} or more entries",
    "too_long": "a list or mapping with {max_length} or fewer entries",
    "string_too_short": "a string of {min_length} or more characters",
    "string_too_long": "a string of {max_length} or fewer characters",
    "string_pattern_mismatch": "a string that matches {pattern}",
    "literal_error": "{expected}",
    "invalid_key": "a string as the key",
}


def validate_options(cls: type[OptionsT], values: Mapping[str, Any], where: str) -> OptionsT:
    """Reads values as options; raises ConfigError: one line per fault, starting with `where`."""
    check_extent(values, where)
    try:
        return cls.model_validate(dict(values))
    except ValidationError as error:
        lines = [f"{where}: {line}" for line in _explain_all(error.errors(), values, cls)]
        raise ConfigError(join_lines(lines)) from None


def read_options(
    registry: Mapping[str, str], key: str, values: Mapping[str, Any], base: type[OptionsT]
) -> OptionsT:
    """Reads values as the options that `key` selects; raises ConfigError, one line per fault."""
    try:
        name = registered_name(registry, key, values.get(key))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    options = validate_options(options_class(registry, name), values, key)
    assert isinstance(options, base)
    return options


def check_extent(values: Any, where: str) -> None:
    """Raises ConfigError for values that no option accepts, and that could overflow or fill memory.

    Refuses integers beyond 64 bits, texts that cannot be written to files, and too many or too
    deeply nested values. With aliases, a few lines of YAML can become billions of values.
    """
    pending: list[tuple[tuple[Any, ...], Any]] = [((), values)]
    for count in itertools.count(1):
        if not pending:
            return
        place, value = pending.pop()
        if fault := _extent_fault(value, len(place), count):
            raise ConfigError(f"{where}: {'.'.join(map(str, place[:6])):.200}: {fault}")
        if isinstance(value, Mapping):
            pending += [((*place, key), each) for key, each in value.items()]
            pending += [((*place, "key"), key) for key in value]
        elif isinstance(value, list | tuple):
            pending += [((*place, key), each) for key, each in enumerate(value)]


def _extent_fault(value: Any, levels: int, count: int) -> str | None:
    if levels > _DEEPEST or count > _MOST_VALUES:
        return f"more than {_DEEPEST} levels or {_MOST_VALUES:,} values; use fewer"
    if isinstance(value, int) and abs(value) >= 2**63:
        return "a number beyond 64 bits; use a smaller number"
    if isinstance(value, str) and _NO_TEXT.search(value):
        what = "contains a NUL character or half a character (a lone surrogate); remove it"
        return f"{value!r:.60}: {what}"
    return None


def _explain_all(
    items: Sequence[Any], values: Mapping[str, Any], cls: type[BaseModel]
) -> list[str]:
    """Returns one line per fault; all alternatives of a union count as one fault."""
    groups: dict[tuple[Any, ...], list[tuple[tuple[Any, ...], Any]]] = {}
    for number, item in enumerate(items):
        if item["type"] == "too_short" and len(item["input"]) >= item["ctx"]["min_length"]:
            continue  # only entries of the list are wrong, and other errors explain them
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
        lines.append(f"{name}: {_shorten(group[0][1]['input'])}: must be {' or '.join(wanted)}")
    return lines


def _locate_error(item: Any, values: Any) -> tuple[tuple[Any, ...], tuple[Any, ...] | None]:
    """Returns the path of an error in the values, and the path of the surrounding union, if any.

    Omits pydantic's names for the alternatives of a union, which the user has not written.
    """
    path: list[Any] = []
    union = None
    for place, part in enumerate(item["loc"], start=1):
        if part == "[key]":
            continue
        inside: Any = None
        if isinstance(values, Mapping):
            known = part in values or (item["type"] == "missing" and place == len(item["loc"]))
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
    if item["type"] in ("value_error", "assertion_error"):
        return str(item["ctx"]["error"])
    if item["type"] == "string_type" and not isinstance(item["input"], Mapping | list):
        return "a string in quotes"  # YAML reads 2024, yes and null as other values
    numbers = {name: _spell_number(value) for name, value in item.get("ctx", {}).items()}
    return _WANTED.get(item["type"], "another value").format(**numbers)


def _spell_number(value: Any) -> Any:
    """Formats a float without exponent or ".0"; returns other values unchanged."""
    return f"{Decimal(repr(value)):f}".removesuffix(".0") if isinstance(value, float) else value


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def explain_first(error: ValidationError) -> str:
    """Explains the first fault in values that dpprobe wrote, such as a record's."""
    return explain_fault(error.errors()[0])


def explain_fault(item: Any) -> str:
    """Explains one of pydantic's errors: the key, its value, and the expected value."""
    path, wanted = ".".join(map(str, item["loc"])), _describe_wanted(item)
    if item["type"] == "value_error":
        return f"{path}: {wanted}" if path else wanted
    short = {"extra_forbidden": "unknown key", "missing": "missing"}.get(item["type"])
    return f"{path}: " + (short or f"{_shorten(item['input'])} instead of {wanted}")


def _unknown_key(place: Sequence[Any], values: Any, cls: type[BaseModel]) -> str:
    block: Any = values
    for part in place[:-1]:
        try:
            block = block[part]
        except (KeyError, IndexError, TypeError):  # the options come from the catalog
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
                f"{selector} {name} does not take it (it is an option of {selector} "
                f"{', '.join(takers)}); {remedy}"
            )
    # an alternative of a union may accept the same key
    known = [key for key in _known_keys(place, values, cls) if key != place[-1]]
    close = difflib.get_close_matches(str(place[-1]), known, 2, _ALIKE)
    return f"write {' or '.join(close)}, or remove it" if close else _REMEDY


def _known_keys(place: Sequence[Any], values: Any, cls: type[BaseModel]) -> list[str]:
    """Lists the known keys of the block that contains the last key of `place`."""
    classes = [cls]
    for part in place[:-1]:
        values = values[part]
        fields = [each.model_fields[part] for each in classes if part in each.model_fields]
        if fields:  # not for a dataset's name or an index, which are no fields
            classes = [inner for field in fields for inner in list_classes(field.annotation)]
        if isinstance(values, Mapping):
            classes = [
                options_class(registry, name)
                for selector, registry in REGISTRIES.items()
                if isinstance(name := values.get(selector), str) and name in registry
            ] or classes
    return sorted({name for each in classes for name in written_keys(each)})


def list_classes(annotation: Any) -> list[type[BaseModel]]:
    """Lists the options classes in an annotation, also inside unions and lists."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [cls for inner in get_args(annotation) for cls in list_classes(inner)]


def _explain_error(place: Sequence[Any], item: Any, values: Any, cls: type[BaseModel]) -> str:
    path = ".".join(map(str, place))
    if item["type"] == "extra_forbidden":
        return f"{path}: unknown key; {_unknown_key(place, values, cls)}"
    if item["type"] == "missing":
        return f"{path}: missing; add this key"
    if item["type"] == "string_pattern_mismatch" and NAME_PATTERN in item["ctx"]["pattern"]:
        return f"{path}: a name has only lower-case letters, digits and underscores; rename it"
    if item["type"] == "string_pattern_mismatch" and FOLDER_PATTERN in item["ctx"]["pattern"]:
        return (
            f"{path}: {_shorten(item['input'])}: a folder's path must have no spaces, no ~, no "
            "double slashes, no braces and no other special characters; choose another"
        )
    wanted = _describe_wanted(item)
    if item["type"] == "value_error":
        return f"{path}: {wanted}" if path else wanted
    return f"{path}: {_shorten(item['input'])}: must be {wanted}"
