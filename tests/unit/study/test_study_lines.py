"""Errors of a study name the file and the line of the key that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpprobe.errors import ConfigError, DeviceError
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from dpprobe.study.study_lines import StudyLines
from tests.support.small_study import STUDY, changed
from tests.support.stored_records import check_values

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
        Class A: 0.5
        "Class A.1": 0.5
        Class: 0.5
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
  both:
    <<: [*copy, {epochs: 1}]
others: *methods
epsilons: [1,
  2,
  8]
audit:
  methods:
  - sgd
  - newton
"""


TEXTS = [
    "study: 'study' is every unnamed study's name",
    "study",
    "datasets.digits.name: 5: write a",
    "datasets.scans.path: missing",
    "datasets.scans: images/scans: no such folder; write another",
    "datasets.scans: path: no such folder",
    "datasets.scans: path images/scans is no folder",
    "datasets.scans.subsample.fractions.Class A.1: 7: write",
    "datasets.scans: images: no",
    "datasets.scans.subsample.fractions.3: 7: write a number",
    "datasets.scans.root: missing",
    "datasets.scans.subsample.fractions.Class: 7",
    "audit: newton: is not here",
    "epsilons: : no",
    "datasets.scans.subsample: 3: too many",
    "datasets.scans.subsample.fractions.Class A: 7",
    "methods.sgd.steps: 0: write a number",
    "methods.sgd.search.0.steps: 0: write a number",
    "methods.sgd.search.1.epochs: 0: write",
    "methods.sgd.search.2.epochs: 0: write",
    "methods.sgd.init_scale: unknown key",
    "methods.sgd: init_scale 0.1 has no effect",
    "methods.sgd: init zero",
    "methods.sgd on datasets.digits: steps: too many",
    "methods.sgd on datasets.digits, which has patients",
    "methods.merged.head: 'x': write",
    "methods.merged.steps: 0: write a number",
    "others.sgd.steps: unknown key",
    "epsilons: 2 appears twice in the list",
    "epsilons.2: a number beyond 64 bits",
    "epsilons: 5 appears",
    "epsilons: 2",
    "audit: methods: newton is not in this study",
    "audit: methods: 'newton' is not in it",
    "audit: methods: two of them are alike",
    "audit.methods: newton is not in this study",
    "audit.methods.1: newton",
    "seeds: 0: write",
    "backbones: missing; add this key",
    "no cell to train: ...",
    "methods.both.steps: 1",
    "methods.both.epochs: 2",
    "methods.both.head: 3",
    "delta: missing",
    "methods.new.steps: 0",
    "epsilons.0: 9",
    "datasets.digits: sklearn: unknown",
    "datasets: digits: unknown",
]
LAST = "methods:\n  sgd: {steps: 3}\n  new: {steps: 4}\nepsilons: [9]\naudit: 7\n"


def test_the_line_of_a_key_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two files and the command line, the last one that sets a key counts."""
    monkeypatch.chdir(tmp_path)
    first, last = Path("first.yaml"), Path("last.yaml")
    first.write_text(STUDY_TEXT)
    last.write_text(LAST)
    Path("empty.yaml").write_text("")
    typed = {"seeds": 0, "methods": {"sgd": {"steps": [1]}}, "datasets": {"scans": 5}}
    sources: list[StudyLines] = [
        StudyLines(files=[first]),
        StudyLines(files=[first, last]),
        StudyLines(files=[last, first]),
        StudyLines(files=[first], overrides=typed),
        StudyLines(files=[], overrides=typed),
        StudyLines(files=[Path("empty.yaml")]),
    ]
    told = {text: " ".join(each.find_place(text) for each in sources) for text in TEXTS}
    check_values("lines_of_keys", told)


def test_errors_of_a_block_name_their_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.yaml").write_text("seeds: 0\nmethods:\n  sgd:\n    head: sgd\n    steps: -1\n")
    lines = StudyLines(files=[Path("study.yaml")])
    wrong = changed("methods.sgd.steps", -1) | {"seeds": 0}
    Path("outer.yaml").write_text(
        "seeds: 1\nmine:\n  probe:\n    methods:\n      sgd: {}\n    seeds: 0\n"
    )
    outer = StudyLines(files=[Path("outer.yaml")], block="mine.probe")
    assert outer.find_place("seeds: 0: write") == "outer.yaml:6"
    assert outer.find_place("methods.sgd.steps: 0: write") == "outer.yaml:5"
    assert StudyLines(files=[], origin="a module").find_place("seeds: 0: write") == "a module"
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
