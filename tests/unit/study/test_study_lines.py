"""Errors of a study name the file and the line of the key that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpprobe.errors import ConfigError, DeviceError
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from dpprobe.study.study_lines import StudyLines
from tests.support.small_study import STUDY, changed

STUDY_TEXT = """\
# a study
study: digits
datasets:
  digits: {source: sklearn, name: digits}
  scans:
    source: imagefolder
    path: images/scans
    subsample:
      fractions:
        "Class A.1": 0.5
        3: 0.5
methods: &methods
  sgd:
    head: sgd
    "steps": 3
    init: zero
    search:
    - {steps: 1}
    - steps: 2
      epochs: 1
  copy: &copy {head: sgd,
    steps: 5}
  merged:
    <<: *copy
    head: newton
others: *methods
epsilons: [1,
  2,
  8]
audit:
  methods:
  - sgd
  - newton
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("study: 'study' is every unnamed study's name", 2),
        ("datasets.digits.name: 5: write a text", 4),
        ("datasets.scans.path: missing", 7),
        ("datasets.scans: images/scans: no such folder; write another", 7),
        ("datasets.scans: path: no such folder", 7),
        ("datasets.scans: path images/scans is no folder", 7),
        ("datasets.scans.subsample.fractions.Class A.1: 7: write a number", 10),
        ("datasets.scans.subsample.fractions.3: 7: write a number", 11),
        ("datasets.scans.root: missing; add this key", 5),
        ("methods.sgd.steps: 0: write a number above 0", 15),
        ("methods.sgd.search.0.steps: 0: write a number above 0", 18),
        ("methods.sgd.search.1.epochs: 0: write a number above 0", 20),
        ("methods.sgd.init_scale: unknown key", 13),
        ("methods.sgd: init_scale 0.1 has no effect with init torch", 13),
        ("methods.sgd: init zero", 16),
        ("methods.sgd on datasets.digits: steps: too many", 15),
        ("methods.sgd on datasets.digits, which has patients", 13),
        ("methods.merged.head: 'x': write another", 25),
        ("methods.merged.steps: 0: write a number above 0", 22),
        ("others.sgd.steps: unknown key", 15),
        ("epsilons: 2 appears twice in the list", 28),
        ("epsilons.2: a number beyond 64 bits", 29),
        ("audit: methods: newton is not in this study", 33),
        ("audit: methods: 'newton' is not in this study", 33),
        ("audit: methods: two of them are alike", 31),
        ("audit.methods: newton is not in this study", 33),
        ("backbones: missing; add this key", 0),
        ("no cell to train: ...", 0),
    ],
)
def test_the_line_of_a_key_is_found(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY_TEXT)
    assert StudyLines(files=[path]).find_place(text) == (f"{path}:{line}" if line else str(path))


def test_of_two_files_the_one_that_counts_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("first.yaml").write_text("seeds: 1\nmethods:\n  sgd:\n    steps: 1\n    epochs: 2\n")
    Path("last.yaml").write_text("methods:\n  sgd: {steps: 3}\nepsilons: [1]\n")
    lines = StudyLines(files=[Path("first.yaml"), Path("last.yaml")])
    assert lines.find_place("methods.sgd.steps: 0: ...") == "last.yaml:2"
    assert lines.find_place("methods.sgd.epochs: 0: ...") == "first.yaml:5"
    assert lines.find_place("seeds: 0: ...") == "first.yaml:1"
    assert lines.find_place("delta: missing") == "first.yaml, last.yaml"


def test_values_of_the_command_line_are_told_as_such(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY_TEXT)
    lines = StudyLines(files=[path], overrides={"seeds": 0, "methods": {"sgd": {"steps": [1]}}})
    assert lines.find_place("seeds: 0: write a number of 1 or more") == "--config"
    assert lines.find_place("methods.sgd.steps: [1]: write a number") == "--config"
    assert lines.find_place("methods.sgd.head: 'x'") == f"{path}:14"


def test_errors_of_a_block_name_their_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.yaml").write_text("seeds: 0\nmethods:\n  sgd:\n    head: sgd\n    steps: -1\n")
    lines = StudyLines(files=[Path("study.yaml")])
    wrong = changed("methods.sgd.steps", -1) | {"seeds": 0}
    with pytest.raises(ConfigError) as caught, lines.name_lines():
        load_study(wrong)
    assert sorted(str(caught.value).splitlines()) == [
        "study.yaml:1: seeds: 0: write a number of 1 or more",
        "study.yaml:5: methods.sgd.steps: -1: write a number of 1 or more",
    ]
    with pytest.raises(ConfigError, match=r"^study\.yaml:4: .*methods\.sgd"), lines.name_lines():
        raise ConfigError("config: methods.sgd: head sgd takes none")
    with pytest.raises(DeviceError, match=r"^GPU 3: gone\n  and more$"), lines.name_lines():
        raise DeviceError("GPU 3: gone\n  and more")
    with lines.name_lines():
        check_study(load_study(STUDY))
