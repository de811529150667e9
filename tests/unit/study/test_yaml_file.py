"""The file of a study is read whole: a key that appears twice is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpprobe.errors import ConfigError
from dpprobe.study.yaml_file import check_yaml, written_path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("# nothing\n", "empty"),
        ("- a\n- b\n", "no mapping"),
        ("seeds: 1\nseeds: 2\n", r":2: key 'seeds' appears twice, first in line 1"),
        ("methods:\n  sgd: {head: sgd}\n  b: {}\n  'sgd': {}\n", r":4: key 'sgd' .* line 2"),
        ("a: {b: 1, c: 2, b: 3}\n", r":1: key 'b' appears twice"),
        ("a:\n  - x: 1\n    x: 1\n", r":3: key 'x'"),
        ("a: [1\n", ":2:1: not YAML .*; close the bracket, or write a comma"),
        ("a: 1\n---\na: 2\n", ":2:\\d+: .*; remove the line ---, or make two files"),
        ("a:\n\tb: 1\n", ":2: a tab, .*here; write"),
        ("a: 1\nb:\t2\n", ":2: a tab"),
        ("a: 1\nb: *rate\n", r":2: \*rate refers to a value marked &rate, but no value above"),
        ("a: &rate 1\nb: *rat\n", r":2: \*rat refers to"),
        ("a:\n  - b: c: d\n", ":2:\\d+: .*quote a value that contains a colon"),
        ("a: 1\nseeds 3\nb: 2\n", ":3:\\d+: .* begins in line 2.*write a key, a colon, a space"),
        ('a: "C:\\data"\n', ":1:\\d+: .*write the value in single quotes"),
        ("a: @b\n", ":1:\\d+: .*; put the value in quotes"),
        ("a: 'b\n", ":2:\\d+: .*; close the quote"),
        ("a: !!python/object:x y\n", ":1:\\d+: .*; remove the tag"),
        ("a: 2020-13-45\n", "not YAML .*month"),
        ("a: b\0\n", "not YAML"),
    ],
)
def test_a_file_that_yaml_readers_would_bend_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"study.yaml.*{message}") as caught:
        check_yaml(path)
    assert "\n" not in str(caught.value)


def test_a_file_of_another_encoding_is_told_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_bytes("study: a\nimages: caf\xe9\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"study.yaml:2: byte 0xe9 is not UTF-8; save"):
        check_yaml(path)
    path.write_bytes("study: caf\xe9\n".encode("utf-8-sig"))
    check_yaml(path)


def test_a_good_file_passes(tmp_path: Path, repository: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("base: &b {x: 1}\none: {<<: *b, x: 2}\ntwo: *b\nlist: [{x: 1}, {x: 2}]\n")
    check_yaml(path)
    check_yaml(repository / "config.yaml")
    with pytest.raises(ConfigError, match="no.yaml: cannot be read"):
        check_yaml(tmp_path / "no.yaml")


def test_a_path_is_shown_as_it_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for typed in ("study.yaml", "config/study.yaml", "../study.yaml"):
        assert written_path(Path(typed).absolute()) == Path(typed)
    assert written_path(Path("/elsewhere/study.yaml")) == Path("/elsewhere/study.yaml")
    assert written_path(Path("study.yaml")) == Path("study.yaml")
