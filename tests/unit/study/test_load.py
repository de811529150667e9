"""The file of a study is read whole: a key that stands twice is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpprobe.errors import ConfigError
from dpprobe.study.load import check_yaml


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("# nothing\n", "empty"),
        ("- a\n- b\n", "no mapping"),
        ("seeds: 1\nseeds: 2\n", r"line 2: key 'seeds' stands twice, first in line 1"),
        ("methods:\n  sgd: {head: sgd}\n  b: {}\n  'sgd': {}\n", r"line 4: key 'sgd' .* line 2"),
        ("a: {b: 1, c: 2, b: 3}\n", r"line 1: key 'b' stands twice"),
        ("a:\n  - x: 1\n    x: 1\n", r"line 3: key 'x'"),
        ("a: [1\n", "not YAML"),
        ("a: 1\n---\na: 2\n", "not YAML"),
    ],
)
def test_a_file_that_yaml_readers_would_bend_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"study.yaml: .*{message}") as caught:
        check_yaml(path)
    assert "\n" not in str(caught.value)


def test_a_good_file_passes(tmp_path: Path, repository: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("base: &b {x: 1}\none: {<<: *b, x: 2}\ntwo: *b\nlist: [{x: 1}, {x: 2}]\n")
    check_yaml(path)
    check_yaml(repository / "config.yaml")
    with pytest.raises(ConfigError, match="no.yaml: cannot be read"):
        check_yaml(tmp_path / "no.yaml")
