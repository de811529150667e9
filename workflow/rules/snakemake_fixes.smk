# Works round Snakemake itself: each piece with what upstream says of it and the test that needs it.

from snakemake.persistence import PersistenceBase

from dpprobe.devices import put_python_on_path


def keep_restored(restore):
    """Lets a file marked with update() that has no backup pass for restored when it is there."""

    def restore_output(persistence, path):
        backed_up = persistence._get_backup_path(path).exists()
        return restore(persistence, path) if backed_up else path.exists()

    return restore_output


# Where jobs run elsewhere, a failed one puts its old cells back by itself, and one that never started has not
# touched them. The main process then looks for its own backup, finds none, and would delete finished cells.
# Upstream: snakemake/snakemake#3843 deletes files marked with update() that have no backup.
# Tests: tests/workflow/test_remote_jobs.py::test_a_job_that_never_started_leaves_finished_cells_alone,
# tests/slurm/test_slurm.py::test_a_failed_job_leaves_finished_cells_alone
if workflow.is_main_process:
    PersistenceBase.restore_output = keep_restored(PersistenceBase.restore_output)


async def leave_to_main_process(persistence, job):
    """Notes down nothing of a job's end."""


# A job on a cluster would note its files down as whole, but not what they were made from. Were the main process
# gone by then, the next one would take them for current, whatever had changed in between.
# Upstream: snakemake/snakemake#857 leaves the clean-up to the main process for the same reason; of the notes no
# thread is known.
# Test: tests/workflow/test_remote_jobs.py::test_what_nobody_noted_down_is_not_taken_for_current
if workflow.remote_exec:
    PersistenceBase.finished = leave_to_main_process


# A receipt of MLflow runs stands for a store that may be gone, which none of Snakemake's triggers can say.
# Upstream: snakemake/snakemake#4254 asks for a flag, force(), for such a case.
# Test: tests/workflow/test_default_study.py::test_a_deleted_mlflow_store_is_written_again
def make_again(file):
    """Has the job that makes a file run, although nothing that Snakemake compares has changed.

    An input function calls it, while Snakemake plans: the same as `--forcerun FILE`, which however would also make
    the file a target.
    """
    workflow.dag.forcefiles.add(file)


# cluster-generic starts the commands of profiles/slurm by name, and they are in Python: the one that runs this.
# Test: tests/project/test_slurm_profile.py::test_the_profiles_commands_find_a_python_in_any_shell
put_python_on_path()
