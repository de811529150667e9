"""Data of a run for the logger plugin src/snakemake_logger_plugin_dpprobe, which writes all messages."""

import subprocess

from snakemake.settings.enums import Quietness

from dpprobe.study.run_command import command_line, profile_words, run_words
from dpprobe.logs import BRIEF
from snakemake_logger_plugin_dpprobe import RUN as TOLD_RUN


def print_results():
    """Prints the run's results and where to find more, or possible next steps."""
    jobs = list(workflow.dag.jobs)
    sys.stdout.flush()
    if any(job.rule.name == "summarise" for job in jobs):
        subprocess.run(
            [sys.executable, "-m", "dpprobe", "results", STUDY.results_dir], check=False
        )
        return
    releases = [
        job.wildcards.release for job in jobs if job.rule.name == "make_release"
    ]
    for name in releases:
        folder = f"{STUDY.results_dir}/releases/{name}"
        print("next:", command_line("dpprobe", "verify", folder))
    if not releases:
        following = run_words(call=CALL, where=profile_words(sys.argv))
        print("done; next:", command_line(*following))


if workflow.is_main_process:
    TOLD_RUN.follow(workflow, print_results, results=Path(STUDY.results_dir))


# A local job's standard error is on this terminal, and its error is printed when the run ends. Snakemake keeps only the
# last onstart block that it reads.
onstart:
    if workflow.is_main_process:
        check_devices()
        begin_run()
        quote_commands()
    quiet_about_rules = Quietness.RULES in (workflow.output_settings.quiet or ())
    if workflow.is_main_process and quiet_about_rules and workflow.local_exec:
        os.environ[BRIEF] = "1"


onsuccess:
    TOLD_RUN.note_success()
