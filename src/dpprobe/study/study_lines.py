"""Finds the files and lines of a study's keys, for error messages.

Checks see only a study's values, not its files, so their errors begin with `config: ` and the key.
`StudyLines` replaces `config` with the file and the line of the key.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import yaml

from dpprobe.errors import ConfigError
from dpprobe.shown_text import join_lines
from dpprobe.study.copies import PARTS
from dpprobe.study.yaml_file import parse_yaml

COMMAND_LINE = "--config"  # the option of Snakemake that sets values of a study
_PREFIX = "config: "
_MERGE = "tag:yaml.org,2002:merge"
_BOUNDARY = re.compile(r"[.:;, ]|$")
_OTHER_PART = re.compile(r" on [^:]+(?=: )")  # as in `methods.sgd on datasets.digits: ...`


class _Source(NamedTuple):
    """The root YAML node of a file, or of the options on a command line."""

    name: str
    node: yaml.Node


@dataclass(frozen=True, kw_only=True)
class _Found:
    """A key of the study, found at the beginning of a text.

    Attributes:
      values: the key's values in the sources that have the key.
      rest: the text after the key.
      place: the key's file and line.
      dotted: True if a dot precedes `rest`, which then begins with a key.
    """

    values: Sequence[_Source] = ()
    rest: str = ""
    place: str | None = None
    dotted: bool = False


@dataclass(frozen=True, kw_only=True)
class StudyLines:
    """The files and options of a study, which are read when an error needs them.

    Attributes:
      files: the files in Snakemake's order; the last file that sets a key counts.
      overrides: values from the command line, which override all files.
      block: the dotted key under which the files have the study; empty if at the top level.
      origin: the name in errors for a study without files.
    """

    files: Sequence[Path]
    overrides: Mapping[str, Any] = field(default_factory=dict)
    block: str = ""
    origin: str = COMMAND_LINE

    @contextmanager
    def name_lines(self) -> Iterator[None]:
        """Adds the file and line of each key to a ConfigError raised in the `with` block."""
        try:
            yield
        except ConfigError as error:
            lines = str(error).splitlines()
            for number, line in enumerate(lines):
                if line.startswith(_PREFIX):
                    text = line.removeprefix(_PREFIX)
                    lines[number] = f"{self.find_place(text)}: {text}"
            raise type(error)(join_lines(lines)) from error

    def find_place(self, text: str) -> str:
        """Returns `file:line` of the key at the start of a text, such as `methods.sgd.steps: 0`.

        For a missing key, returns its block's line; at the top level, only the files' names.
        """
        rest = f"{self.block}.{text}" if self.block else text
        match: _Found | None = _Found(values=self._sources, rest=rest)
        place = None
        while match is not None:
            place = match.place
            match = _match_key(match) or _match_value(match)
        return place or ", ".join(map(str, self.files)) or self.origin

    @cached_property
    def _sources(self) -> list[_Source]:
        roots = [(str(path), parse_yaml(path)) for path in self.files]
        if self.overrides:
            values = json.loads(json.dumps(self.overrides, default=str))
            roots.append((COMMAND_LINE, yaml.SafeDumper(io.StringIO()).represent_data(values)))
        written = [_Source(name, root) for name, root in roots if _is_mapping(root)]
        return [*_list_copies(written), *written]


def _list_copies(written: Sequence[_Source]) -> Iterator[_Source]:
    """Yields the options from `copies`, as if they were written in the study's parts.

    These sources must precede the written sources, so that lines in the parts take precedence.
    """
    for taker in written:
        for part, kind in PARTS.items():
            for _, key, options in _list_items(_find_node(taker.node, part)):
                entry = _find_node(options, "catalog")
                for source in written if isinstance(entry, yaml.ScalarNode) else ():
                    copy = _find_node(source.node, "copies", kind, str(entry.value))
                    if _is_mapping(copy):
                        block = (yaml.ScalarNode("", part), yaml.MappingNode("", [(key, copy)]))
                        yield _Source(source.name, yaml.MappingNode("", [block]))


def _find_node(node: yaml.Node, *keys: str) -> yaml.Node:
    """Returns the node under keys; an empty scalar if there is none."""
    for key in keys:
        inner = {name: value for name, _, value in _list_items(node)}
        node = inner.get(key, yaml.ScalarNode("", ""))
    return node


def _match_key(match: _Found) -> _Found | None:
    """Follows the longest key at the start of a text; None if there is no key."""
    text = match.rest
    items = [(source, *item) for source, node in match.values for item in _list_items(node)]
    fitting = [
        name
        for _, name, _, _ in items
        # after a colon, a number is a value and not a position in a list
        if text.startswith(name)
        and _BOUNDARY.match(text, len(name))
        and (match.dotted or not name.isdigit())
    ]
    if not fitting:
        return None
    longest = max(fitting, key=len)
    values: list[_Source] = []
    place = None
    for source, name, key, value in items:
        if name == longest:
            place = _describe_place(source, key)
            # mappings are merged key by key; any other value replaces earlier values
            merged = bool(values) and _is_mapping(value) and _is_mapping(values[-1].node)
            values = [*(values if merged else ()), _Source(source, value)]
    rest = text[len(longest) :]
    if rest.startswith("."):
        return _Found(values=values, rest=rest[1:], place=place, dotted=True)
    rest = _OTHER_PART.sub("", rest, count=1) if rest.startswith(" on ") else rest
    if rest.startswith(": "):
        return _Found(values=values, rest=rest[2:], place=place)
    return _Found(place=place)


def _match_value(match: _Found) -> _Found | None:
    """Finds the value in a block (such as a path) with which a text begins."""
    if match.dotted:
        return None
    value = match.rest.partition(": ")[0].strip("'")
    word = match.rest.partition(" ")[0].strip("':,;")
    for source, node in reversed(match.values):
        in_list = isinstance(node, yaml.SequenceNode)
        for _, key, inner in _list_items(node):
            for each in inner.value if isinstance(inner, yaml.SequenceNode) else [inner]:
                if not isinstance(each, yaml.ScalarNode) or not each.value:
                    continue
                if each.value == value or (in_list and each.value == word):
                    near = each if inner is not each else key
                    return _Found(place=_describe_place(source, near))
    return None


def _list_items(node: yaml.Node) -> list[tuple[str, yaml.Node, yaml.Node]]:
    """Lists each key of a mapping, or position in a list, as (text, key's node, value's node).

    Keys that are merged from another mapping by `<<` have the lines of that mapping.
    """
    if isinstance(node, yaml.SequenceNode):
        return [(str(number), value, value) for number, value in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return []
    items: dict[str, tuple[str, yaml.Node, yaml.Node]] = {}
    for key, value in node.value:
        if key.tag == _MERGE:
            merged = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for each in merged:
                items = {item[0]: item for item in _list_items(each)} | items
    for key, value in node.value:
        if key.tag != _MERGE and isinstance(key, yaml.ScalarNode):
            items[key.value] = (key.value, key, value)
    return list(items.values())


def _is_mapping(node: yaml.Node | None) -> TypeGuard[yaml.MappingNode]:
    return isinstance(node, yaml.MappingNode)


def _describe_place(source: str, node: yaml.Node) -> str:
    if node.start_mark is None:  # the key is on the command line, which has no lines
        return source
    return f"{source}:{node.start_mark.line + 1}"
