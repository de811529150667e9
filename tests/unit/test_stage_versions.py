"""Results are remade if the version of their stage was raised."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from dpprobe import versions
from dpprobe.stage_versions import (
    VERSIONS,
    Raised,
    RaisedJob,
    StageVersion,
    describe_raised,
    find_raised,
    is_only_raised,
)

TRAINED, STATED = StageVersion(4, "training"), StageVersion(7, "statement")


def test_versions_equal_those_of_the_code_and_know_their_stage() -> None:
    assert VERSIONS == versions.VERSIONS
    copied = pickle.loads(pickle.dumps(VERSIONS["training"]))
    assert (copied, copied.stage) == (versions.VERSIONS["training"], "training")
    assert repr(copied) == f"{versions.VERSIONS['training']}", "Snakemake compares this text"


def test_rules_have_versions_that_know_their_stage(repository: Path) -> None:
    files = [
        path
        for path in (repository / "workflow").rglob("*.smk")
        if re.search(r"\bVERSIONS\[", path.read_text())
    ]
    assert len(files) > 10
    for path in files:
        assert "from dpprobe.stage_versions import VERSIONS\n" in path.read_text(), path


@pytest.mark.parametrize(
    ("params", "recorded", "found"),
    [
        ([2, 0, TRAINED, STATED], ["0", "2", "4", "7"], []),
        ([2, 0, TRAINED, STATED], ["0", "2", "4", "6"], [("statement", 6)]),
        ([2, 0, TRAINED, STATED], ["0", "2", "3", "6"], [("training", 3), ("statement", 6)]),
        # an option equals a version number
        ([7, 0, TRAINED, STATED], ["0", "4", "6", "7"], [("statement", 6)]),
        ([4, 0, TRAINED, STATED], ["0", "3", "4", "7"], [("training", 3)]),
        # an option has changed, perhaps to the number of a version
        ([3, 0, TRAINED, STATED], ["0", "2", "4", "7"], []),
        ([4, 0, TRAINED, STATED], ["0", "2", "4", "7"], []),
        ([3, 0, TRAINED, STATED], ["0", "2", "4", "6"], [("statement", 6)]),
        # functions that compute params for each job are not called
        ([2, lambda _: 1 / 0, STATED], ["2", "6", "{'delta': 1e-05}"], [("statement", 6)]),
        # files of a later version, or without a version
        ([STATED], ["8"], [("statement", 8)]),
        ([STATED], ["'a'"], [("statement", None)]),
        ([STATED], None, []),
        ([2, "x"], ["3"], []),
    ],
)
def test_a_raised_version_is_found_among_texts(
    params: list[Any], recorded: list[str] | None, found: list[tuple[str, int | None]]
) -> None:
    raised = find_raised(params, recorded)
    assert [(each.stage, each.old) for each in raised] == found
    assert all(each.new == {"training": 4, "statement": 7}[each.stage] for each in raised)


def test_is_only_raised_detects_other_changed_params() -> None:
    raised = [Raised("statement", 6, 7)]
    assert is_only_raised(raised, {"6"}, {"7"})
    assert not is_only_raised(raised, {"6", "2"}, {"7", "3"})
    assert not is_only_raised([], {"2"}, {"3"})


def test_each_stage_has_a_line_with_both_versions() -> None:
    stated, reported = Raised("statement", 6, 7), Raised("report", None, 17)
    jobs = [RaisedJob([stated], 2), RaisedJob([stated], 3), RaisedJob([reported])]
    cells, report = describe_raised(jobs)
    assert {"5 cells", "version 7"} <= set(re.findall(r"\d+ cells|version \d+", cells))
    assert "heads" in cells
    assert "6" in cells
    assert "1 job" in report
    assert "version 17" in report
    # heads may be trained again, so the output does not mention heads
    told = describe_raised([*jobs, RaisedJob([Raised("training", 3, 4)], 5)])
    assert len(told) == 3
    assert not any("heads are kept" in line for line in told)
    assert describe_raised([]) == []
