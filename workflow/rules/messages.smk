"""What a run says: little while it works, all that it plans in a dry run, and its results as its last lines."""

import shlex
import subprocess

from snakemake.logging import DefaultFilter, LogEvent, get_event, logger
from snakemake.settings.enums import Quietness
from snakemake.workflow import NOTHING_TO_BE_DONE_MSG

from dpprobe.study.run_command import profile_words, run_words
from dpprobe.logs import BRIEF

PROGRESS_SECONDS = 10  # at least, between two lines that say how many jobs are done
# How lines begin that say nothing of the study, or what failures.smk says better.
UNTOLD = (
    "Select jobs to execute...",
    "Execute ",
    "Using shell: ",
    "Conda environments: ",
    "Touching output file ",
    "Complete log(s): ",
    "Shutting down, ",
    "Exiting because a job execution failed.",
    "RuleException:\nCalledProcessError in file",
    "WorkflowError:\nAt least one job did not complete successfully.",
)
TOLD = {"progress": 0.0}


def with_failures(passes):
    """Lets a line through now and then that says how far a quiet run is, and one for each failed job."""

    def brief_passes(log_filter, record):
        event = get_event(record)
        if event == LogEvent.JOB_INFO and not record.output:
            return False  # of a target: hundreds of files that it names
        if Quietness.RULES not in log_filter.quiet or Quietness.ALL in log_filter.quiet:
            return passes(log_filter, record)
        if event == LogEvent.PROGRESS:
            return is_time(record)
        if event in (LogEvent.JOB_ERROR, LogEvent.GROUP_ERROR):
            return True
        return passes(log_filter, record) and not str(record.msg).startswith(UNTOLD)

    return brief_passes


def is_time(record):
    """Returns True for the first of the lines of progress in a while; every handler has the same answer."""
    if getattr(record, "is_shown", None) is None:
        record.is_shown = time.monotonic() - TOLD["progress"] > PROGRESS_SECONDS
        if record.is_shown:
            TOLD["progress"] = time.monotonic()
    return record.is_shown


# A run would print several lines a job, with every file that it reads and writes.
# Upstream: Snakemake 9.27 has either all lines on jobs or none, neither the failed ones nor progress.
# Tests: tests/workflow/test_messages.py
DefaultFilter.filter = with_failures(DefaultFilter.filter)


# Snakemake takes the `quiet` of a profile for that of a dry run too, whose lines are all that it is made for.
# Upstream: no thread is known.
# Test: tests/workflow/test_messages.py::test_a_dry_run_says_what_would_run_and_why
if workflow.output_settings.dryrun and not any(
    word.startswith(("-q", "--quiet")) for word in sys.argv
):
    workflow.output_settings.quiet = {Quietness.HOST}
    for handler in logger.handlers:
        handler.formatter.quiet = {Quietness.HOST}
        for each in handler.filters:
            each.quiet = {Quietness.HOST}


def ends_with_results():
    """Returns True for a run of a person who wants to read more than errors."""
    silent = Quietness.ALL in (workflow.output_settings.quiet or ())
    return (
        workflow.is_main_process and not workflow.output_settings.dryrun and not silent
    )


def last_lines(directory):
    """Prints the results that this run was about, and where to look further; else what may come next.

    `directory` is the run's working directory, which Snakemake has left by the time that Python ends.
    """
    jobs = list(workflow.dag.jobs)
    if any(job.rule.name == "summarise" for job in jobs):
        sys.stdout.flush()
        subprocess.run(
            [sys.executable, "-m", "dpprobe", "results", STUDY.results_dir],
            check=False,
            cwd=directory,
        )
        return
    releases = [
        job.wildcards.release for job in jobs if job.rule.name == "make_release"
    ]
    for name in releases:
        print(f"next: dpprobe verify {STUDY.results_dir}/releases/{name}")
    if not releases:
        following = run_words(call=CALL, where=profile_words(sys.argv))
        print("done; next:", shlex.join(following))


def is_plain(record):
    """Has a run that finds nothing to do end as one that did it."""
    if record.msg == NOTHING_TO_BE_DONE_MSG and ends_with_results():
        atexit.register(last_lines, os.getcwd())
    return True


logger.addFilter(is_plain)


# A job that runs here has its standard error on this terminal, and failures.smk prints its error at the end.
# Snakemake keeps one such block, the last that it reads.
onstart:
    if workflow.is_main_process:
        begin_run()
    if workflow.is_main_process and quiet_about_rules():
        workflow.scheduler.print_progress = True  # which `is_time` thins out
        if workflow.local_exec:
            os.environ[BRIEF] = "1"


# Snakemake's last lines name its own log: the results come after them, when Python ends.
onsuccess:
    if ends_with_results():
        atexit.register(last_lines, os.getcwd())
