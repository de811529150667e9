"""Fills the reviewers' forms in resources/passport.yaml from a bundle and people's answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import yaml

from dpprobe.json_values import canonical_json
from dpprobe.project_files import read_yaml
from dpprobe.release.bundle import FACTS_FILE, STATEMENT_FILE, Bundle
from dpprobe.release.documents.document_values import (
    RATES,
    as_code,
    bound_best_attacks,
    in_markdown,
    one_line,
    shared_values,
)
from dpprobe.release.documents.officer_words import answer_officer
from dpprobe.release.documents.rewritten_documents import complete_statement
from dpprobe.release.stated_plans import tested_blocks

# Texts for questions without a field, and for questions whose fields are empty in the bundle.
BY_A_PERSON = "not answerable by software: you must write it"
NOT_STATED = "**empty**: the bundle does not state it"
EMPTY = "# empty: you must write it"
WRITTEN = "written by a person"  # marks a person's answer
ANSWERS = "answers.yaml"  # the file name of fields that a person answers
# Words after a test result in a claim; accuracy is not named.
METRICS = {"accuracy": "", "auc": " AUC"}

# Fields that name something. In a Markdown text they are code, whose characters need no escaping.
IDENTIFIERS = frozenset(
    {
        "bundle.json: name",
        "bundle.json: dataset",
        "bundle.json: class_names",
        "bundle.json: backbone.name",
        "bundle.json: backbone.options.model",
        "privacy.json: predecessor.name",
    }
)

_FIELD = re.compile(r"\{([^{}]+)\}")
# A line of YAML without a value. A line of a text starts with "- " and a capital, or has no colon.
_WITHOUT_VALUE = re.compile(r"^( *)([a-z_]+): null$|^( *(?:- )?(?:[a-z_]+: )?'')$", re.MULTILINE)

WORDS = "words"  # the file name of fields that are sentences of documents

Fields = Mapping[str, Any]
Find = Callable[[str], list[Any]]
Quote = Callable[[str, str], str]  # formats the value of a field for a form


class _Dumper(yaml.SafeDumper):
    """Writes a text of several lines as a YAML block, which preserves the lines."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


def list_forms() -> dict[str, str]:
    """Returns the title of each form that `write_form` fills, by file name."""
    return {name: form["title"] for name, form in read_yaml("passport.yaml")["forms"].items()}


def write_form(fields: Fields, name: str, published: date) -> str:
    """Returns a form as YAML; fields that the bundle does not answer are empty, with a comment.

    The form's own comment comes last, because the registry's scripts read the first line.
    """
    form = read_yaml("passport.yaml")["forms"][name]

    def find(field: str) -> list[Any]:
        if field == "published":
            return [published.isoformat()]
        return _state_accuracy(fields) if field == "accuracy" else find_stated(fields, field)

    filled = yaml.dump(
        _fill(form["form"], find, _Quotes(frozenset(form["markdown"]))),
        Dumper=_Dumper,
        sort_keys=False,
        width=float("inf"),
        allow_unicode=True,
    )
    comment = "".join(f"# {line}\n" for line in _fill_lines(form["comment"], find, _quote_plain))
    return _WITHOUT_VALUE.sub(_mark_empty, filled) + comment


def _mark_empty(line: re.Match[str]) -> str:
    indent, name, text = line.groups()
    return f"{indent}# {name}: {EMPTY[2:]}" if name else f"{text}  {EMPTY}"


def _quote_plain(_field: str, text: str) -> str:
    return one_line(text)


def _quote_markdown(field: str, text: str) -> str:
    return as_code(text) if field in IDENTIFIERS else in_markdown(text)


@dataclass(frozen=True)
class _Quotes:
    """Chooses the quoting of a property's values; `markdown` names the properties in Markdown."""

    markdown: frozenset[str]

    def of_property(self, name: str) -> Quote:
        return _quote_markdown if name in self.markdown else _quote_plain


def _fill(form: Any, find: Find, quotes: _Quotes, name: str = "") -> Any:
    """Fills the texts of a form; `when` chooses between `then` and `else` by a field's value."""
    if isinstance(form, dict) and "when" in form:
        return _fill(form["then" if any(find(form["when"])) else "else"], find, quotes, name)
    if isinstance(form, dict):
        return {key: _fill(value, find, quotes, key) for key, value in form.items()}
    if isinstance(form, list) and (listed := _find_list(form, find)):
        return [quotes.of_property(name)("", item) for item in listed]
    if isinstance(form, list):
        return [_fill(value, find, quotes, name) for value in form]
    if not isinstance(form, str):
        return form
    alone = _FIELD.fullmatch(form)
    if alone and (values := find(alone[1])) and isinstance(values[0], int | float):
        return values[0]
    lines = _fill_lines(form, find, quotes.of_property(name))
    return lines[0] if len(lines) == 1 else "\n".join(f"- {line}" for line in lines)


def _find_list(form: list[Any], find: Find) -> list[str] | None:
    """Returns the items of the only field of a list, if the value of this field is a list."""
    field = _FIELD.fullmatch(form[0]) if len(form) == 1 and isinstance(form[0], str) else None
    values = find(field[1]) if field else []
    return values[0] if values and isinstance(values[0], list) else None


def _fill_lines(text: str, find: Find, quote: Quote) -> list[str]:
    """Returns the lines whose fields are all stated."""
    return [
        _FIELD.sub(lambda field: write_values(find(field[1]), quote, field[1]), line)
        for line in text.splitlines()
        if all(find(field) for field in _FIELD.findall(line))
    ]


def _state_accuracy(fields: Fields) -> list[str]:
    """Returns the test result in percent with its metric; empty without a test result."""
    tested = fields[STATEMENT_FILE]["evaluation"]
    if tested is None:
        return []
    metric = tested["metric"]
    return [f"{100 * tested['value']:.2f}%{METRICS.get(metric, f' {metric}')}"]


def answer_questions(fields: Fields) -> str:
    """Returns a Markdown page with one table of questions and answers per source."""
    lines = [
        f"# Questions about {in_markdown(fields[FACTS_FILE]['name'])}",
        "",
        "Answers are copied from the named fields of the bundle. Software does not judge them: "
        "this page does not say that any requirement is met.",
    ]
    for block in read_yaml("passport.yaml")["questions"]:
        lines += ["", f"## {block['source']}", "", block["compared"], ""]
        lines += ["| topic | question | answer |", "|---|---|---|"]
        for each in block["questions"]:
            answer = _answer_question(fields, each)
            lines.append(f"| {each['place']} | {each['ask']} | {answer} |")
    return "\n".join(lines) + "\n"


def _answer_question(fields: Fields, question: Mapping[str, Any]) -> str:
    """Returns the bundle's answers by field; else a person's answer, or that there is none."""
    asked = question.get("fields", ())
    stated = [
        f"{write_values(values)} (`{field}`)"
        for field in asked
        if (values := find_stated(fields, field))
    ]
    if stated:
        return "<br>".join(stated)
    own = f"{ANSWERS}: {question['id']}" if "id" in question else None
    if own and (written := find_stated(fields, own)):
        return f"{write_values(written)} ({WRITTEN}, `{own}`)"
    if not asked:
        return f"{BY_A_PERSON} (`{own}`)"
    empty = [f"{NOT_STATED} (`{field}`)" for field in asked]
    return "<br>".join([*empty, f"you must write it (`{own}`)"] if own else empty)


def list_fields(read: Bundle, answers: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns the fields of a bundle by file, and the sentences of its documents as "words".

    `answers` has a person's answers by id, as `passport_answers.read_answers` returns them.
    """
    statement = complete_statement(read)
    values = shared_values(read.facts, statement, bound_best_attacks(statement, RATES))
    words, described = values["words"], values["described"]
    releasing = {"training": statement} | {
        name: block for name, block in statement.items() if block in tested_blocks(statement)
    }
    named = ("use", "limits", "measured", "released", "composition", "sure", "watched")
    sentences = {
        **{name: values.get(name) for name in (*named, "choice", "cohort", "sites", "audited")},
        **{name: getattr(words, name) for name in vars(words) if name != "unit"},
        **answer_officer(statement, values),
        "spent": values["spent"],
        "unit": words.unit.whole,
        "to_patients": values["to_patients"],
        "mechanisms": {
            part: [described[item["name"]] for item in block["mechanisms"]]
            for part, block in releasing.items()
        },
    }
    return {
        FACTS_FILE: read.facts.model_dump(mode="json"),
        STATEMENT_FILE: statement,
        WORDS: sentences,
        ANSWERS: dict(answers or {}),
    }


def find_stated(fields: Fields, field: str) -> list[Any]:
    """Returns the values of a field such as `privacy.json: mechanisms.*.name`, without nulls."""
    file, _, place = field.partition(": ")
    values: list[Any] = [fields[file]]
    for key in place.split("."):
        if key == "*":
            values = [item for value in values for item in value]
        else:
            values = [value[key] for value in values if isinstance(value, Mapping) and key in value]
    return [value for value in values if value is not None]


def write_values(values: Sequence[Any], quote: Quote = _quote_markdown, field: str = "") -> str:
    """Returns values as one line; the items of a list are quoted one by one."""
    items = [item for value in values for item in _list_items(value)]
    return "; ".join(quote(field, item) for item in items)


def _list_items(value: Any) -> list[str]:
    if value in ([], {}):
        return ["none"]
    if isinstance(value, Mapping):
        return [f"{key}: {_write_nested(item)}" for key, item in value.items()]
    if isinstance(value, list):
        return [_write_nested(item) for item in value]
    return [value if isinstance(value, str) else canonical_json(value)]


def _write_nested(value: Any) -> str:
    items = _list_items(value)
    return f"({'; '.join(items)})" if isinstance(value, Mapping | list) and value else items[0]
