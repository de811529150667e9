"""The snapshot of a run, and the command line that started the run."""

import json
import os
from contextlib import suppress
from pathlib import Path

from dpprobe.data.downloads.addresses import public_addresses
from dpprobe.files.run_marks import MARKED, end_turn, find_other_runs, mark_run
from dpprobe.study.snapshot import SNAPSHOT_FILE, take_snapshot
from dpprobe.versions import RUN_VERSIONS, VERSIONS

# The study's files on the command line; jobs read the snapshot instead.
GIVEN_FILES = list(workflow.overwrite_configfiles or [])


def option_text(value):
    if isinstance(value, (dict, list)):
        return json.dumps(value)
    return "" if value is None else str(value)


def snakemake_call():
    """The arguments of `snakemake` that run this study from the working directory."""
    snakefile = Path(os.path.relpath(workflow.main_snakefile))
    here = snakefile == Path("Snakefile") and not IS_MODULE
    files = list(map(os.path.relpath, GIVEN_FILES))
    given = public_addresses(dict(workflow.config_settings.config))
    values = [f"{key}={option_text(value)}" for key, value in given.items()]
    return [
        *([] if here else ["--snakefile", snakefile.as_posix()]),
        *(["--configfile", *files] if files else []),
        *(["--config", *values] if values else []),
    ]


# The arguments that started the run, saved because a job's own configuration file is the snapshot.
CALL = RUN["call"] if RUN else snakemake_call()

# Folders that runs in other working directories may use too, which Snakemake's lock does not detect.
RUN_FOLDERS = [
    Path(folder).absolute() for folder in (STUDY.results_dir, STUDY.data_dir)
]


def tell_scripts(snapshot, versions):
    """Passes the run's initial facts to jobs' scripts in environment variables."""
    # only jobs change files in a storage provider
    folders = [] if IN_STORAGE else list(map(str, dict.fromkeys(RUN_FOLDERS)))
    os.environ[MARKED] = json.dumps(folders)
    os.environ[SNAPSHOT_FILE] = str(snapshot)
    os.environ[RUN_VERSIONS] = json.dumps(versions)


if IS_FIRST and workflow.is_main_process:
    SNAPSHOT = take_snapshot(config, STUDY, call=CALL)
elif RUN:
    tell_scripts(GIVEN_FILES[-1], RUN["versions"])
    with suppress(OSError):
        os.utime(os.environ[SNAPSHOT_FILE])  # marks the snapshot as in use


BEGUN = []  # not empty when the run has begun


def begin_run():
    BEGUN.append(True)
    end_turn()  # Snakemake has its locks
    end_from_thread()
    tell_scripts(SNAPSHOT.path, VERSIONS)
    # marked before searching for other runs, so that of two simultaneous runs at least one sees the other
    mark_run(RUN_FOLDERS)
    for other in find_other_runs(RUN_FOLDERS):
        tell(
            f"warning: {other.describe()}: jobs of both fail where they replace a file that the other reads; "
            "wait for that run, or give each study folders of its own"
        )
    SNAPSHOT.remove_older()
