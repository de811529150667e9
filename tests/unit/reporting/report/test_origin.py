"""Commands that make results again."""

from __future__ import annotations

from dataclasses import replace

from dpprobe.reporting.report.origin import cell_command
from tests.support.report_page import Made


def test_the_command_names_the_study_that_was_run(made: Made) -> None:
    cell = ("digits", "pixels", "sgd", "0.5")
    origin = replace(made.origin, call=["--configfile", "config/my study.yaml"])
    assert cell_command(origin, *cell) == (
        "snakemake results/cells/digits/pixels/sgd/eps-0.5/metrics.json --cores all "
        "--configfile 'config/my study.yaml'"
    )


def test_a_commit_with_local_changes_is_no_bare_checkout(made: Made) -> None:
    made.origin = replace(made.origin, commit="abc123 with local changes")
    assert "git checkout abc123 # with local changes, which the commit does not have" in " ".join(
        made.page().words.split()
    )
