"""Writes the form of questions that only a person can answer, and reads the filled form.

    # Why is epsilon small enough for this data?
    # In questions.md: NIST SP 800-226, 2.2 large epsilon; registry.yaml: justification
    epsilon_choice: ''

An id identifies a question in all documents of a passport, and never changes, so answers can be
reused for the next release. The form omits questions that the bundle answers.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import yaml

from dpprobe.errors import ConfigError
from dpprobe.files.atomic_writes import write_text
from dpprobe.project_files import read_yaml
from dpprobe.release.bundle import FACTS_FILE, Bundle, check_outside
from dpprobe.release.documents.document_values import one_line
from dpprobe.release.passport_forms import ANSWERS, Fields, find_stated, list_fields
from dpprobe.study.yaml_file import parse_yaml

LONGEST_ANSWER = 4000
# Facts that the crate repeats; `passport.describe_crate` writes them.
IN_CRATE = {
    "authors": "author",
    "organisation": "publisher",
    "contact": "contactPoint",
    "license": "license",
}
_TEXT, _NULL, _DATE = (f"tag:yaml.org,2002:{name}" for name in ("str", "null", "timestamp"))
_MAIL = re.compile(r"[^\s@<>()\[\],;:\\\"]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question to a person.

    Attributes:
      kind: text, texts, e-mail, url or date.
      choices: the permitted answers; empty if any answer is permitted.
      places: the documents and properties in which the answer is written.
      unless: fields of the bundle, any of which answers the question if stated.
    """

    ask: str
    kind: str = "text"
    choices: Sequence[str] = ()
    places: Sequence[str] = ()
    unless: Sequence[str] = field(default=())


def list_questions() -> dict[str, Question]:
    """Returns all questions to persons by id, in the order of resources/passport.yaml."""
    asked = read_yaml("passport.yaml")
    questions: dict[str, Question] = {}
    for block in asked["questions"]:
        source = block["source"].partition(",")[0]
        for each in block["questions"]:
            if "id" in each:
                place = f"questions.md: {source}, {each['place']}"
                unless = tuple(each.get("fields", ()))
                questions[each["id"]] = Question(ask=each["ask"], places=[place], unless=unless)
    for name, values in asked["asked"].items():
        unless = (values["unless"],) if "unless" in values else ()
        questions[name] = Question(**{**values, "unless": unless})
    places = [
        (name, f"{file}: {key}")
        for file, form in asked["forms"].items()
        for name, key in _find_places(form["form"])
    ]
    places += [(name, f"ro-crate-metadata.json: {key}") for name, key in IN_CRATE.items()]
    for name, place in places:
        question = questions[name]
        if place not in question.places:
            questions[name] = replace(question, places=[*question.places, place])
    return questions


def _find_places(form: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yields the id and the property of each answer that a form contains."""
    if isinstance(form, Mapping):
        for key, value in form.items():
            yield from _find_places(value, name if key in ("when", "then", "else") else key)
    elif isinstance(form, list):
        for value in form:
            yield from _find_places(value, name)
    elif isinstance(form, str):
        for answer in re.findall(r"\{" + re.escape(ANSWERS) + r": (\w+)\}", form):
            yield answer, name


def find_answering(fields: Fields, question: Question) -> str | None:
    """Returns the field by which the bundle answers a question; None if a person must answer."""
    return next((name for name in question.unless if find_stated(fields, name)), None)


def write_answers(read: Bundle, path: Path) -> int:
    """Writes the form of a verified bundle; returns the number of its questions.

    Raises ConfigError if the file exists, or is inside a bundle.
    """
    check_outside(path)
    if path.exists() or path.is_symlink():
        raise ConfigError(
            f"--write-answers {path}: already exists, and is not overwritten; name another file"
        )
    fields = list_fields(read)
    asked = {
        name: each for name, each in list_questions().items() if not find_answering(fields, each)
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, _write_form(fields, asked))
    return len(asked)


def _write_form(fields: Fields, asked: Mapping[str, Question]) -> str:
    lines = [
        f"# Questions about the release {one_line(fields[FACTS_FILE]['name'])} that only a person "
        "can answer.",
        "# Write each answer in one line, in quotes if it has a colon or a #. What stays empty "
        "stays to be written.",
        "# Then run: dpprobe passport BUNDLE --published YYYY-MM-DD --answers FILE",
    ]
    for name, each in asked.items():
        hint = _KINDS[each.kind].hint
        hint = f"one of {', '.join(each.choices)}" if each.choices else hint
        lines += ["", f"# {each.ask}", f"# In {'; '.join(each.places)}"]
        lines += [f"# Write {hint}."] if hint else []
        lines.append(f"{name}: {'[]' if each.kind == 'texts' else chr(39) * 2}")
    return "\n".join(lines) + "\n"


def read_answers(read: Bundle, path: Path) -> dict[str, Any]:
    """Reads a filled form; returns the answers by id, without empty answers.

    Raises ConfigError, naming file, line and id, for YAML other than ids with texts or lists of
    texts, for an unknown id, for an answer of the wrong form, and for an answer to a question that
    the bundle answers.
    """
    root = parse_yaml(path)
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(
            f"{path}: no answers; write a form with `dpprobe passport BUNDLE --write-answers FILE`"
        )
    fields, questions = list_fields(read), list_questions()
    answers: dict[str, Any] = {}
    lines: dict[str, int] = {}
    nodes: set[int] = set()
    for key, value in root.value:
        name, place = str(key.value), f"{path}:{key.start_mark.line + 1}: {key.value}"
        if name in lines:
            raise ConfigError(f"{place}: appears twice, first in line {lines[name]}; remove one")
        lines[name] = key.start_mark.line + 1
        if name not in questions:
            raise ConfigError(f"{place}: no question has this id; {_suggest(name, questions)}")
        for node in (value, *(value.value if isinstance(value, yaml.SequenceNode) else ())):
            if id(node) in nodes:
                raise ConfigError(f"{place}: an alias (*), which is not read; write the answer")
            nodes.add(id(node))
        question = questions[name]
        answer = _read_answer(value, question, place)
        if not answer:
            continue
        if field_name := find_answering(fields, question):
            raise ConfigError(
                f"{place}: {_show(answer)}: the bundle answers this question by {field_name}; "
                "remove this answer"
            )
        answers[name] = answer
    return answers


def _suggest(name: str, questions: Mapping[str, Question]) -> str:
    close = difflib.get_close_matches(name, questions, n=1)
    return f"did you mean {close[0]}?" if close else "remove it"


def _read_answer(node: yaml.Node, question: Question, place: str) -> str | list[str]:
    if question.kind == "texts":
        if _is_empty(node):
            return []
        if not isinstance(node, yaml.SequenceNode):
            _refuse(place, node.value, "write a list, such as [first, second]")
        return [_read_text(item, question, place) for item in node.value if not _is_empty(item)]
    return "" if _is_empty(node) else _read_text(node, question, place)


def _is_empty(node: yaml.Node) -> bool:
    scalar = isinstance(node, yaml.ScalarNode)
    return scalar and (node.tag == _NULL or not node.value.strip())


def _read_text(node: yaml.Node, question: Question, place: str) -> str:
    if not isinstance(node, yaml.ScalarNode):
        _refuse(place, node.value and "a list or mapping", "write one text")
    text = node.value.strip()
    if node.tag not in (_TEXT, _DATE):
        _refuse(place, text, "write a text, in quotes if it looks like a number")
    if len(text) > LONGEST_ANSWER:
        _refuse(place, text, f"use at most {LONGEST_ANSWER} characters")
    if "\n" in text:
        _refuse(place, text, "write it in one line, without line breaks")
    if one_line(text) != " ".join(text.split()):
        _refuse(place, text, "remove the control or invisible characters")
    kind = _KINDS[question.kind]
    if question.choices and text not in question.choices:
        _refuse(place, text, f"choose one of {', '.join(question.choices)}")
    if not kind.accepts(text):
        _refuse(place, text, f"write {kind.hint}")
    return one_line(text)


def _refuse(place: str, value: Any, remedy: str) -> NoReturn:
    raise ConfigError(f"{place}: {_show(value)}: {remedy}")


def _show(value: Any) -> str:
    return f"{value!a:.80}"


def _is_mail(text: str) -> bool:
    return _MAIL.fullmatch(text) is not None


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    plain = not re.search(r"[\s<>\"`\\]", text)
    return plain and parts.scheme in ("http", "https") and bool(parts.hostname)


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


@dataclass(frozen=True)
class _Kind:
    hint: str
    accepts: Callable[[str], bool] = lambda _: True


_KINDS = {
    "text": _Kind(""),
    "texts": _Kind("a list, such as [first, second]"),
    "e-mail": _Kind("an address such as privacy@clinic.example", _is_mail),
    "url": _Kind("an address that begins with https://", _is_url),
    "date": _Kind("a day such as 2026-11-29", _is_date),
}
