"""Writes docs/python-reference.md from the docstrings of the public names."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dpprobe

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python-reference.md"
INTRODUCTION = """\
# Python reference

Reference: which names does `dpprobe` have, with which arguments? `make schema` writes this page.
[Use dpprobe from Python](python.md) shows how to use them.
"""
# Members that only Python, scikit-learn or dpprobe itself calls, which are not documented.
_INTERNAL = re.compile(
    r"^_|^(get|set)_|^score$|_fit$|^describe_limit$|^predict_(blocks|arrays)$|^score_features$"
)
_HEADING = re.compile(r"^(Args|Attributes|Raises|Returns):$")
_ITEM = re.compile(r"^([\w, ]+|`[^`]+`): ?(.*)$")


def reference_page() -> str:
    """Returns the page's text: a section per public name, classes first."""
    classes = [name for name in dpprobe.__all__ if inspect.isclass(getattr(dpprobe, name))]
    functions = [name for name in dpprobe.__all__ if name not in classes]
    sections = [_describe_class(name, getattr(dpprobe, name)) for name in classes]
    sections += [_describe_call(f"## {name}", name, getattr(dpprobe, name)) for name in functions]
    return "\n".join([INTRODUCTION, "\n\n".join(sections), ""])


def _describe_class(name: str, value: type) -> str:
    # `load_bundle` makes a Predictor, so users never write the arguments of the class.
    signature = "" if "load_bundle" in vars(value) else _write_signature(name, value)
    text = f"## {name}\n{signature}\n{_describe(value)}"
    for key, member in vars(value).items():
        if _INTERNAL.search(key) or not inspect.getdoc(member):
            continue
        heading = f"### {name}.{key}"
        if isinstance(member, property):
            text += f"\n\n{heading}\n\n{_describe(member)}"
        elif function := _find_function(member):
            text += "\n\n" + _describe_call(heading, f"{name}.{key}", function)
    return text


def _find_function(member: Any) -> Callable[..., Any] | None:
    """Returns the function behind a member of a class; None for data."""
    member = getattr(member, "__func__", getattr(member, "fn", member))
    return member if inspect.isfunction(member) else None


def _describe_call(heading: str, name: str, function: Callable[..., Any]) -> str:
    return f"{heading}\n{_write_signature(name, function)}\n{_describe(function)}"


def _write_signature(name: str, function: Callable[..., Any]) -> str:
    """Returns a call with its default arguments, wrapped if the line would be long."""
    given = inspect.signature(function)
    texts = []
    for key, argument in given.parameters.items():
        if key in ("self", "cls"):
            continue
        if argument.kind is argument.KEYWORD_ONLY and "*" not in texts:
            texts.append("*")
        default = "" if argument.default is argument.empty else f"={argument.default!r}"
        texts.append(f"{key}{default}")
    line = f"{name}({', '.join(texts)})"
    if len(line) > 100:
        wrapped = textwrap.fill(", ".join(texts), 92, break_long_words=False)
        line = f"{name}(\n{textwrap.indent(wrapped, '    ')}\n)"
    return f"\n```python\n{line}\n```\n"


def _describe(value: Any) -> str:
    """Returns a docstring as Markdown: sections become lists, an example a block of code."""
    lines = inspect.cleandoc(inspect.getdoc(value) or "").splitlines()
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(_convert(lines))).strip()
    return re.sub(r"\bdocs/([\w-]+\.md)", r"[\1](\1)", text)


def _convert(lines: list[str]) -> Iterator[str]:
    section = ""
    paragraph: list[str] = []
    if "Example:" in lines:  # the last section
        example = lines.index("Example:")
        yield from _convert(lines[:example])
        code = textwrap.dedent("\n".join(lines[example + 1 :]))
        yield from ["**Example**", "", "```pycon", *code.splitlines(), "```"]
        return
    for line in [*lines, ""]:
        heading = _HEADING.match(line)
        starts = section in ("Args", "Attributes", "Raises") and _ITEM.match(line[2:])
        item = starts if line.startswith("  ") and not line.startswith("   ") else None
        if (heading or item or not line.strip()) and paragraph:
            yield from textwrap.wrap(
                " ".join(paragraph),
                112,
                subsequent_indent="  " * paragraph[0].startswith("- "),
                break_long_words=False,
                break_on_hyphens=False,
            )
            paragraph = []
        if heading:
            section = heading[1]
            yield from ["", f"**{'Arguments' if section == 'Args' else section}**", ""]
        elif item:
            names = ", ".join(f"`{name.strip('` ')}`" for name in item[1].split(","))
            paragraph = [f"- {names}: {item[2]}"]
        elif not line.strip():
            yield ""
            section = ""
        else:
            paragraph.append(line.strip())


if __name__ == "__main__":
    PAGE.write_text(reference_page(), encoding="utf-8")
