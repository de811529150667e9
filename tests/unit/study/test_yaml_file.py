"""Faults in a study's file are refused, with their line and a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpprobe.errors import ConfigError
from dpprobe.study.check_command import merge_values, read_values
from dpprobe.study.yaml_file import check_yaml, written_path

# Files that YAML would misread, the position in the error, and part of its text.
REFUSED: list[tuple[str | bytes, str, str]] = [
    ("", "", "empty; write a study"),
    ("# nothing\n", "", "empty; write a study"),
    ("- a\n- b\n", "", "no mapping; write a study"),
    # YAML silently uses the last of two equal keys
    ("seeds: 1\nseeds: 2\n", ":2", "key 'seeds' appears twice, first in line 1"),
    ("a: {b: 1, c: 2, b: 3}\n", ":1", "key 'b' appears twice, first in line 1"),
    (
        "methods:\n  sgd: {head: sgd}\n  b: {}\n  'sgd': {}\n",
        ":4",
        "key 'sgd' appears twice, first in line 2",
    ),
    ("a:\n  - x: 1\n    x: 1\n", ":3", "key 'x' appears twice, first in line 2"),
    ("3: 1\n3: 2\n", ":2", "key '3' appears twice, first in line 1"),
    # the remedy fits the error
    ("a: [1\n", ":2:1", "begins in line 1); close the bracket, or write a comma"),
    ("a: 1\n---\na: 2\n", ":2:1", "remove the line ---, or make two files"),
    ("a:\n\tb: 1\n", ":2", "a tab, but YAML accepts only spaces here; write two spaces"),
    ("a: 1\nb:\t2\n", ":2", "a tab, but YAML accepts only spaces here"),
    ("a: 1\nb: *rate\n", ":2", "*rate refers to a value marked &rate, but no value above"),
    ("a: &rate 1\nb: *rat\n", ":2", "*rat refers to a value marked &rat"),
    ("a:\n  - b: c: d\n", ":2:9", "quote a value that contains a colon"),
    ("a: 1\nseeds 3\nb: 2\n", ":3:1", "write a key, a colon, a space and the value"),
    ('a: "C:\\data"\n', ":1:8", "write the value in single quotes"),
    ("a: @b\n", ":1:4", "put the value in quotes"),
    ("a: [.b, ..]\nb: *.c\n", ":2:5", "put the value in quotes"),
    ("a: 'b\n", ":2:1", "close the quote"),
    ("a: !!python/object:x y\n", ":1:4", "remove the tag, or put the value in quotes"),
    # 9^12 keys by merges, and a mapping that merges itself
    (
        "a0: &a0 {k: 1}\n"
        + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 13)),
        "",
        "`<<` merges more than 100,000 keys; use fewer",
    ),
    ("a: &a {<<: *a}\n", "", "`<<` merges more than"),
    ("a: 2020-13-45\n", "", "month must be in 1..12"),
    ("a: b\0\n", "", "not YAML (unacceptable character #x0000"),
    ("[" * 3000, "", "brackets nested too deeply to be read; remove some"),
    ("a: ]\n", ":1:4", "correct it"),
    ("%x\n", ":2:1", "correct it"),
    ("study: a\nimages: caf\xe9\n".encode("latin-1"), ":2", "byte 0xe9 is not UTF-8"),
]
ACCEPTED: list[str | bytes] = [
    "3: 1\n'3': 2\n",  # a number and a text
    "base: &b {x: 1}\none: {<<: *b, x: 2}\ntwo: *b\nlist: [{x: 1}, {x: 2}]\n",
    "a: é\n".encode("utf-8-sig"),
]


def write_study(content: str | bytes) -> Path:
    path = Path("study.yaml")
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(("content", "place", "part"), REFUSED)
def test_a_file_that_yaml_readers_would_bend_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | bytes, place: str, part: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        check_yaml(write_study(content))
    said = str(refused.value)
    assert said.startswith(f"study.yaml{place}: ")
    assert part in said
    assert "\n" not in said


@pytest.mark.parametrize("content", ACCEPTED)
def test_unambiguous_yaml_files_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    check_yaml(write_study(content))


def test_the_default_study_is_read_and_a_missing_one_is_named(repository: Path) -> None:
    check_yaml(repository / "config.yaml")
    with pytest.raises(ConfigError, match=r"^no.yaml: cannot be read .*No such file"):
        check_yaml(Path("no.yaml"))


def test_a_path_is_shown_as_it_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for typed in ("study.yaml", "config/study.yaml", "../study.yaml"):
        assert written_path(Path(typed).absolute()) == Path(typed)
    for typed in ("/elsewhere/study.yaml", "study.yaml"):
        assert written_path(Path(typed)) == Path(typed)


def test_files_are_merged_key_by_key_and_the_last_counts(tmp_path: Path) -> None:
    texts = ("a: {b: 1, c: {d: 2, e: 3}}\nf: [1]\n", "a: {c: {e: 4}, g: 5}\nf: [2]\n", "a: 7\n")
    files = [tmp_path / f"{n}.yaml" for n in range(3)]
    for path, text in zip(files, texts, strict=True):
        path.write_text(text)
    merged = {"a": {"b": 1, "c": {"d": 2, "e": 4}, "g": 5}, "f": [2]}
    assert read_values(files[:2]) == merged
    assert read_values(files) == merged | {"a": 7}
    assert merge_values({"a": 7}, {"a": {"b": 1}}) == {"a": {"b": 1}}
