"""Errors of a study name the file and the line of the wrong key."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpprobe.errors import ConfigError, DeviceError
from dpprobe.shown_text import join_lines
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
LAST_TEXT = "methods:\n  sgd: {steps: 3}\n  new: {steps: 4}\nepsilons: [9]\naudit: 7\n"
TYPED = {"seeds": 0, "methods": {"sgd": {"steps": [1]}}, "datasets": {"scans": 5}}
# An error's text, part of the line in STUDY_TEXT to which it refers, and part of the line in
# LAST_TEXT if LAST_TEXT has the key too.
PLACES: list[tuple[str, str, str | None]] = [
    ("study: 'study' is every unnamed study's name", "study: digits", None),
    ("datasets.digits.name: 5: must be a", "  digits: {source", None),
    ("datasets.digits: sklearn: unknown", "  digits: {source", None),
    ("datasets: digits: unknown", "  digits: {source", None),
    # a missing key is reported at its block, another key at its own line, even if not named
    ("datasets.scans.root: missing", "  scans:", None),
    ("datasets.scans.path: missing", "    path:", None),
    ("datasets.scans: path: no such folder", "    path:", None),
    ("datasets.scans: path images/scans is no folder", "    path:", None),
    ("datasets.scans: images/scans: no such folder; choose another", "    path:", None),
    ("datasets.scans: images: no", "  scans:", None),
    # names with dots and spaces, one of which begins with the other
    ("datasets.scans.subsample: 3: too many", "    subsample:", None),
    ("datasets.scans.subsample.fractions.Class A: 7", "Class A: 0.5", None),
    ("datasets.scans.subsample.fractions.Class A.1: 7: write", '"Class A.1": 0.5', None),
    ("datasets.scans.subsample.fractions.Class: 7", "        Class: 0.5", None),
    ("datasets.scans.subsample.fractions.3: 7: must be a number", "        3: 0.5", None),
    # keys of a method, and of a list in the method
    ("methods.sgd.steps: 0: must be a number", '"steps": 3', "sgd: {steps"),
    ("methods.sgd on datasets.digits: steps: too many", '"steps": 3', "sgd: {steps"),
    ("methods.sgd on datasets.digits, which has patients", "  sgd:", "sgd: {steps"),
    ("methods.sgd.init_scale: unknown key", "  sgd:", "sgd: {steps"),
    ("methods.sgd: init_scale 0.1 has no effect", "  sgd:", "sgd: {steps"),
    ("methods.sgd: init zero", "    init: zero", None),
    ("methods.sgd.search.0.steps: 0: must be a number", "{steps: 1}", None),
    ("methods.sgd.search.1.epochs: 0: write", "      epochs: 1", None),
    ("methods.sgd.search.2.epochs: 0: write", "    search:", None),
    ("methods.new.steps: 0", "methods: &methods", "new: {steps: 4}"),
    # merged keys are reported where they are written
    ("methods.merged.head: 'x': write", "    head: newton", None),
    ("methods.merged.steps: 0: must be a number", "    steps: 5}", None),
    ("methods.both.steps: 1", "    steps: 5}", None),
    ("methods.both.epochs: 2", "{epochs: 1}", None),
    ("methods.both.head: 3", "  copy: &copy", None),
    ("others.sgd.steps: unknown key", '"steps": 3', None),
    # a value of a list if the error names the value, otherwise the list
    ("epsilons: 2 appears twice in the list", "  2,", "epsilons: [9]"),
    ("epsilons: 2", "  2,", "epsilons: [9]"),
    ("epsilons.2: a number beyond 64 bits", "  8]", "epsilons: [9]"),
    ("epsilons: 5 appears", "epsilons: [1,", "epsilons: [9]"),
    ("epsilons: : no", "epsilons: [1,", "epsilons: [9]"),
    ("audit: newton: is not here", "  - newton", "audit: 7"),
    ("audit: methods: newton is not in this study", "  - newton", "audit: 7"),
    ("audit: methods: 'newton' is not in it", "  - newton", "audit: 7"),
    ("audit.methods: newton is not in this study", "  - newton", "audit: 7"),
    ("audit.methods.1: newton", "  - newton", "audit: 7"),
    ("audit: methods: two of them are alike", "  methods:", "audit: 7"),
]
# Errors that refer to no line name only the files.
NOWHERE = ["backbones: missing; add this key", "no cell to train: ...", "delta: missing"]


def place_of(text: str, part: str, file: str) -> str:
    """Returns the position of the only line that contains `part`, as an error names it."""
    (line,) = (n for n, each in enumerate(text.splitlines(), 1) if part in f"{each}\n")
    return f"{file}:{line}"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    monkeypatch.chdir(tmp_path)
    first, last = Path("first.yaml"), Path("last.yaml")
    first.write_text(STUDY_TEXT)
    last.write_text(LAST_TEXT)
    return first, last


@pytest.mark.parametrize(("said", "part", "part_in_last"), PLACES)
def test_the_line_of_a_key_is_found(
    files: tuple[Path, Path], said: str, part: str, part_in_last: str | None
) -> None:
    """The last file with the key is named; keys on the command line come before all files."""
    first, last = files
    expected = place_of(STUDY_TEXT, part, "first.yaml")
    in_last = place_of(LAST_TEXT, part_in_last, "last.yaml") if part_in_last else expected
    assert StudyLines(files=[first]).find_place(said) == expected
    assert StudyLines(files=[first, last]).find_place(said) == in_last
    # here the first file is the last one; `methods.new` is only in the other file
    other_way = in_last if said.startswith("methods.new") else expected
    assert StudyLines(files=[last, first]).find_place(said) == other_way


@pytest.mark.parametrize("said", NOWHERE)
def test_what_no_line_has_is_of_all_files(files: tuple[Path, Path], said: str) -> None:
    assert StudyLines(files=files).find_place(said) == "first.yaml, last.yaml"
    Path("empty.yaml").write_text("")
    assert StudyLines(files=[Path("empty.yaml")]).find_place(said) == "empty.yaml"


@pytest.mark.parametrize(
    ("said", "typed"),
    [
        ("seeds: 0: write", True),
        ("methods.sgd.steps: 0: must be a number", True),
        ("methods.sgd.init_scale: unknown key", True),
        ("methods.sgd.init: x", False),
        ("methods.new.steps: 0", True),
        ("datasets.scans.path: missing", True),
        ("datasets.digits.name: 5: must be a", False),
        ("epsilons: 2", False),
    ],
)
def test_a_key_that_was_typed_is_the_command_line_s(
    files: tuple[Path, Path], said: str, typed: bool
) -> None:
    place = StudyLines(files=files[:1], overrides=TYPED).find_place(said)
    assert (place == "--config") == typed, place
    assert StudyLines(files=[], overrides=TYPED).find_place(said) == "--config"


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
        "study.yaml:1: seeds: 0: must be a number of 1 or more",
        "study.yaml:5: methods.sgd.steps: -1: must be a number of 1 or more",
    ]
    with pytest.raises(ConfigError, match=r"^study\.yaml:4: .*methods\.sgd"), lines.name_lines():
        raise ConfigError("config: methods.sgd: head sgd takes none")
    with pytest.raises(DeviceError, match=r"^GPU 3: gone\n  and more$"), lines.name_lines():
        raise DeviceError(join_lines(["GPU 3: gone", "  and more"]))
    with lines.name_lines():
        check_study(load_study(STUDY))
