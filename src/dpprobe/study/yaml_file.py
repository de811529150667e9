"""Reads the YAML of a study's file, and explains YAML errors with their lines."""

from __future__ import annotations

from pathlib import Path

import yaml

from dpprobe.artifacts import require_plain_file
from dpprobe.errors import ConfigError


def written_path(path: Path) -> Path:
    """Returns a path as the user wrote it, without Snakemake's working directory."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def check_yaml(path: Path) -> None:
    """Checks a study's file for duplicate keys, because YAML readers silently use the last key.

    Raises ConfigError, naming file, line and key, if a key appears twice, or the file is missing,
    not YAML or no mapping.
    """
    root = parse_yaml(path)
    if not isinstance(root, yaml.MappingNode):
        content = "empty" if root is None else "no mapping"
        raise ConfigError(
            f"{path}: {content}; write a study, which consists of keys and their values"
        )
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


def parse_yaml(path: Path) -> yaml.Node | None:
    """Reads a YAML file's nodes; None if the file is empty; ConfigError names file and line."""
    try:
        require_plain_file(path)
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(
            f"{path}:{line}: byte {error.object[error.start]:#x} is not UTF-8; save the "
            "file with that encoding"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error}); name a YAML file") from None
    try:
        yaml.safe_load(text)  # raises for a value that cannot be read
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"{path}{_describe_fault(error)}") from None
    except RecursionError:
        raise ConfigError(f"{path}: brackets nested too deeply to be read; remove some") from None
    except (yaml.YAMLError, ValueError) as error:  # such as a control character, or month 13
        said = " ".join(str(error).split())
        raise ConfigError(f"{path}: not YAML ({said}); correct it") from None


# Remedies, by words in the parser's message.
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
    """Returns an error's line, text and remedy, to write after the path."""
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
            f"mark; add the mark, correct the name, or quote '*{name}' where it is a text"
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
