"""The study, the folders of rules' paths, and the functions of rules' inputs and params."""

import os
import re
import sys
import time
from pathlib import Path

from dpprobe.analyses.audit import list_audited
from dpprobe.analyses.audit.audit_record import (
    AUDIT_SUFFIXES,
    AUDITS,
    RECORD_SUFFIX,
    audit_path,
)
from dpprobe.analyses.imbalance import list_imbalance_records, list_imbalanced
from dpprobe.analyses.representation_law import (
    law_datasets,
    list_law_networks,
    list_law_records,
)
from dpprobe.data.option_paths import is_wildcard
from dpprobe.data.file_states import hash_file_states
from dpprobe.errors import ConfigError
from dpprobe.heads.auto import asked_options
from dpprobe.options import resolve_path
from dpprobe.privacy.limits import INFINITE
from dpprobe.release.bundle import SUMS_FILE
from dpprobe.results.cell_files import CELL_FILES, NAMED_FILES
from dpprobe.results.network_record import (
    NETWORK_FILES,
    NETWORKS_FOLDER,
    network_folder,
)
from dpprobe.results.study_files import StudyFiles
from dpprobe.shown_text import one_line
from dpprobe.study.check_command import load_checked
from dpprobe.study.comparisons import whole_datasets
from dpprobe.study.imbalance import rare_classes
from dpprobe.study.network_methods import head_methods, network_options
from dpprobe.study.snapshot import RUN_KEY, check_run, note_renamed
from dpprobe.study.study import Cell
from dpprobe.study.study_file import load_study
from dpprobe.study.yaml_file import check_yaml

# A job takes the study from its run's snapshot, which also has the parsed study and the code's versions.
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
        # the main process searches the log of a failed job for lines with ERROR
        print(f"{time.strftime('%H:%M:%S')} ERROR {error}", file=sys.stderr)
    raise StudyError(str(error)) from None

if STUDY != NAMESPACES[0]["STUDY"]:
    raise StudyError(
        f"module {MODIFIER.namespace}: a second study in one workflow; run each study by a command of its own"
    )

DATASETS = STUDY.all_datasets()
FILES = StudyFiles(STUDY, cell_files=CELL_FILES if IN_STORAGE else NAMED_FILES)
# Maps each subsample to its whole dataset, if the study has the whole dataset.
WHOLE = whole_datasets(STUDY)
AUDITED_CELLS = list_audited(STUDY)
IMBALANCED = list_imbalanced(STUDY)
LAW_DATASETS = law_datasets(STUDY)
LAW_NETWORKS = [list(network) for network in list_law_networks(STUDY)]


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


def tell(text):
    """Writes a line to the terminal, escaped; in a single write, so that no line of a job splits it."""
    sys.stderr.write(one_line(f"dpprobe: {text}") + "\n")


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


def backbone_params(wildcards):
    """The options of a backbone that determine its features."""
    return STUDY.backbones[wildcards.backbone].extraction_params()


def feature_shards(wildcards):
    """The features of both splits."""
    return FILES.list_shards(wildcards.dataset, wildcards.backbone)


def method_params(wildcards):
    """The options of the one method of a job."""
    return {wildcards.method: dumped(STUDY.methods[wildcards.method])}


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
    """Sets the text of a rule made in a loop for `snakemake --list`, because docstrings cannot be computed.

    Notes a rule's other name, because the script finds the exhibit or analysis by the name of its rule.
    """
    if is_used(name):
        workflow.get_rule(rule_name(name)).docstring = words
    if rule_name(name) != name:
        note_renamed(rule_name(name), name)


def of_cells(paths, *datasets):
    """Makes an input function that lists files of all cells, for some datasets or (default) all."""
    return lambda wildcards: paths(FILES.list_study_cells(*datasets))


def of_dataset_cells(paths):
    """Makes an input function that lists files of all cells of a job's dataset."""
    return lambda wildcards: paths(FILES.list_study_cells(wildcards.dataset))


# Inner factories make the functions, because a loop variable would have its last value when Snakemake calls them.
def declared_inputs(needs):
    """Makes input functions for the needs that an exhibit or analysis declares."""

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


def source_state(wildcards):
    """Hashes names, sizes and times of a source's files, because a replaced file may have an older time."""
    if wildcards.dataset in WHOLE:
        return None
    return hash_file_states(DATASETS[wildcards.dataset].list_source_files())


def download_receipt(wildcards):
    """The mark of a finished download, for a dataset that needs one."""
    if wildcards.dataset in WHOLE:
        return []
    needed = DATASETS[wildcards.dataset].download_params() is not None
    receipt = f"<data>/downloads/{wildcards.dataset}/receipt.json"
    return on_this_machine(receipt) if needed else []


def whole_tables(wildcards):
    """The split tables of the whole dataset of a subsample, if the study has the whole dataset."""
    whole = WHOLE.get(wildcards.dataset)
    return FILES.list_tables(whole) if whole else []


def source_files(wildcards):
    """A source's files; only the names of folders, because viewing a folder may change its time.

    `source_state` covers files whose names Snakemake would read as patterns.
    """
    if wildcards.dataset in WHOLE:
        return []
    files = DATASETS[wildcards.dataset].input_files()
    return [
        on_this_machine(ancient(file) if Path(file).is_dir() else file)
        for file in files
        if not is_wildcard(file)
    ]


def whole_name(wildcards):
    return WHOLE[wildcards.dataset]


def methods_params(wildcards):
    """The options of all methods that train at an epsilon."""
    methods = STUDY.job_methods(wildcards.epsilon)
    return {name: dumped(STUDY.methods[name]) for name in methods}


def calibration_params(wildcards):
    """The privacy options; `allow_delta_above_one_over_n` only if True, so that plans without it stay up to date."""
    allowed = STUDY.allows_delta_above(wildcards.dataset)
    return privacy_params(wildcards) | (
        {"allow_delta_above_one_over_n": True} if allowed else {}
    )


def overlap_counts(wildcards):
    """The counts of the near-duplicate check, if the study has one."""
    counts = f"<results>/overlap/{wildcards.dataset}/{wildcards.backbone}.json"
    return counts if STUDY.overlap else []


def heads_params(wildcards):
    """The options of all methods of linear heads that train at an epsilon."""
    methods = head_methods(STUDY, wildcards.epsilon)
    return {name: asked_options(STUDY.methods[name]) for name in methods}


def located_method(name, dataset, backbone):
    """The options of a method, with its files' paths for one dataset and backbone."""
    return STUDY.methods[name].fill_paths(dataset=dataset, backbone=backbone)


def method_files(wildcards):
    """Public files with initial weights of a job's methods."""
    place = (wildcards.dataset, wildcards.backbone)
    return sorted(
        {
            path
            for name in head_methods(STUDY, wildcards.epsilon)
            for path in located_method(name, *place).input_files()
        }
    )


def cell_outputs(methods):
    """The cells that a job writes; without methods, a pattern that no job needs."""
    return expand(
        "<results>/cells/{dataset}/{backbone}/{method}/eps-{epsilon}/{file}",
        method=methods or ["none"],
        file=FILES.cell_files,
        allow_missing=True,
    )


def private_methods():
    """The names of the study's private methods of linear heads."""
    return [
        name
        for name, method in STUDY.methods.items()
        if method.private and not method.tunes_network
    ]


def tuned_options(wildcards):
    return network_options(STUDY.methods[wildcards.method])


def cut_paths(wildcards, names=None):
    """The manifests of a network's input activations, or other files in their folder; empty without a cut."""
    blocks = tuned_options(wildcards).cut_blocks
    if blocks is None:
        return []
    return [
        f"<results>/cuts/{wildcards.dataset}/{wildcards.backbone}/blocks-{blocks}/{split}/{name}"
        for split in ("train", "test")
        for name in names or ["manifest.json"]
    ]


def tuned_rows(wildcards):
    """The files with a network's training rows: images, activations or features."""
    options = tuned_options(wildcards)
    if options.from_images:
        return [
            f"<data>/{wildcards.dataset}/{split}.parquet" for split in ("train", "test")
        ]
    if options.cut_blocks:
        return cut_paths(wildcards, FILES.list_shard_names())
    return feature_shards(wildcards)


def tuned_tables(wildcards):
    """The two split tables, if a network trains on images."""
    return tuned_rows(wildcards) if tuned_options(wildcards).from_images else []


def searched_values(wildcards):
    """The result of the search over a method's options, if the method has a search."""
    if tuned_options(wildcards).search is None:
        return []
    cell = wildcards_cell(wildcards)
    return f"<results>/searches/{cell.dataset}/{cell.backbone}/{cell.method}/eps-{cell.epsilon}.json"


def network_files(wildcards):
    """Public files with a network's initial weights."""
    return located_method(
        wildcards.method, wildcards.dataset, wildcards.backbone
    ).input_files()


def audited_methods(epsilon=None, *, private=False):
    """The audited methods at one epsilon, or at all epsilons with a guarantee."""
    at = [
        cell.method
        for cell in AUDITED_CELLS
        if cell.epsilon == epsilon or (private and cell.epsilon != INFINITE)
    ]
    return list(dict.fromkeys(at))


def audit_outputs(methods):
    """The audits that a job writes; without methods, a pattern that no job needs."""
    return expand(
        f"<results>/{AUDITS}/{{dataset}}/{{backbone}}/{{method}}/eps-{{epsilon}}{{suffix}}",
        method=methods or ["none"],
        suffix=AUDIT_SUFFIXES,
        allow_missing=True,
    )


def audit_files(dataset):
    return [
        str(audit_path(f"<results>/{AUDITS}", cell, suffix))
        for cell in AUDITED_CELLS
        if cell.dataset == dataset
        for suffix in AUDIT_SUFFIXES
    ]


def imbalance_outputs(dataset):
    made = exhibit_paths(dataset, names=("write_imbalance_tables", "plot_imbalance"))
    return [*list_imbalance_records(FILES, dataset), *made]


def with_rare(dataset):
    """A dataset, and its copies in which one class is rare."""
    return [dataset, *(rare.name for rare in rare_classes(STUDY.imbalance, dataset))]


def rare_cells(dataset, backbone):
    """The cells of a dataset and its copies on one backbone."""
    return [
        cell
        for cell in STUDY.list_cells(*with_rare(dataset))
        if cell.backbone == backbone
    ]


def law_cells(wildcards):
    """The cells of a (dataset, backbone) whose first seed's networks are measured."""
    return [
        Cell(wildcards.dataset, wildcards.backbone, *network)
        for network in LAW_NETWORKS
    ]


def law_networks_paths(wildcards):
    """The files of the measured tuned networks of a (dataset, backbone)."""
    return [
        str(network_folder(f"<results>/{NETWORKS_FOLDER}", cell, 0) / name)
        for cell in law_cells(wildcards)
        for name in NETWORK_FILES
    ]


def law_outputs(dataset):
    made = exhibit_paths(dataset, names=("write_law_tables", "plot_law"))
    return [*list_law_records(FILES, dataset), *made]


def metric_of(wildcards):
    """Returns the origin of a dataset's metric: the study or the catalog."""
    written = config["datasets"].get(wildcards.dataset)
    if not isinstance(written, dict):
        return "the study or the catalog"
    return "the study" if written.get("metric") else "the catalog"


def released_features(release):
    """The dataset and the backbone of a release."""
    options = STUDY.releases[release]
    return options.dataset, options.backbone


def released_audit(wildcards):
    """The audit of the cell with a release's method and epsilon, if the study audits this cell."""
    options = STUDY.releases[wildcards.release]
    cell = (
        options.dataset,
        options.backbone,
        options.method,
        options.token,
    )
    record = str(audit_path(f"<results>/{AUDITS}", cell, RECORD_SUFFIX))
    return record if cell in AUDITED_CELLS else []


def exact_method(wildcards):
    """The method of a release if a GPU may compute its exact sums; other heads are released from the CPU."""
    name = STUDY.releases[wildcards.release].method
    method = STUDY.methods[name]
    engine = getattr(getattr(method, "base", method), "engine", None)
    return [name] if engine == "exact" or method.is_undecided else []


def benchmark_cells(release):
    """The cell with a release's method and epsilon, if the study has this cell."""
    options = STUDY.releases[release]
    cell = Cell(*released_features(release), options.method, options.token)
    return [cell] if cell in FILES.list_study_cells(cell.dataset) else []


def released_files(wildcards):
    """Public files with initial weights of a release's method."""
    options = STUDY.releases[wildcards.release]
    return located_method(
        options.method, options.dataset, options.backbone
    ).input_files()


def released_predecessor(wildcards):
    """The predecessor that a release replaces: a bundle's file of hashes, or the mark of this study's own release."""
    before = STUDY.releases[wildcards.release].predecessor
    if before is None:
        return []
    if before in STUDY.releases:
        return f"<results>/releases/.{before}.done"
    return str(resolve_path(before) / SUMS_FILE)


def tracked_predecessor(wildcards):
    """The MLflow receipt of the replaced release of this study, which is written first."""
    before = STUDY.releases[wildcards.release].predecessor
    return (
        f"<results>/tracking/releases/{before}.json" if before in STUDY.releases else []
    )


def release_paths(release):
    """All outputs of a release: mark of the job, and version in MLflow's registry."""
    return [
        f"<results>/releases/.{release}.done",
        f"<results>/tracking/releases/{release}.json",
    ]
