"""The study, the folders of rules' paths, and the input functions that several rules use."""

import json
import os
import re
import sys
import time
from contextlib import suppress
from functools import cache, partial
from pathlib import Path


from dpprobe.analyses.representation_law.law_record import LAYERS
from dpprobe.artifacts import explain_unwritable, hash_value, read_whole_record
from dpprobe.analyses.audit.audit_record import (
    AUDIT_SUFFIXES,
    AUDITS,
    RECORD_SUFFIX,
    audit_path,
)
from dpprobe.data.addresses import public_addresses
from dpprobe.data.option_paths import is_wildcard
from dpprobe.data.options import hash_file_states
from dpprobe.data.promise_facts import promise_facts
from dpprobe.errors import ConfigError
from dpprobe.heads.auto import asked_options, is_undecided
from dpprobe.analyses.imbalance import list_imbalance_records, list_imbalanced
from dpprobe.analyses.imbalance.imbalance_record import IMBALANCE
from dpprobe.options import resolve_path
from dpprobe.privacy.limits import INFINITE
from dpprobe.privacy.risk import nominal_epsilon
from dpprobe.analyses.fairness import list_fairness_files
from dpprobe.analyses.representation_law import list_law_marks, list_law_records
from dpprobe.analyses.audit import list_audit_marks, list_audit_records
from dpprobe.release.bundle import BUNDLE_FILES, SUMS_FILE
from dpprobe.results.cell_record import (
    CEILING_HEAD,
    CELL_FILES,
    METRICS_FILE,
    NAMED_FILES,
    PREDICTIONS_FILE,
    CellName,
    find_disagreement,
    recorded_facts,
)
from dpprobe.results.network_record import (
    NETWORK_FILES,
    NETWORKS_FOLDER,
    network_folder,
)
from dpprobe.results.study_files import StudyFiles
from dpprobe.analyses.audit import audit_cells
from dpprobe.study.check_command import load_checked
from dpprobe.study.imbalance import rare_classes
from dpprobe.study.study_file import load_study
from dpprobe.study.yaml_file import check_yaml
from dpprobe.study.network_methods import (
    head_methods,
    network_methods,
    network_options,
    searched_methods,
)
from dpprobe.study.study import Cell
from dpprobe.analyses.representation_law import (
    law_backbones,
    law_datasets,
    list_law_networks,
)
from dpprobe.run_marks import MARKED, find_other_runs, mark_run
from dpprobe.study.snapshot import (
    SNAPSHOT_FILE,
    check_run,
    note_renamed,
    take_snapshot,
)
from dpprobe.tracking.receipt import find_store_fault
from dpprobe.versions import RUN_VERSIONS, VERSIONS
from dpprobe.written_files import lacks_record, list_changed, locate_record

# A job has the study of its run's snapshot, which also names the parsed study and the code's versions.
RUN = workflow.config_settings.overwrite_config.get(RUN_KEY, {})
RUN = {} if workflow.is_main_process else RUN
try:
    if RUN and "values" not in RUN:
        raise ConfigError("this run began with an older dpprobe; start it again")
    if RUN:
        config = RUN["values"]
    elif IS_MODULE:
        require_config()
    if workflow.is_main_process:
        lines = study_lines()
        config = config | module_folders() if IS_MODULE else config
        for file in lines.files:
            check_yaml(file)
        STUDY = load_checked(config, lines)
    else:
        STUDY = load_study(config)
        if RUN:
            check_run(RUN, STUDY)
except ConfigError as error:
    if not workflow.is_main_process:
        # the main process looks for lines with ERROR in the log of a failed job
        print(f"{time.strftime('%H:%M:%S')} ERROR {error}", file=sys.stderr)
    raise StudyError(str(error)) from None

if STUDY != NAMESPACES[0]["STUDY"]:
    raise StudyError(
        f"module {MODIFIER.namespace}: a second study in one workflow; run each study by a command of its own"
    )

DATASETS = STUDY.all_datasets()
FILES = StudyFiles(STUDY)
# The whole dataset of each subsample, if the study has the whole dataset.
WHOLE = STUDY.whole_datasets()
TEXT_BACKBONES = STUDY.text_backbones()


# The folders of rules' paths: <data>, <results>, <logs> and <benchmarks>.
pathvars:
    data=STUDY.data_dir,
    results=STUDY.results_dir,
    logs="<results>/logs",
    benchmarks="<results>/benchmarks",


def names(group):
    """A wildcard pattern that matches only names of the study; without names, it matches nothing."""
    return "|".join(map(re.escape, group)) or "(?!)"


wildcard_constraints:
    dataset=names(DATASETS),
    backbone=names(STUDY.backbones),
    method=names(STUDY.methods),
    split="train|test",
    epsilon=names(STUDY.job_epsilons()),
    release=names(STUDY.releases),


def dumped(options):
    """A block of the study as plain values, which Snakemake compares between runs."""
    return options.model_dump(mode="json")


def privacy_params(wildcards):
    """The privacy options that determine a dataset's noise and statements."""
    return {
        "delta": STUDY.dataset_delta(wildcards.dataset),
        "accountant": STUDY.accountant,
        "mode": "benchmark",
        "unit": STUDY.dataset_unit(wildcards.dataset),
        "patients": STUDY.dataset_patients(wildcards.dataset),
    }


def backbone_files(wildcards):
    """The files with the weights, or the code, of a backbone."""
    return STUDY.backbones[wildcards.backbone].input_files()


def outside_state(*finders):
    """Hashes sizes and times of weights and public files, because a replaced file may have an older time.

    Files written by jobs are left out, because they are compared with the jobs' records.
    """
    folders = [Path(folder).resolve() for folder in (STUDY.data_dir, STUDY.results_dir)]

    def state(wildcards):
        files = {str(file) for find in finders for file in find(wildcards)}
        return hash_file_states(
            (file, file)
            for file in files
            if os.path.exists(file)
            and not any(
                Path(file).resolve().is_relative_to(folder) for folder in folders
            )
        )

    return state


def wildcards_cell(wildcards):
    """The cell with the names in wildcards."""
    return Cell(*(getattr(wildcards, field) for field in Cell._fields))


def of_all_datasets(paths, *arguments):
    """Joins the files that a function returns for each dataset of the study."""
    return [path for name in STUDY.datasets for path in paths(name, *arguments)]


def later(paths, *arguments):
    """Makes an input function that calls `paths` late: a job parses all rules, but needs few rules' files."""
    return lambda wildcards: paths(*arguments)


def describe_rule(name, words):
    """Sets a rule's text in `snakemake --list` if a loop makes the rule, because docstrings cannot be computed.

    Notes a rule's other name, because the script finds the exhibit or analysis by the name of its rule.
    """
    if is_used(name):
        workflow.get_rule(rule_name(name)).docstring = words
    if rule_name(name) != name:
        note_renamed(rule_name(name), name)


# Factories make the functions, because a loop's variable would have its last value when Snakemake calls the functions.
def declared_inputs(needs):
    """Makes the input functions of the needs that an exhibit or analysis declares."""

    def named(need):
        return lambda wildcards: need.paths(FILES, dict(wildcards.items()))

    return {name: named(need) for name, need in needs.items()}


def declared_params(params):
    """Makes the params of a declared exhibit or analysis; functions among them get study and wildcards."""

    def of_job(value):
        return lambda wildcards: value(STUDY, dict(wildcards.items()))

    return {
        name: of_job(value) if callable(value) else value
        for name, value in params.items()
    }
