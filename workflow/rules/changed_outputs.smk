"""Finds jobs that must run again because their files changed or disagree with the study."""

import os
from pathlib import Path

from dpprobe.files.disk_errors import explain_unwritable
from dpprobe.files.json_files import read_whole_record
from dpprobe.privacy.limits import INFINITE
from dpprobe.privacy.risk import nominal_epsilon
from dpprobe.release.bundle import BUNDLE_FILES
from dpprobe.files.result_store import keep_published
from dpprobe.results.cell_files import CELL_FILES, METRICS_FILE
from dpprobe.results.cell_record import CellName, find_disagreement, recorded_facts
from dpprobe.files.run_marks import take_turn
from dpprobe.study.network_methods import head_methods
from dpprobe.study.study import Cell
from dpprobe.stage_versions import (
    RaisedJob,
    describe_raised,
    find_raised,
    is_only_raised,
)
from dpprobe.tracking.receipt import find_store_fault
from dpprobe.files.written_files import lacks_record, list_changed, locate_record
from snakemake_logger_plugin_dpprobe import RUN as RAISED_RUN

# Caches, for each job, if its files are complete, because Snakemake plans several times.
WHOLE_JOBS = {}
TOLD = {}
# The files of a cell that Snakemake does not check, because no rule names them.
UNNAMED_FILES = [name for name in CELL_FILES if name not in FILES.cell_files]
# The rule whose outputs cannot be recreated, because they are files on other servers.
KEPT_RULES = {rule_name("download_data")}


def changed_outputs(jobs):
    """The outputs of jobs whose files changed, or disagree with the study; none of a storage provider's."""
    if IN_STORAGE:
        return set()
    for job in jobs:
        known = job.output and job.log and job.rule.name not in KEPT_RULES
        if known and namespace_of(job.rule) and job not in WHOLE_JOBS:
            check = CHECKS.get(job.rule.name, lambda job: True)
            WHOLE_JOBS[job] = check(job) and files_stay(job)
    return {
        file for job in jobs if not WHOLE_JOBS.get(job, True) for file in job.output
    }


def ready_jobs(jobs):
    """Prepares the run for jobs, and links the jobs' earlier results into the store before Snakemake deletes them."""
    jobs = list(jobs)
    if not jobs:
        return
    SNAPSHOT.write()
    start_jobs_with(SNAPSHOT)
    if not BEGUN:
        take_turn(Path(workflow.persistence.path))
    for job in [] if IN_STORAGE else jobs:
        if job.rule.name in STORED and namespace_of(job.rule):
            for path in job.output:
                keep_published(Path(STUDY.results_dir), Path(path))


def tell_first(problem, first):
    """Logs the first file that is recreated because of a problem."""
    if TOLD.setdefault(problem, first) == first:
        tell(f"{problem} are made again, {first}")


def tell_raised(dag):
    """Logs, in one line per stage, which jobs rerun because a version in src/dpprobe/versions.py was raised."""
    jobs = []
    for job in dag.needrun_jobs() if parameters_count() else ():
        if not (job.output and namespace_of(job.rule)):
            continue
        recorded = map(workflow.persistence.params, job.output)
        known = next((params for params in recorded if params is not None), None)
        if raised := find_raised(job.rule.params, known):
            cells = sum(Path(file).name == METRICS_FILE for file in job.output)
            jobs.append(RaisedJob(raised, cells))
            change = dag.reason(job).params_changed
            if change and is_only_raised(raised, change.only_old, change.only_new):
                RAISED_RUN.note_raised(job)
    for line in describe_raised(jobs):
        if line not in TOLD:
            tell(line)
            TOLD[line] = line


def files_stay(job):
    """Returns True if a job's files have the recorded sizes and times; `dpprobe doctor` compares all bytes."""
    results = Path(STUDY.results_dir)
    record = locate_record(job.log[0], results)
    try:
        changed = list_changed(record, results, refresh=not workflow.dryrun)
    except PermissionError as error:  # Snakemake would call the file write-protected
        raise StudyError(str(explain_unwritable(error))) from None
    if changed:
        tell_first("changed files", f"{changed[0]} first")
    if lost := lacks_record(record, job.output):
        tell_first("files whose hashes are lost", f"{job.output[0]} first")
    return not changed and not lost


def runs_stay(job):
    """Returns True if the MLflow runs that a receipt lists are in MLflow's store."""
    fault = find_store_fault(Path(job.output[0]), note=not workflow.dryrun)
    if fault:
        tell_first("MLflow runs", f"{fault.path} first: {fault.words}")
    return fault is None


def cells_stay(job):
    """Returns True if all cells of a job are up to date.

    Snakemake compares only parameters that it recorded. A cell's own record always has the cell's inputs.
    """
    dataset, backbone, epsilon = (
        getattr(job.wildcards, name) for name in ("dataset", "backbone", "epsilon")
    )
    methods = [getattr(job.wildcards, "method", None)]
    return all(
        cell_stays(Cell(dataset, backbone, method, epsilon))
        for method in (methods if methods[0] else head_methods(STUDY, epsilon))
    )


def network_stays(job):
    """Returns True if a seed's network is complete and its record has the study's options."""
    path, cell = Path(job.output[0]), wildcards_cell(job.wildcards)
    options = located_method(cell.method, cell.dataset, cell.backbone)
    try:
        written = read_whole_record(path)["options"]
        return not parameters_count() or written == dumped(options)
    except ValueError as error:
        tell_first("damaged networks", f"{path.parent} first: {error}")
        return False
    except (OSError, KeyError, TypeError):
        return True  # Snakemake reports missing files, and the job reports faulty files


def release_stays(job):
    """Returns True if no file of a release's bundle is missing."""
    bundle = Path(STUDY.results_dir, "releases", job.wildcards.release)
    lost = [name for name in BUNDLE_FILES if not (bundle / name).exists()]
    if lost and os.path.exists(job.output[0]):
        tell_first("files of releases are missing and", f"{bundle / lost[0]} first")
    return not lost


def cell_stays(cell):
    """Returns True if a cell is complete, and its record has its own hash and agrees with the study.

    `dpprobe doctor` compares all bytes.
    """
    cell = CellName(**cell._asdict())
    folder = cell.folder(f"{STUDY.results_dir}/cells")
    path = folder / METRICS_FILE
    try:
        files = set(os.listdir(folder))
    except OSError:
        return True  # Snakemake reports missing files
    lost = [name for name in UNNAMED_FILES if name not in files]
    if lost and METRICS_FILE in files:
        tell_first("files of cells are missing and", f"{folder}/{lost[0]} first")
        return False
    try:
        record = read_whole_record(path)
        if record["cell"] != cell.model_dump():
            raise ValueError("the record of another cell")
    except ValueError as error:
        tell_first("damaged cells", f"{path} first: {error}")
        return False
    except (OSError, KeyError, TypeError, AttributeError):
        return True  # the job that reads the file reports the error
    difference = record_difference(record, cell) if parameters_count() else None
    if difference is not None:
        tell_first(
            "cells whose records disagree with the study",
            f"{path} first: {difference.place}: {difference.first}, and the study has {difference.second}",
        )
    return difference is None


def record_difference(record, cell):
    """Describes how a cell's record differs from the study; None if they agree."""
    options = located_method(cell.method, cell.dataset, cell.backbone)
    promised, delta = cell.epsilon != INFINITE, STUDY.dataset_delta(cell.dataset)
    try:
        if options.is_undecided:
            epsilon = nominal_epsilon(cell.epsilon, delta)
            options = options.resolve_choice(
                recorded_facts(
                    record,
                    epsilon=epsilon,
                    delta=delta,
                    metric=STUDY.datasets[cell.dataset].metric,
                )
            )
        options = options.follow_metric(
            record["headline"], multi_label=record["multi_label"]
        )
        return find_disagreement(
            record,
            options=dumped(options),
            seeds=STUDY.seeds,
            study_seed=STUDY.seed,
            delta=delta if promised else None,
            accountant=STUDY.accountant if promised else None,
            unit=STUDY.dataset_unit(cell.dataset),
        )
    except (ValueError, AttributeError, KeyError, TypeError):
        return None  # the job that reads the file reports the error


CHECKS = {
    "train_heads": cells_stay,
    "train_heads_without_privacy": cells_stay,
    "gather_networks": cells_stay,
    "tune_network": network_stays,
    "make_release": release_stays,
    "track": runs_stay,
    "write_study_run": runs_stay,
    "track_release": runs_stay,
}
STORED = {
    rule_name(name)
    for name in (
        "train_heads",
        "train_heads_without_privacy",
        "gather_networks",
        "tune_network",
        "audit_cells",
        "audit_cells_without_privacy",
        "measure_law",
    )
}
CHECKS = {rule_name(name): check for name, check in CHECKS.items()}
