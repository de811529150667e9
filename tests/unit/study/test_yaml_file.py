"""The file of a study is read whole, and each fault names its line and remedy, as stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpprobe.errors import ConfigError
from dpprobe.study.check_command import merge_values, read_values
from dpprobe.study.yaml_file import check_yaml, written_path
from tests.support.stored_records import check_values

TEXTS = [
    "",
    "# nothing\n",
    "- a\n- b\n",
    "seeds: 1\nseeds: 2\n",
    "a: {b: 1, c: 2, b: 3}\n",
    "methods:\n  sgd: {head: sgd}\n  b: {}\n  'sgd': {}\n",
    "a:\n  - x: 1\n    x: 1\n",
    "a: [1\n",
    "a: 1\n---\na: 2\n",
    "a:\n\tb: 1\n",
    "a: 1\nb:\t2\n",
    "a: 1\nb: *rate\n",
    "a: &rate 1\nb: *rat\n",
    "a:\n  - b: c: d\n",
    "a: 1\nseeds 3\nb: 2\n",
    'a: "C:\\data"\n',
    "a: @b\n",
    "a: 'b\n",
    "a: !!python/object:x y\n",
    "a: 2020-13-45\n",
    "a: b\0\n",
    "a: [.b, ..]\nb: *.c\n",
    "[" * 3000,
    "3: 1\n'3': 2\n",
    "3: 1\n3: 2\n",
    "a: ]\n",
    "%x\n",
    "base: &b {x: 1}\none: {<<: *b, x: 2}\ntwo: *b\nlist: [{x: 1}, {x: 2}]\n",
]


def test_a_file_that_yaml_readers_would_bend_is_refused(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = {}
    contents = [text.encode() for text in TEXTS]
    contents += ["study: a\nimages: caf\xe9\n".encode("latin-1"), "a: é\n".encode("utf-8-sig")]
    for content in contents:
        Path("study.yaml").write_bytes(content)
        try:
            check_yaml(Path("study.yaml"))
            told[str(content[:60])] = "good"
        except ConfigError as error:
            told[str(content[:60])] = str(error)
    assert "\n" not in "".join(told.values())
    check_values("faults_of_yaml", told)
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
