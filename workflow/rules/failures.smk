"""Jobs that failed: what a run says of them, at once and as its last lines, and which it tries again."""

import atexit
import signal
import subprocess
import time

from snakemake.executors.local import Executor
from snakemake.jobs import GroupJob, Job
from snakemake.logging import DefaultFormatter, logger
from snakemake.settings.enums import Quietness

from dpprobe.logs import is_lasting, last_error

STARTED = time.time()
SCHEDULER_IDS = {}
STATUSES = (
    {}
)  # of jobs that ran here, by their number: how the last attempt's process ended
STOPPED = []  # holds what Snakemake said when a person ended the run by Ctrl-C
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
            return [failed_line(record)]
        # a job that ran here has written its log on the terminal as well
        show_log = formatter.show_failed_logs and elsewhere is not None
        brief = {**record, "msg": record["rule_msg"], "input": [], "output": []}
        return format_job_error(DefaultFormatter(formatter.quiet, show_log), brief)

    return brief_job_error


def failed_line(record):
    """Returns the line that says at once that a job failed: what comes of it, and its log."""
    job = next(
        (
            job
            for job in workflow.dag.jobs
            if workflow.dag.jobid(job) == record["jobid"]
        ),
        None,
    )
    logs = "".join(f"; log: {log}" for log in record["log"][:1])
    if job is None:
        return f"{record['rule_name']}: {FAILED}{logs}"
    name = job.message or record["rule_name"]
    if is_interrupted(job):
        return f"{name}: {killed(job)}{logs}"
    if not is_tried_again(job):
        return f"{name}: {FAILED}{logs}"
    # the next attempt writes the log anew
    cause = told_cause(job)[0] or killed(job)
    return f"{name}: failed{f' ({cause.splitlines()[0]})' if cause else ''}, tried again{logs}"


def is_tried_again(job):
    """Returns True for a job that failed and has attempts left, in a run that starts further jobs."""
    scheduler = workflow.scheduler
    tried = whole_group(job) or job
    ends = scheduler._user_kill or (scheduler._errors and not scheduler.keepgoing)
    return not ends and tried.restart_times > tried.attempt - 1


def group_in_one_line(format_group_error):
    """Leaves out the files of a group of jobs likewise."""

    def brief_group_error(formatter, record):
        for info in record["job_error_info"]:
            if elsewhere := info["aux"].get("external_jobid"):
                SCHEDULER_IDS[info["jobid"]] = elsewhere
        if not quiet_about_rules():
            return format_group_error(formatter, record)
        rule_names = sorted({info["rule_name"] for info in record["job_error_info"]})
        # a line for each of its jobs follows
        return [f"a group of {', '.join(rule_names)}: failed"]

    return brief_group_error


def written_logs(job):
    """Returns the logs of a job that were written in this run."""
    return [
        log
        for log in map(Path, job.log)
        if log.is_file() and log.stat().st_mtime >= STARTED
    ]


def whole_group(job):
    """Returns the group that a job is tried in; None for one alone."""
    return workflow.dag._group.get(job)


def has_own_error(job):
    """Returns True for a job that wrote an error to its own log in this run."""
    return any(last_error(log.read_text(errors="replace")) for log in written_logs(job))


def is_blameless(job):
    """Returns True for a job without an error in a group that another job's error ended."""
    group = whole_group(job)
    return bool(
        group and not has_own_error(job) and any(map(has_own_error, group.jobs))
    )


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
    group = whole_group(job)
    folder = Path("logs/slurm", group.groupid if group else job.rule.name)
    kept = folder.rglob(f"{number}.log") if number else []
    return [*written_logs(job), *kept]


def told_cause(job):
    """Returns the error that a failed job's logs end with, and the log that has it; twice None without one."""
    if is_blameless(job):
        return None, None
    for log in failed_job_logs(job):
        error = last_error(log.read_text(errors="replace"))
        if error:
            return error, log
    return None, None


def killed(job):
    """Returns the words for a failed job whose process a signal ended; None for any other."""
    status = STATUSES.get(workflow.dag.jobid(job)) or 0
    # of a shell, whose command was ended by it, the number plus 128
    number = -status if status < 0 else status - 128
    if number <= 0:
        return None
    memory = ": perhaps too little memory" if number == signal.SIGKILL else ""
    return f"killed by signal {number}{memory}"


def failure(job):
    """Returns one failed job's cause and the log that tells it."""
    error, log = told_cause(job)
    if error:
        return f"dpprobe: {job.message}: {error}\n  log: {log}"
    logs = failed_job_logs(job)
    place = f"\n  log: {logs[-1]}" if logs else ""
    status = STATUSES.get(workflow.dag.jobid(job))
    ended = "see above" if status is None else f"its process ended with status {status}"
    cause = killed(job) or f"failed without an error in its log, {ended}"
    return f"dpprobe: {job.message}: {cause}{place}"


def failures():
    """Returns the causes of all failed jobs; of a run that a person ended those that did not fail by that."""
    failed = {
        job
        for each in workflow.scheduler.failed
        for job in (each.jobs if each.is_group() else [each])
    }
    # such as were to be tried again when the run ended
    untried = {
        job
        for job in workflow.dag.jobs
        if job.attempt > 1 and not workflow.dag.finished(job)
    } - failed
    uncertain = untried | (failed if workflow.scheduler._user_kill else set())
    told = (failed - uncertain) | {
        job for job in uncertain if told_cause(job)[0] or is_out_of_memory(job)
    }
    told = {job for job in told if not is_blameless(job)}
    return [failure(job) for job in sorted(told, key=workflow.dag.jobid)]


def ended_by(job, *signals):
    """Returns True for a job whose process one of these signals ended."""
    status = STATUSES.get(workflow.dag.jobid(job))
    return status in [code for each in signals for code in (-each, 128 + each)]


def is_out_of_memory(job):
    """Returns True for a job that the system ended, as it does for want of memory, and no person by Ctrl-C."""
    return ended_by(job, signal.SIGKILL)


def is_interrupted(job):
    """Returns True for a job without an error that Ctrl-C ended, or a signal to all processes of a run."""
    return ended_by(job, signal.SIGINT, signal.SIGTERM) and not told_cause(job)[0]


def noting_status(callback):
    """Notes the status of a failed job's process, whose error names it and no job."""

    def noting_callback(executor, job_info, future):
        job, error = job_info.job, None if future.cancelled() else future.exception()
        while error and not isinstance(error, subprocess.CalledProcessError):
            error = error.__cause__ or error.__context__
        if not job.is_group():
            STATUSES[workflow.dag.jobid(job)] = error.returncode if error else None
        return callback(executor, job_info, future)

    return noting_callback


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


# A job that the system ended, as for want of memory, has nothing in its log: its status is all that is known.
# Upstream: Snakemake 9.27 has the status in the text of an error that names a rule's file, and no job.
# Test: tests/workflow/test_failures.py::test_a_killed_job_is_told_with_its_signal
Executor._callback = noting_status(Executor._callback)


def noting_stop(record):
    """Notes that a person ended the run by Ctrl-C, of which no state of the scheduler tells."""
    if str(record.msg).startswith("Terminating processes on user request"):
        STOPPED.append(record.msg)
    return True


# Upstream: Snakemake 9.27 has `_user_kill` of SIGTERM alone.
# Test: tests/workflow/test_failures.py::test_a_failure_before_a_person_ends_the_run_is_told
logger.addFilter(noting_stop)


# Snakemake's last lines name its own log and no cause: these come after them, when Python ends.
onerror:
    causes = failures() if workflow.is_main_process else []
    if workflow.is_main_process and (STOPPED or workflow.scheduler._user_kill):
        causes.append("dpprobe: stopped; run the same command again to go on")
    if causes:
        atexit.register(print, *causes, sep="\n", file=sys.stderr)
