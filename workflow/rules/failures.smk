"""Jobs that failed: what a run says of them, at once and as its last lines, and which it tries again."""

import atexit
import time

from snakemake.jobs import GroupJob, Job
from snakemake.logging import DefaultFormatter
from snakemake.settings.enums import Quietness

from dpprobe.logs import is_lasting, last_error

STARTED = time.time()
SCHEDULER_IDS = {}
FAILED = "failed; why is told when this run ends"


def quiet_about_rules():
    """Returns True where Snakemake lists no jobs: profiles/default asks for it, `--quiet host` does not."""
    return Quietness.RULES in (workflow.output_settings.quiet or ())


def without_files(format_job_error):
    """Leaves a job's inputs and outputs, often hundreds, out of what is said of its failure."""

    def brief_job_error(formatter, record):
        elsewhere = record["aux"].get("external_jobid")
        if elsewhere is not None:
            SCHEDULER_IDS[record["jobid"]] = elsewhere
        if quiet_about_rules():
            return [f"{told_name(record)}: {FAILED}"]
        # a job that ran here has written its log on the terminal as well
        show_log = formatter.show_failed_logs and elsewhere is not None
        brief = {**record, "msg": record["rule_msg"], "input": [], "output": []}
        return format_job_error(DefaultFormatter(formatter.quiet, show_log), brief)

    return brief_job_error


def told_name(record):
    """Returns the message of the rule of a record's job, or else the rule's name."""
    jobs = [
        job for job in workflow.dag.jobs if workflow.dag.jobid(job) == record["jobid"]
    ]
    return jobs[0].message if jobs and jobs[0].message else record["rule_name"]


def group_in_one_line(format_group_error):
    """Leaves out the files of a group of jobs likewise."""

    def brief_group_error(formatter, record):
        if not quiet_about_rules():
            return format_group_error(formatter, record)
        rule_names = sorted({info["rule_name"] for info in record["job_error_info"]})
        return [f"a group of {', '.join(rule_names)}: {FAILED}"]

    return brief_group_error


def written_logs(job):
    """Returns the logs of a job that were written in this run."""
    return [
        log
        for log in map(Path, job.log)
        if log.is_file() and log.stat().st_mtime >= STARTED
    ]


def unless_lasting(restart_times):
    """Has a job, or a group with one, not tried again whose error would stay."""

    def useful_restart_times(job):
        jobs = job.jobs if job.is_group() else [job]
        logs = [log for each in jobs for log in written_logs(each)]
        lasting = any(is_lasting(log.read_text(errors="replace")) for log in logs)
        return 0 if lasting else restart_times(job)

    return useful_restart_times


def failed_job_logs(job):
    """Returns the logs of a failed job: its own if this run wrote it, and what Slurm kept of its last attempt."""
    number = SCHEDULER_IDS.get(workflow.dag.jobid(job))
    kept = Path("logs/slurm", job.rule.name).rglob(f"{number}.log") if number else []
    return [*written_logs(job), *kept]


def failure(job):
    """Returns one failed job's cause and the log that tells it."""
    logs = failed_job_logs(job)
    for log in logs:
        error = last_error(log.read_text(errors="replace"))
        if error:
            return f"dpprobe: {job.message}: {error}\n  log: {log}"
    place = f"\n  log: {logs[-1]}" if logs else ""
    return (
        f"dpprobe: {job.message}: failed without an error in its log, see above{place}"
    )


def failures():
    """Returns the causes of all failed jobs; none when a person interrupted them."""
    if getattr(workflow.scheduler, "_user_kill", None):
        return []
    jobs = [
        job
        for failed in workflow.scheduler.failed
        for job in (failed.jobs if failed.is_group() else [failed])
    ]
    return [failure(job) for job in sorted(jobs, key=workflow.dag.jobid)]


# A failure would list every input and output of the job, and its log although that is on the terminal already.
# Upstream: Snakemake 9.27 has no option for it, and a logger plugin would be a package of its own.
# Test: tests/workflow/test_errors.py::test_a_failure_ends_with_its_cause
DefaultFormatter._format_job_error = without_files(DefaultFormatter._format_job_error)
DefaultFormatter._format_group_error = group_in_one_line(
    DefaultFormatter._format_group_error
)


# A damaged shard or an impossible price would be tried `retries` times, with more memory and time at each.
# Upstream: snakemake/snakemake#2441 asks for a decision by the job's log.
# Tests: tests/workflow/test_errors.py::test_an_error_that_stays_is_not_tried_again,
# tests/workflow/test_remote_jobs.py::test_a_job_that_never_started_leaves_finished_cells_alone
for kind in (Job, GroupJob):
    kind.restart_times = property(unless_lasting(kind.restart_times.fget))


# Snakemake's last lines name its own log and no cause: these come after them, when Python ends.
onerror:
    causes = failures() if workflow.is_main_process else []
    if causes:
        atexit.register(print, *causes, sep="\n", file=sys.stderr)
