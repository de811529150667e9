"""Writes docs/options.md from the JSON schema of studies, whose texts editors show on hover."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schemas import study_schema

PAGE = Path(__file__).resolve().parents[2] / "docs" / "options.md"
INTRODUCTION = """\
# All options of a study

This page answers: which keys may a study have, with which values and defaults? `make schema` writes
it. [The study](configuration.md) explains the keys.

A first study names a `catalog` or `source` for each dataset, a `catalog` or `family` for each
backbone, and a `head` for each method. Most studies need no other keys than these:

"""
# The keys that a first study needs, by their block's heading.
FIRST = {
    "The study": "study datasets backbones methods epsilons delta seeds privacy releases "
    "data_dir results_dir",
    "`datasets`": "metric subsample",
    "`source: csv`": "root train test split_column path_column label_column label_columns "
    "class_names unit_column group_columns test_fraction",
    "`source: imagefolder`": "path",
    "`family: timm`": "model checkpoint",
    "`head: sgd`": "batch_size epochs steps learning_rate max_grad_norm normalize class_weights",
    "`privacy`": "unit max_epsilon",
    "`releases`": "dataset backbone method epsilon",
}
# Maps a key whose blocks have several kinds to the key that names the kind, and to a page.
KINDS = {
    "datasets": ("source", "data.md"),
    "backbones": ("family", "features.md"),
    "methods": ("head", "methods/README.md"),
}
ELSEWHERE = {
    "public_datasets": "by name: [dataset](#datasets)",
    "normalize": "[kind](configuration.md#normalisation)",
}
SIGNS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
TYPES = {"integer": "whole number", "boolean": "`true`, `false`", "object": "mapping"}
Schema = Mapping[str, Any]


def options_page() -> str:
    """Returns the page's text: one table for each block of options, in the order of the study."""
    schema = study_schema()
    blocks = schema["$defs"]
    titles = _titles(schema, blocks)
    general = {"study": "The study"}
    shared: dict[str, set[str]] = {}
    for key, (kind, page) in KINDS.items():
        of_kind = [name for name, title in titles.items() if title.startswith(f"`{kind}: ")]
        first, *others = (blocks[name]["properties"] for name in of_kind)
        keys = {k: v for k, v in first.items() if all(v == each.get(k) for each in others)}
        what = f"Keys of every {kind}, explained" if keys else "Explained"
        text = f"{what} in [{page}]({page})."
        general[key], blocks[key] = f"`{key}`", {"description": text, "properties": keys}
        shared |= {name: {*keys, kind} for name in of_kind}
    sections = []
    written: dict[str, set[str]] = {}
    for name, title in (general | titles).items():
        block = blocks.get(name, schema)
        head, table = "| key | value | default | meaning |\n|---|---|---|---|\n", ""
        written[title] = block["properties"].keys() - shared.get(name, set())
        for key, option in block["properties"].items():
            if key in written[title]:
                required = key in block.get("required", ())
                default = "required" if required else _spelt(option.get("default"))
                text = _summary(option, blocks)
                table += f"| `{key}` | {_value(key, option, titles)} | {default} | {text} |\n"
        sections.append(f"## {title}\n\n{_summary(block, blocks)}\n")
        if table:
            sections.append(head + table)
    return "\n".join([INTRODUCTION + _first_keys(written), *sections])


def _first_keys(written: Mapping[str, set[str]]) -> str:
    """Returns the table of a first study's keys; raises ValueError for an unknown key."""
    table = "| block | keys |\n|---|---|\n"
    for title, text in FIRST.items():
        if missing := set(text.split()) - written[title]:
            raise ValueError(f"FIRST: {title} has no key {sorted(missing)}; correct FIRST")
        keys = ", ".join(f"`{key}`" for key in text.split())
        table += f"| [{title}](#{_anchor(title)}) | {keys} |\n"
    return table


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9_ -]", "", title.lower()).replace(" ", "-")


def _titles(block: Schema, blocks: Schema, outer: str = "") -> dict[str, str]:
    """Maps the name of each block that is nested in a block to its heading."""
    titles: dict[str, str] = {}
    for key, option in block["properties"].items():
        kind, _ = KINDS.get(key, ("", ""))
        for name in re.findall(r'"#/\$defs/(\w+)"', json.dumps(option)):
            if name not in titles and key not in ELSEWHERE:
                whose = outer if "_" in name or "family" in outer else ""
                title = f"`{kind}: {name.partition('_')[2]}`" if kind else f"`{key}`{whose}"
                inner = f" of {title}" if kind else ""
                titles = {**titles, name: title, **_titles(blocks[name], blocks, inner), **titles}
    return titles


def _summary(option: Schema, blocks: Schema) -> str:
    """Returns the first paragraph of the description of an option or block, for a table cell."""
    text = option.get("description") or blocks[option["$ref"].rpartition("/")[2]]["description"]
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


def _value(key: str, option: Schema, titles: Mapping[str, str]) -> str:
    if key in ELSEWHERE:
        return ELSEWHERE[key]
    if key == "releases" or (key in KINDS and "additionalProperties" in option):
        return f"by name: [`{key}`](#{key})"
    if title := titles.get(option.get("$ref", "").rpartition("/")[2]):
        return f"[{title}](#{_anchor(title)})"
    match option:
        case {"anyOf": parts}:
            values = [_value("", part, titles) for part in parts if part != {"type": "null"}]
            return " or ".join(dict.fromkeys(values))
        case {"enum": _} | {"const": _}:
            return ", ".join(map(_spelt, option.get("enum", [option.get("const")])))
        case {"items": dict() as inner} | {"additionalProperties": dict() as inner}:
            return f"{'list' if 'items' in option else 'by name'}: {_value('', inner, titles)}"
    bounds = [f"{sign} {_spelt(option[bound])}" for bound, sign in SIGNS.items() if bound in option]
    return " ".join([f"{TYPES.get(option['type'], option['type'])}", *bounds])


def _spelt(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("kind")
    text = value if isinstance(value, str) and value else json.dumps(value)
    return "" if value is None else f"`{text}`"


if __name__ == "__main__":
    PAGE.write_text(options_page(), encoding="utf-8")
