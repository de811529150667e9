"""Parses study files, and explains YAML errors with file and line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

import yaml

from dpprobe.errors import ConfigError
from dpprobe.files.plain_files import read_bounded
from dpprobe.wrong_keys_and_values import check_extent

_NUMBERS, _LONGEST_NUMBER = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"), 100
_LARGEST_STUDY, _LONG_STUDY, _MOST_NODES, _DEEPEST = 1 << 22, 1 << 17, 100_000, 100
_TOO_DEEP = "brackets nested too deeply to be read; remove some"
_MERGE = "tag:yaml.org,2002:merge"
_FAST_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Integers that YAML does not read as decimal: 010 is 8, and 1:30 is 90.
_OTHER_BASE = re.compile(r"[-+]?(?:0[0-7_]+|[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?)")


def written_path(path: Path) -> Path:
    """Returns a path as the user wrote it, without Snakemake's working directory."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def check_yaml(path: Path) -> None:
    """Checks a study's file for duplicate keys, because YAML readers silently use the last key.

    Raises ConfigError, with file, line and key, if a key appears twice, or if the file is missing,
    not YAML or not a mapping.
    """
    root = parse_yaml(path)
    if not isinstance(root, yaml.MappingNode):
        content = "empty" if root is None else "no mapping"
        raise ConfigError(
            f"{path}: {content}; write a study, which consists of keys and their values"
        )
    for node in _list_nodes(root):
        if isinstance(node, yaml.MappingNode):
            _check_keys(path, node)


def _list_nodes(root: yaml.Node) -> Iterator[yaml.Node]:
    """Yields each node once, although aliases may refer to it several times."""
    pending: list[yaml.Node] = [root]
    seen: set[int] = set()
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if isinstance(node, yaml.SequenceNode):
            pending.extend(node.value)
        elif isinstance(node, yaml.MappingNode):
            pending.extend(chain.from_iterable(node.value))


def parse_yaml(path: Path) -> yaml.Node | None:
    """Reads a YAML file's root node; None if empty; raises ConfigError with file and line."""
    try:
        text = read_bounded(path, _LARGEST_STUDY).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(
            f"{path}:{line}: byte {error.object[error.start]:#x} is not UTF-8; save the "
            "file as UTF-8"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error}); name a YAML file") from None
    try:
        # `compose` below explains errors; libyaml's newest versions have a limit of levels, too
        with suppress(yaml.YAMLError):
            _check_extent(path, text)
        # the fast loader accepts more than Snakemake's loader, such as tabs
        loader = yaml.SafeLoader if len(text) < _LONG_STUDY else _FAST_LOADER
        root = yaml.compose(text, Loader=loader)
        merged: dict[int, int] = {}
        for node in _list_nodes(root) if root else ():
            _check_number(path, node)
            if _count_merged(node, merged) > _MOST_NODES:
                raise ConfigError(f"{path}: `<<` merges more than {_MOST_NODES:,} keys; use fewer")
        check_extent(yaml.load(text, Loader=loader), str(path))
        return root
    except RecursionError:
        raise ConfigError(f"{path}: {_TOO_DEEP}") from None
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"{path}{_describe_fault(error)}") from None
    except (yaml.YAMLError, ValueError) as error:  # such as a control character, or month 13
        said = " ".join(str(error).split())
        raise ConfigError(f"{path}: not YAML ({said}); correct it") from None


def _check_extent(path: Path, text: str) -> None:
    """Raises ConfigError for too many levels or values, which would take minutes to read."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_FAST_LOADER)):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:  # loaders would overflow
            raise ConfigError(f"{path}: {_TOO_DEEP}")
        if count > _MOST_NODES:
            raise ConfigError(f"{path}: more than {_MOST_NODES:,} keys and values; use fewer")


def _count_merged(node: yaml.Node, known: dict[int, int], levels: int = 0) -> int:
    """Counts the keys of a mapping as loaders do: merged mappings (`<<`) count at each merge."""
    if levels > _DEEPEST:
        return _MOST_NODES + 1
    if isinstance(node, yaml.SequenceNode):
        return sum(_count_merged(each, known, levels + 1) for each in node.value) if levels else 0
    if not isinstance(node, yaml.MappingNode):
        return 0
    if id(node) not in known:
        merges = (value for key, value in node.value if key.tag == _MERGE)
        known[id(node)] = len(node.value) + sum(
            _count_merged(value, known, levels + 1) for value in merges
        )
    return known[id(node)]


def _check_number(path: Path, node: yaml.Node) -> None:
    """Raises ConfigError for endless numbers, and numbers that YAML and people read differently."""
    if not isinstance(node, yaml.ScalarNode) or node.tag not in _NUMBERS:
        return
    text, where = node.value, f"{path}:{node.start_mark.line + 1}"
    if len(text) > _LONGEST_NUMBER:
        raise ConfigError(f"{where}: a number of {len(text):,} characters; choose a shorter one")
    if "inf" not in text.lower() and node.tag == _NUMBERS[1] and math.isinf(yaml.safe_load(text)):
        raise ConfigError(f"{where}: {text}: too large for a number; choose a smaller one, or .inf")
    if _OTHER_BASE.fullmatch(text):
        value = yaml.safe_load(text)
        raise ConfigError(
            f"{where}: {text}: YAML reads this number as {value}; write {value}, or your number "
            "without colons and leading zeros, or a string in quotes"
        )


# Remedies, by phrases in the parser's message.
_CURES = {
    "mapping values are not allowed": "indent the line like its neighbours, or "
    "quote a value that contains a colon",
    "could not find expected ':'": "write a key, a colon, a space and the value",
    "expected ',' or": "close the bracket, or write a comma",
    "unknown escape character": "write the value in single quotes, where \\ has no special meaning",
    "cannot start any token": "put the value in quotes",
    "but found '.'": "put the value in quotes",
    "unexpected end of stream": "close the quote",
    "but found another document": "remove the line ---, or make two files",
    "could not determine a constructor": "remove the tag, or put the value in quotes",
}


def _describe_fault(error: yaml.MarkedYAMLError) -> str:
    """Returns an error's line, text and remedy, to append to the path."""
    mark = error.problem_mark or error.context_mark
    problem = " ".join(str(error.problem or error.context).split())
    if mark is None:
        return f": not YAML ({problem}); correct it"
    line = f":{mark.line + 1}"
    if r"'\t'" in problem:
        return (
            f"{line}: a tab, but YAML accepts only spaces here; write two spaces for each level "
            "of indentation"
        )
    if "undefined alias" in problem:
        name = problem.partition("'")[2].partition("'")[0]
        return (
            f"{line}: *{name} refers to a value marked &{name}, but no value above it has this "
            f"mark; add the mark, correct the name, or quote '*{name}' where it is a string"
        )
    cure = next((cure for words, cure in _CURES.items() if words in problem), "correct it")
    context = f" {' '.join(error.context.split())}" if error.context else ""
    if error.context_mark is not None and error.context_mark.line != mark.line:
        context += f" that begins in line {error.context_mark.line + 1}"
    return f"{line}:{mark.column + 1}: not YAML ({problem}{context}); {cure}"


def _check_keys(path: Path, mapping: yaml.MappingNode) -> None:
    lines: dict[tuple[str, str], int] = {}
    for key, _ in mapping.value:
        line = key.start_mark.line + 1
        name = (key.tag, str(key.value))
        if name in lines:
            raise ConfigError(
                f"{path}:{line}: key {key.value!r} appears twice, first in line "
                f"{lines[name]}; rename or remove one"
            )
        lines[name] = line
