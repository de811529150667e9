# Works around Snakemake itself: each piece with its upstream thread and its test.

import shlex
import threading
import time
from pathlib import Path
from subprocess import CalledProcessError

from snakemake.exceptions import WorkflowError
from snakemake.jobs import Job
from snakemake.persistence import PersistenceBase
from snakemake.scheduling.job_scheduler import JobScheduler
from snakemake_executor_plugin_cluster_generic import Executor
from snakemake.settings.types import RerunTrigger
from snakemake.spawn_jobs import SpawnedJobArgsFactory
from snakemake_interface_executor_plugins.utils import format_cli_arg

from dpprobe.devices import put_python_on_path
from dpprobe.study.run_command import NO_OBJECT_STORE
from snakemake_logger_plugin_dpprobe.failures import has_lasting_error


def make_no_backup(persistence, path):
    """Copies nothing: a job replaces its cells itself, each file whole and not before all are trained."""


def is_there(persistence, path):
    """Lets a file marked with update() pass for restored when it is there."""
    return path.exists()


# A backup of every cell takes disk and time and, on a full disk, ends the whole run or truncates a cell when restored.
# If jobs run elsewhere, the main process finds no backup after a failure, and would delete finished cells.
# Upstream: snakemake/snakemake#3843 deletes files marked with update() that have no backup.
# Tests: tests/workflow/test_remote_jobs.py::test_a_job_that_never_started_leaves_finished_cells_alone,
# tests/workflow/test_errors.py::test_a_failed_job_over_finished_cells_does_not_pass_for_done,
# tests/slurm/test_slurm.py::test_a_failed_job_leaves_finished_cells_alone
PersistenceBase.backup_output = make_no_backup
PersistenceBase.restore_output = is_there


class StudyError(WorkflowError):
    """A study is wrong: its message has a line for each fault."""


# In an object store, Snakemake would delete a finished cell when its job fails, and would not fetch the cell before
# (docs/storage.md).
if (
    workflow.storage_settings.default_storage_provider
    or workflow.storage_settings.default_storage_prefix
):
    raise StudyError(f"--default-storage-provider: {NO_OBJECT_STORE}")


STARTED = time.time()


def unless_lasting(restart_times):
    """Spares a job or group the retries of an error that would recur."""

    def useful_restart_times(job):
        return 0 if has_lasting_error(job, STARTED) else restart_times(job)

    return useful_restart_times


# A damaged shard or an impossible price would be retried `retries` times, each time with more memory and time.
# Upstream: snakemake/snakemake#2441 asks for a decision by the job's log.
# Tests: tests/workflow/test_errors.py::test_an_error_that_stays_is_not_tried_again,
# tests/workflow/test_remote_jobs.py::test_a_job_that_never_started_leaves_finished_cells_alone
Job.restart_times = property(unless_lasting(Job.restart_times.fget))


async def leave_to_main_process(persistence, job):
    """Notes down nothing of a job's end."""


# A job on a cluster would note its files down as whole, without their inputs and parameters. If the main process had
# ended by then, the next run would take the files for up to date, whatever had changed in between.
# Upstream: snakemake/snakemake#857 leaves the clean-up to the main process for the same reason; of the notes no
# thread is known.
# Test: tests/workflow/test_remote_jobs.py::test_what_nobody_noted_down_is_not_taken_for_current
if workflow.remote_exec:
    PersistenceBase.finished = leave_to_main_process


def ended_by_signal(error):
    """Returns True if a status command, or the shell that ran it, was ended by a signal."""
    if isinstance(error, UnboundLocalError):
        return True
    command = error.__context__
    return isinstance(command, CalledProcessError) and command.returncode > 128


def keep_unasked(check):
    """Lets jobs whose state could not be asked, since a signal ended the question, pass for active."""

    async def check_active_jobs(executor, active_jobs):
        for job in active_jobs:
            try:
                async for active in check(executor, [job]):
                    yield active
            except (UnboundLocalError, WorkflowError) as error:
                if not ended_by_signal(error):
                    raise
                executor.status_cmd_kills.clear()  # ten of them are joined as if they were words
                yield job

    return check_active_jobs


# A signal to all processes of a run also ends the command that asks for a job's state, or the command's shell. The
# plugin then uses an answer that it lacks (UnboundLocalError), or takes the shell's exit code for the command's
# (WorkflowError). Either error ends the run and forgets its jobs. The command itself never fails. A command that cannot
# be started still ends the run.
# Upstream: no thread is known; snakemake-executor-plugin-cluster-generic 1.0.9 has it, in check_active_jobs.
# Test: tests/workflow/test_remote_jobs.py::test_status_commands_that_a_signal_ended_lose_no_job
if workflow.is_main_process:
    Executor.check_active_jobs = keep_unasked(Executor.check_active_jobs)


# `--profile "my profiles/slurm"`: the plugin has a shell run the commands as they are (cluster-generic 1.0.9).
# Test: tests/workflow/test_remote_jobs.py::test_a_profile_may_lie_in_a_folder_with_spaces
def quote_commands():
    """Quotes the paths of a profile's commands, before the first job is submitted."""
    settings = workflow.executor_settings
    for name in ("submit_cmd", "status_cmd"):
        command = getattr(settings, name, None)
        if command and Path(command).is_file():
            setattr(settings, name, shlex.quote(command))


def parameters_count():
    """Returns True if a change of parameters has jobs run again (--rerun-triggers)."""
    return RerunTrigger.PARAMS in workflow.rerun_triggers


# A job elsewhere would read the files of --configfile when it starts, whatever they hold by then, while the main
# process notes down the parameters that it planned with: results of edited options would pass for results of the old.
# Upstream: no thread is known; spawned jobs get the files' names (get_configfiles_arg), not what was read.
# Tests: tests/workflow/test_snapshot.py
def start_jobs_with(snapshot):
    """Has the jobs that this process starts elsewhere read the snapshot in place of the study's files."""

    def snapshot_argument(factory):
        snapshot.write()
        return format_cli_arg("--configfiles", [snapshot.path])

    SpawnedJobArgsFactory.get_configfiles_arg = snapshot_argument


def apart_from_signals(exit_gracefully):
    """Takes the scheduler's lock in a thread: a signal's handler runs in the one that may hold it."""

    def exit_in_thread(*arguments):
        threading.Thread(target=exit_gracefully, args=arguments).start()

    return exit_in_thread


# A SIGTERM that meets the scheduler while it holds its lock, such as when a job ends, stops the run for good.
# Upstream: no thread is known; Snakemake 9.27 has it, in JobScheduler.exit_gracefully.
# Test: tests/workflow/test_failures.py::test_a_signal_meets_a_scheduler_that_holds_its_lock
JobScheduler.exit_gracefully = apart_from_signals(JobScheduler.exit_gracefully)


# cluster-generic starts the commands of profiles/slurm by name, and they are in Python: the one that runs this.
# Test: tests/project/test_slurm_profile.py::test_the_profiles_commands_find_a_python_in_any_shell
put_python_on_path()
