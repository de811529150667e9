# Workarounds for faults of Snakemake, each with its upstream thread and its test.

import shlex
import signal
import threading
import time
from pathlib import Path
from subprocess import CalledProcessError

from snakemake.dag import DAG
from snakemake.exceptions import WorkflowError
from snakemake.jobs import Job
from snakemake.persistence import PersistenceBase
from snakemake.settings.types import RerunTrigger
from snakemake_executor_plugin_cluster_generic import Executor

from dpprobe.devices import put_python_on_path
from snakemake_logger_plugin_dpprobe.failures import has_lasting_error


include: "module_use.smk"


STARTED = time.time()


def unless_lasting(restart_times):
    """Sets the retries of a job or group to 0 after an error that would recur."""

    def useful_restart_times(job):
        lasts = namespace_of(job.rule) and has_lasting_error(job, STARTED)
        return 0 if lasts else restart_times(job)

    return useful_restart_times


# A damaged shard or an impossible price would be retried `retries` times, each time with more memory and time.
# Upstream: snakemake/snakemake#2441 asks for a decision by the job's log.
# Tests: tests/workflow/test_errors.py::test_an_error_that_stays_is_not_tried_again,
# tests/workflow/test_remote_jobs.py::test_a_job_that_never_started_leaves_what_was_trained
if IS_FIRST:
    Job.restart_times = property(unless_lasting(Job.restart_times.fget))


async def leave_to_main_process(persistence, job):
    """Records nothing when a job ends."""


# A job on a cluster would record its files as complete, but without inputs and parameters. If the main process ended
# before the job, the next run would treat the files as up to date, whatever has changed.
# Upstream: snakemake/snakemake#857 leaves the clean-up to the main process; no thread about records is known.
# Test: tests/workflow/test_remote_jobs.py::test_files_without_a_record_of_their_job_are_stale
if IS_FIRST and workflow.remote_exec:
    PersistenceBase.finished = leave_to_main_process


def ended_by_signal(error):
    """Returns True if a status command, or the shell that ran it, was ended by a signal."""
    if isinstance(error, UnboundLocalError):
        return True
    command = error.__context__
    return isinstance(command, CalledProcessError) and command.returncode > 128


def keep_unasked(check):
    """Treats a job as active if a signal ended the command that asks for the job's state."""

    async def check_active_jobs(executor, active_jobs):
        for job in active_jobs:
            try:
                async for active in check(executor, [job]):
                    yield active
            except (UnboundLocalError, WorkflowError) as error:
                if not ended_by_signal(error):
                    raise
                executor.status_cmd_kills.clear()  # the plugin fails to format ten kills, which are not strings
                yield job

    return check_active_jobs


# A signal to all processes of a run also ends the command that asks for a job's state, or the command's shell. Without
# an answer, the plugin raises UnboundLocalError; if it reads the shell's exit code, it raises WorkflowError. Both errors
# end the run and lose its jobs. Status commands never fail by themselves. A status command that cannot be started still
# ends the run.
# Upstream: docs/upstream.md; snakemake-executor-plugin-cluster-generic 1.0.9 fails in check_active_jobs.
# Test: tests/workflow/test_remote_jobs.py::test_status_commands_that_a_signal_ended_lose_no_job
if IS_FIRST and workflow.is_main_process:
    Executor.check_active_jobs = keep_unasked(Executor.check_active_jobs)


# A profile's folder may contain spaces, but cluster-generic 1.0.9 runs a profile's commands unquoted in a shell.
# Test: tests/workflow/test_remote_jobs.py::test_a_profile_may_lie_in_a_folder_with_spaces
def quote_commands():
    """Quotes the paths of a profile's commands, before the first job is submitted."""
    settings = workflow.executor_settings
    for name in ("submit_cmd", "status_cmd"):
        command = getattr(settings, name, None)
        if command and Path(command).is_file():
            setattr(settings, name, shlex.quote(command))


def parameters_count():
    """Returns True if changed parameters trigger reruns (--rerun-triggers)."""
    return RerunTrigger.PARAMS in workflow.rerun_triggers


# A remote job would read the files of --configfile when it starts, but the main process records the parameters at
# planning. So results of options edited in between would count as results of the old options.
# Upstream: no thread is known; spawned jobs get the names of study files, not their content.
# Tests: tests/workflow/test_snapshot.py
def start_jobs_with(snapshot):
    """Makes jobs read the snapshot as study file, after all rule files are read.

    If a workflow uses these rules as a module, its files may have more than the study, so its jobs read both.
    """
    files = list(GIVEN_FILES) if IS_MODULE else []
    workflow.config_settings.configfiles = [*files, snapshot.path]
    # one of the files that are sent to jobs without a shared disk
    if snapshot.path not in workflow.configfiles:
        workflow.configfiles.append(snapshot.path)


def end_from_thread():
    """Takes the scheduler's lock in a new thread, as a signal's handler runs in a thread that may hold the lock.

    Otherwise, a SIGTERM blocks the run forever if the scheduler holds its lock at this moment, such as when a job ends
    (docs/upstream.md).
    Test: tests/workflow/test_failures.py::test_a_signal_ends_a_run_whose_scheduler_is_locked
    """
    handler = signal.getsignal(signal.SIGTERM)

    def handle(*arguments):
        threading.Thread(target=handler, args=arguments).start()

    if callable(handler):
        signal.signal(signal.SIGTERM, handle)


def look_before(plan):
    """Makes Snakemake rerun jobs whose files changed in ways that Snakemake's own triggers do not detect."""

    async def update_needrun(dag, *arguments, **options):
        follow_run()
        dag.forcefiles.update(changed_outputs(dag.jobs))
        await plan(dag, *arguments, **options)
        tell_raised(dag)
        tell_misplaced()
        check_storage(dag.needrun_jobs())
        if not workflow.dryrun:
            ready_jobs(dag.needrun_jobs())

    return update_needrun


# If a result is edited, Snakemake treats it as up to date (unchanged time), or as a new source of later files (new
# time). A receipt of MLflow runs may refer to a deleted store. No trigger of Snakemake detects edits or lost stores.
# Upstream: snakemake/snakemake#4254 asks for a flag, force(), to rerun jobs.
# Tests: tests/unit/files/test_written_files.py,
# tests/workflow/test_default_study.py::test_a_deleted_mlflow_store_is_written_again
if IS_FIRST and workflow.is_main_process:
    DAG.update_needrun = look_before(DAG.update_needrun)


# cluster-generic starts the Python commands of profiles/slurm by name, so this Python must be first on PATH.
# Test: tests/project/test_slurm_profile.py::test_the_profiles_commands_find_a_python_in_any_shell
put_python_on_path()
