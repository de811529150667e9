"""Data of a run for the logger plugin src/snakemake_logger_plugin_dpprobe, which writes all messages."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from snakemake.settings.enums import Quietness

from dpprobe.files.dropped_files import describe_removed, remove_dropped
from dpprobe.files.logs import BRIEF
from dpprobe.release.bundle import RELEASES_FOLDER
from dpprobe.release.bundle_folders import list_misplaced
from dpprobe.files.run_marks import take_turn
from dpprobe.study.run_command import command_line, profile_words, run_words
from snakemake_logger_plugin_dpprobe import RUN as TOLD_RUN


def print_results():
    """Prints the run's results and where to find more, or possible next steps."""
    jobs = list(workflow.dag.jobs)
    sys.stdout.flush()
    if IN_STORAGE:
        prefix = workflow.storage_settings.default_storage_prefix
        print(f"done; the results are in {prefix.rstrip('/')}/{STUDY.results_dir}")
        return
    if any(job.rule.name == rule_name("summarise") for job in jobs):
        subprocess.run(
            [sys.executable, "-m", "dpprobe", "results", STUDY.results_dir], check=False
        )
        return
    releases = [
        job.wildcards.release
        for job in jobs
        if job.rule.name == rule_name("make_release")
    ]
    for name in releases:
        folder = f"{STUDY.results_dir}/releases/{name}"
        print("next:", command_line("dpprobe", "verify", folder))
    if not releases:
        following = run_words(call=CALL, where=profile_words(sys.argv))
        print("done; next:", command_line(*following))


if IS_FIRST and workflow.is_main_process:
    TOLD_RUN.follow(workflow, print_results, results=Path(STUDY.results_dir))


@cache
def tell_misplaced():
    """Logs, once and in one line, that a folder for the study's releases contains another release."""
    if misplaced := list_misplaced(Path(STUDY.results_dir, RELEASES_FOLDER)):
        folder, name = misplaced[0]
        more = f" (and {len(misplaced) - 1} more)" if len(misplaced) > 1 else ""
        tell(
            f"warning: {folder}{more} holds the release {name!r:.60}; `dpprobe doctor` says how to move it back"
        )


def start_run():
    """Begins a run. Local jobs are brief: their errors are on this terminal, and are printed when the run ends."""
    check_slurm()
    check_devices()
    begin_run()
    quote_commands()
    quiet_about_rules = Quietness.RULES in (workflow.output_settings.quiet or ())
    if quiet_about_rules and workflow.local_exec:
        os.environ[BRIEF] = "1"


def end_run():
    """Notes the success, and removes figures and tables that the study no longer has."""
    take_last_turn()
    TOLD_RUN.note_success()
    if IN_STORAGE:
        return
    files = list(map(os.path.abspath, GIVEN_FILES))
    study = [STUDY.study, os.getcwd(), *files]
    if removed := remove_dropped(Path(STUDY.results_dir), study, shown_files()):
        tell(describe_removed(removed))


def take_last_turn():
    """Prevents the start of other runs while Snakemake deletes this run's locks."""
    take_turn(Path(workflow.persistence.path))


def before(act, block):
    """Acts before a block of the Snakefile."""

    def both(log):
        act()
        block(log)

    return both


# If a workflow uses these rules as a module, Snakemake runs only that workflow's onstart and onsuccess blocks. So these
# rule files have no such blocks, and act before the blocks that Snakemake has read.
# Upstream: snakemake/snakemake#3920, snakemake/snakemake#4050
# Test: tests/workflow/test_modules.py::test_a_module_runs_next_to_other_rules
@cache
def follow_run():
    """Registers functions for the run's start and end, after all rule files are read."""
    workflow._onstart = before(start_run, workflow._onstart)
    workflow._onsuccess = before(end_run, workflow._onsuccess)
    workflow._onerror = before(take_last_turn, workflow._onerror)
