"""Fills the forms of reviewers, in resources/passport.yaml, from named fields of a bundle."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import date
from typing import Any

import yaml

from dpprobe.artifacts import canonical_json
from dpprobe.release.bundle import FACTS_FILE, STATEMENT_FILE, Bundle
from dpprobe.release.documents.document_values import in_markdown, one_line
from dpprobe.resources import read_yaml

# Answers to questions without a field, and to questions whose fields the bundle leaves empty.
BY_A_PERSON = "not answerable by software: you must write it"
NOT_STATED = "**empty**: the bundle does not state it"
EMPTY = "# empty: you must write it"
# Units of a test result in a claim, where accuracy needs no name.
METRICS = {"accuracy": "", "auc": " AUC"}

_FIELD = re.compile(r"\{([^{}]+)\}")
# A line of YAML without a value. A line of a text starts with "- " and a capital, or has no colon.
_WITHOUT_VALUE = re.compile(r"^( *)([a-z_]+): null$|^( *(?:- )?(?:[a-z_]+: )?'')$", re.MULTILINE)

Find = Callable[[str], list[Any]]
Quote = Callable[[str], str]


class _Dumper(yaml.SafeDumper):
    """Writes a text of several lines as a block, which keeps its lines."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


def list_forms() -> dict[str, str]:
    """Returns the title of each form that `write_form` fills, by file name."""
    return {name: form["title"] for name, form in read_yaml("passport.yaml")["forms"].items()}


def write_form(read: Bundle, name: str, published: date) -> str:
    """Returns a form as YAML; what the bundle does not answer is empty, with a comment.

    The form's own comment comes last, because the registry's scripts read the first line.
    """
    form = read_yaml("passport.yaml")["forms"][name]

    def find(field: str) -> list[Any]:
        if field == "published":
            return [published.isoformat()]
        return _state_accuracy(read) if field == "accuracy" else find_stated(read, field)

    filled = yaml.dump(
        _fill(form["form"], find, in_markdown if form["markdown"] else one_line),
        Dumper=_Dumper,
        sort_keys=False,
        width=float("inf"),
        allow_unicode=True,
    )
    comment = "".join(f"# {line}\n" for line in _fill_lines(form["comment"], find, one_line))
    return _WITHOUT_VALUE.sub(_mark_empty, filled) + comment


def _mark_empty(line: re.Match[str]) -> str:
    indent, name, text = line.groups()
    return f"{indent}# {name}: {EMPTY[2:]}" if name else f"{text}  {EMPTY}"


def _fill(form: Any, find: Find, quote: Quote) -> Any:
    """Fills the texts of a form; `when` chooses between `then` and `else` by a field's value."""
    if isinstance(form, dict) and "when" in form:
        return _fill(form["then" if any(find(form["when"])) else "else"], find, quote)
    if isinstance(form, dict):
        return {name: _fill(value, find, quote) for name, value in form.items()}
    if isinstance(form, list):
        return [_fill(value, find, quote) for value in form]
    if not isinstance(form, str):
        return form
    alone = _FIELD.fullmatch(form)
    if alone and (values := find(alone[1])) and isinstance(values[0], int | float):
        return values[0]
    lines = _fill_lines(form, find, quote)
    return lines[0] if len(lines) == 1 else "\n".join(f"- {line}" for line in lines)


def _fill_lines(text: str, find: Find, quote: Quote) -> list[str]:
    """Returns the lines whose fields are all stated."""
    return [
        _FIELD.sub(lambda field: write_values(find(field[1]), quote), line)
        for line in text.splitlines()
        if all(find(field) for field in _FIELD.findall(line))
    ]


def _state_accuracy(read: Bundle) -> list[str]:
    """Returns the test result in percent with its metric; none without a test result."""
    tested = read.statement["evaluation"]
    if tested is None:
        return []
    metric = tested["metric"]
    return [f"{100 * tested['value']:.2f}%{METRICS.get(metric, f' {metric}')}"]


def answer_questions(read: Bundle) -> str:
    """Returns a Markdown page with one table of questions and answers per source."""
    lines = [
        f"# Questions about {in_markdown(read.facts.name)}",
        "",
        "Answers are copied from the named fields of the bundle. Software does not judge them: "
        "this page does not say that any requirement is met.",
    ]
    for block in read_yaml("passport.yaml")["questions"]:
        lines += ["", f"## {block['source']}", "", block["compared"], ""]
        lines += ["| topic | question | answer |", "|---|---|---|"]
        for each in block["questions"]:
            answer = _answer_question(read, each.get("fields", ()))
            lines.append(f"| {each['place']} | {each['ask']} | {answer} |")
    return "\n".join(lines) + "\n"


def _answer_question(read: Bundle, fields: Sequence[str]) -> str:
    answers = [
        f"{write_values(find_stated(read, field)) or NOT_STATED} (`{field}`)" for field in fields
    ]
    return "<br>".join(answers) or BY_A_PERSON


def find_stated(read: Bundle, field: str) -> list[Any]:
    """Returns the values of a field such as `privacy.json: mechanisms.*.name`, without nulls."""
    file, _, place = field.partition(": ")
    values: list[Any] = [
        {
            FACTS_FILE: read.facts.model_dump(mode="json"),
            STATEMENT_FILE: read.statement,
        }[file]
    ]
    for key in place.split("."):
        if key == "*":
            values = [item for value in values for item in value]
        else:
            values = [value[key] for value in values if isinstance(value, dict) and key in value]
    return [value for value in values if value is not None]


def write_values(values: Sequence[Any], quote: Quote = in_markdown) -> str:
    """Returns values as one line."""
    return "; ".join(quote(_write_value(value)) for value in values)


def _write_value(value: Any) -> str:
    if value in ([], {}):
        return "none"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "; ".join(value)
    return value if isinstance(value, str) else canonical_json(value)
