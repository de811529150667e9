"""The study, the folders that paths begin with, and the input functions of more than one rule."""

import json
import os
import re
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path


from dpprobe.analyses.representation_law.law_record import (
    ACCURACY_FIGURE,
    LAW_SUFFIXES,
    LAW_TABLES,
    LAYERS,
    MEASURE_FIGURES,
    law_path,
)
from dpprobe.analyses.long_tail.long_tail_record import LONG_TAIL, LONG_TAIL_TABLES
from dpprobe.analyses.long_tail.long_tail_record import SUFFIXES as LONG_TAIL_SUFFIXES
from dpprobe.artifacts import fingerprint
from dpprobe.analyses.audit.audit_record import AUDIT_SUFFIXES, AUDITS, RECORD_SUFFIX, audit_path
from dpprobe.data.addresses import public_addresses
from dpprobe.errors import ConfigError
from dpprobe.analyses.fairness.fairness_record import (
    FAIRNESS,
    FAIRNESS_SUFFIXES,
    TABLE_SUFFIX,
    fairness_path,
)
from dpprobe.analyses.imbalance.imbalance_record import (
    IMBALANCE,
    IMBALANCE_SUFFIXES,
    imbalance_path,
)
from dpprobe.privacy.limits import INFINITE, epsilon_token
from dpprobe.exhibits.published import (
    PAPER_TABLES,
    published_datasets,
    published_digest,
)
from dpprobe.release.bundle import BUNDLE_FILES
from dpprobe.results.cell_record import (
    CEILING_HEAD,
    CELL_FILES,
    METRICS_FILE,
    NAMED_FILES,
    PREDICTIONS_FILE,
    CellName,
    disagreement,
    recorded_facts,
)
from dpprobe.results.network_record import (
    NETWORK_FILES,
    NETWORKS_FOLDER,
    network_folder,
)
from dpprobe.results.search_record import SEARCHES, search_path
from dpprobe.study.ablations import VARIED, varied
from dpprobe.study.audits import audit_cells
from dpprobe.study.check import check_study
from dpprobe.study.comparisons import (
    DATASET_COMPARISONS,
    compared_datasets,
    dataset_comparisons,
    delta_groups,
    study_comparisons,
)
from dpprobe.study.cuts import study_cuts
from dpprobe.study.dimensions import check_dimensions
from dpprobe.study.fairness import fairness_cells, reference_of
from dpprobe.study.imbalance import rare_classes
from dpprobe.study.load import check_yaml, load_study
from dpprobe.study.long_tails import long_tail_datasets
from dpprobe.study.networks import (
    head_methods,
    network_cells,
    network_methods,
    network_options,
    searched_methods,
)
from dpprobe.study.study import Cell
from dpprobe.study.representation_law import (
    law_backbones,
    law_datasets,
    law_networks,
)
from dpprobe.study.snapshot import RUN_KEY, SNAPSHOT_FILE, check_run, take_snapshot
from dpprobe.tracking.receipt import store_missing
from dpprobe.versions import RUN_VERSIONS, VERSIONS

try:
    if workflow.is_main_process:
        for file in workflow.overwrite_configfiles or ["config.yaml"]:
            check_yaml(Path(file))
    # A job's configuration is the snapshot of its run, which beside the study has what it is checked against.
    RUN = {} if workflow.is_main_process else config.pop(RUN_KEY, {})
    STUDY = load_study(config)
    if RUN:
        check_run(RUN, STUDY)
    if workflow.is_main_process:
        for warning in [*check_study(STUDY), *check_dimensions(STUDY)]:
            print(f"dpprobe: warning: {warning}", file=sys.stderr)
except ConfigError as error:
    if not workflow.is_main_process:
        # the line that the main process looks for in the log of a job that failed
        print(f"{time.strftime('%H:%M:%S')} ERROR {error}", file=sys.stderr)
    raise StudyError(str(error)) from None

DATASETS = STUDY.all_datasets()
# of each part of a dataset that the study has whole, the whole
WHOLE = STUDY.wholes()
# of each dataset whose near-duplicates are removed, the name under which all its rows stand
ALL_ROWS = STUDY.before_removal()
SOURCE_NAMES = {whole: name for name, whole in ALL_ROWS.items()}
IMBALANCE_FIGURES = ("imbalance", "imbalance_law")
IMBALANCED = STUDY.imbalance.datasets if STUDY.imbalance else ()
TEXT_BACKBONES = STUDY.text_backbones()
AUDITED_CELLS = audit_cells(STUDY)
LONG_TAIL_DATASETS = long_tail_datasets(STUDY)
LAW_DATASETS, LAW_BACKBONES = law_datasets(STUDY), law_backbones(STUDY)
LAW_NETWORKS = [list(network) for network in law_networks(STUDY)]
LAW_FIGURES = [*MEASURE_FIGURES, *([ACCURACY_FIGURE] if LAW_NETWORKS else [])]
COMPARED_CELLS = fairness_cells(STUDY)
OVERLAP_BACKBONES = list(STUDY.backbones) if STUDY.overlap else []
SHARDS = [
    f"shard-{index:05d}-of-{STUDY.features.shards:05d}.h5"
    for index in range(STUDY.features.shards)
]


# Options in which some methods differ alone: results are drawn against them.
METHOD_OPTIONS = {
    name: method.model_dump(mode="json") for name, method in STUDY.methods.items()
}
COMPARISONS, DELTA_GROUPS = study_comparisons(STUDY), delta_groups(STUDY)
VARIED_OPTIONS = [option for option in VARIED if varied(METHOD_OPTIONS, option)]


# Folders that rules' paths begin with: <data>, <results>, <logs> and <benchmarks>.
pathvars:
    data=STUDY.data_dir,
    results=STUDY.results_dir,
    logs="<results>/logs",
    benchmarks="<results>/benchmarks",


def names(group):
    """A wildcard pattern of exactly the names a study uses; without any, one that matches none."""
    return "|".join(map(re.escape, group)) or "(?!)"


wildcard_constraints:
    dataset=names(DATASETS),
    backbone=names(STUDY.backbones),
    method=names(STUDY.methods),
    split="train|test",
    epsilon=names(STUDY.job_epsilons()),
    release=names(STUDY.releases),


def dumped(options):
    """A block of the study as the plain values that Snakemake compares between runs."""
    return options.model_dump(mode="json")


def source_state(wildcards):
    """The outward state of a dataset's source, in which an image replaced in place shows."""
    if wildcards.dataset in WHOLE:
        return None
    return DATASETS[wildcards.dataset].source_state()


def metric_of(wildcards):
    """Returns the words for what names a dataset's metric, where one is named."""
    written = config["datasets"].get(wildcards.dataset)
    if not isinstance(written, dict):
        return "the study or the catalog"
    return "the study" if written.get("metric") else "the catalog"


def download_receipt(wildcards):
    """The mark of a finished download, for a dataset that needs one."""
    if wildcards.dataset in WHOLE:
        return []
    needed = DATASETS[wildcards.dataset].download_params() is not None
    source = SOURCE_NAMES.get(wildcards.dataset, wildcards.dataset)
    return f"<data>/downloads/{source}/receipt.json" if needed else []


def whole_tables(wildcards):
    """The split tables of the dataset that this one is a part of, where the study has it whole."""
    whole = WHOLE.get(wildcards.dataset)
    return data_paths(whole) if whole else []


def overlap_splits(wildcards):
    """The splits that a near-duplicate check compares: the private ones, then the public ones."""
    return [
        (name, split)
        for name in (wildcards.dataset, *STUDY.overlap.public)
        for split in ("train", "test")
    ]


def removed_counts(wildcards):
    """The description of a dataset that says what was removed from it, where that is done."""
    removed = wildcards.dataset in ALL_ROWS
    return f"<data>/{wildcards.dataset}/dataset.json" if removed else []


def all_rows(wildcards, folder, *files):
    """Files of all rows of a dataset whose near-duplicates are removed."""
    return [f"{folder}/{ALL_ROWS[wildcards.dataset]}/{name}" for name in files]


def whole_name(wildcards):
    """The dataset whose rows another's are taken from."""
    return (WHOLE | ALL_ROWS)[wildcards.dataset]


def overlap_counts(wildcards):
    """The counts of a near-duplicate check, where the study asks for one."""
    counts = f"<results>/overlap/{wildcards.dataset}/{wildcards.backbone}.json"
    return counts if STUDY.overlap else []


def methods_params(epsilon):
    """The options of the methods that train at an epsilon."""
    return {name: dumped(STUDY.methods[name]) for name in STUDY.job_methods(epsilon)}


def heads_params(epsilon):
    """The options of the methods whose linear heads train at an epsilon."""
    return {name: STUDY.methods[name].asked() for name in head_methods(STUDY, epsilon)}


def method_files(wildcards):
    """Public files that the methods of a job start from."""
    return sorted(
        {
            path
            for name in head_methods(STUDY, wildcards.epsilon)
            for path in STUDY.methods[name]
            .located(dataset=wildcards.dataset, backbone=wildcards.backbone)
            .input_files()
        }
    )


def dataset_figures():
    """The figures of a dataset that compare cells, where the study has what they compare."""
    figures = ["accuracy"]
    if set(STUDY.job_epsilons()) != {INFINITE}:
        figures.append("methods")
        methods = STUDY.methods.values()
        promised = any(m.private and m.private_choices is None for m in methods)
        if promised and any(method.head == "nonprivate" for method in methods):
            figures.append("gap")
    return [*figures, *(f"by_{option}" for option in VARIED_OPTIONS)]


def comparison_manifests(wildcards):
    """The manifests that say at which size images entered each backbone, where a figure is drawn against it."""
    return expand(
        "<results>/features/{dataset}/{backbone}/train/manifest.json",
        dataset=wildcards.dataset,
        backbone=STUDY.backbones if wildcards.figure == "by_resolution" else [],
    )


def compared_cells_of(figure):
    """The cells of the datasets that a figure of all datasets shows."""
    names = compared_datasets(STUDY) if figure != "deltas" else sum(DELTA_GROUPS, [])
    return STUDY.cells(*names)


def audit_figures(dataset):
    """The figures of a dataset's audits: of claims and bounds, and of the attacks on each promise."""
    cells = [cell for cell in AUDITED_CELLS if cell.dataset == dataset]
    promised = [cell for cell in cells if cell.epsilon != INFINITE]
    attacked = promised if STUDY.audit and STUDY.audit.membership else []
    return [
        *(["audit"] if promised else []),
        *(f"membership_{c.backbone}-{c.method}-eps-{c.epsilon}" for c in attacked),
    ]


def ceiling_audit(wildcards):
    """The audit of the non-private ceiling on the same features, where the study has one."""
    records = [
        str(audit_path(f"<results>/{AUDITS}", cell, RECORD_SUFFIX))
        for cell in AUDITED_CELLS
        if cell[:2] == (wildcards.dataset, wildcards.backbone)
        and STUDY.methods[cell.method].head == CEILING_HEAD
    ]
    return records[0] if records else []


def fairness_figures(dataset):
    """The figures of a dataset's subgroups, where the study compares them."""
    return ["fairness_gap", "fairness_auc"] if fairness_records(dataset) else []


def imbalance_figures(dataset):
    """The figures of a dataset's rare classes."""
    backbones = STUDY.backbones if dataset in IMBALANCED else ()
    return [f"{kind}_{each}" for kind in IMBALANCE_FIGURES for each in backbones]


def imbalance_tables(dataset):
    """The tables of a dataset's rare classes."""
    return expand(
        "<results>/tables/{dataset}_imbalance.{extension}",
        dataset=[dataset] if dataset in IMBALANCED else [],
        extension=["csv", "md"],
    )


def imbalance_outputs(dataset):
    """All that is made of a dataset's rare classes."""
    figures = expand(
        "<results>/figures/{dataset}/{name}.{extension}",
        dataset=dataset,
        name=imbalance_figures(dataset),
        extension=["svg", "png"],
    )
    return [*imbalance_files(dataset), *imbalance_tables(dataset), *figures]


def figure_paths(dataset):
    """Every figure of one dataset."""
    figures = [
        *dataset_figures(),
        *dataset_comparisons(STUDY, dataset),
        *audit_figures(dataset),
        *(["long_tail"] if dataset in LONG_TAIL_DATASETS else []),
        *law_figures(dataset),
        *fairness_figures(dataset),
        *imbalance_figures(dataset),
        *(f"tsne_{backbone}" for backbone in STUDY.backbones),
        *(f"overlap_{backbone}" for backbone in OVERLAP_BACKBONES),
    ]
    of_dataset = expand(
        "<results>/figures/{dataset}/{name}.{extension}",
        dataset=dataset,
        name=figures,
        extension=["svg", "png"],
    )
    # what was removed
    return of_dataset + expand(
        "<results>/figures/{whole}/overlap_{backbone}.{extension}",
        whole=[ALL_ROWS[dataset]] if dataset in ALL_ROWS else [],
        backbone=STUDY.overlap.remove if STUDY.overlap else None,
        extension=["svg", "png"],
    )


def zero_shot_paths(dataset):
    """The zero-shot results of one dataset."""
    return expand(
        "<results>/zero_shot/{dataset}/{backbone}/{file}",
        dataset=dataset,
        backbone=TEXT_BACKBONES,
        file=["metrics.json", "predictions.parquet"],
    )


def few_shot_paths(dataset):
    """The few-shot results of one dataset."""
    return expand(
        "<results>/few_shot/{dataset}/{backbone}.{extension}",
        dataset=dataset,
        backbone=STUDY.few_shot_backbones(),
        extension=["parquet", "json"],
    )


def privacy_params(wildcards):
    """The privacy options that a dataset's noise and statements follow from."""
    return {
        "delta": STUDY.dataset_delta(wildcards.dataset),
        "accountant": STUDY.accountant,
        "mode": STUDY.mode,
        "unit": STUDY.dataset_unit(wildcards.dataset),
        "patients": STUDY.dataset_patients(wildcards.dataset),
    }


def calibration_params(wildcards):
    """The same, and the permission of a delta above 1/n only where there is one: other studies keep their plans."""
    allowed = STUDY.allows_delta_above(wildcards.dataset)
    return privacy_params(wildcards) | (
        {"allow_delta_above_one_over_n": True} if allowed else {}
    )


def released_features(release):
    """The dataset and the backbone of a release."""
    options = STUDY.releases[release]
    return options.dataset, options.backbone


def released_audit(wildcards):
    """The audit of a cell that has a release's method and epsilon, where the study audits one."""
    options = STUDY.releases[wildcards.release]
    cell = (
        options.dataset,
        options.backbone,
        options.method,
        epsilon_token(options.epsilon),
    )
    record = str(audit_path(f"<results>/{AUDITS}", cell, RECORD_SUFFIX))
    return record if cell in AUDITED_CELLS else []


def released_files(wildcards):
    """Public files that the method of a release starts from."""
    options = STUDY.releases[wildcards.release]
    return (
        STUDY.methods[options.method]
        .located(dataset=options.dataset, backbone=options.backbone)
        .input_files()
    )


def release_paths(release):
    """All that a release makes: its bundle, the mark of its job, and its version in MLflow's registry."""
    return [
        *(f"<results>/releases/{release}/{name}" for name in BUNDLE_FILES),
        f"<results>/releases/.{release}.done",
        f"<results>/tracking/releases/{release}.json",
    ]


def private_methods():
    """The names of the study's private methods of linear heads."""
    return [
        name
        for name, method in STUDY.methods.items()
        if method.private and not method.tunes_network
    ]


def network_paths(cells, files=NETWORK_FILES):
    """Files of the networks of cells, a seed each; none of cells of linear heads."""
    return [
        str(network_folder(f"<results>/{NETWORKS_FOLDER}", cell, index) / name)
        for cell in cells
        if STUDY.methods[cell.method].tunes_network
        for index in range(STUDY.seeds)
        for name in files
    ]


def network_marks(cells):
    """The marks of the jobs that train the networks of cells."""
    return [
        f"{Path(path).parent.parent}/.{Path(path).parent.name}.done"
        for path in network_paths(cells, NETWORK_FILES[:1])
    ]


def shard_paths(dataset, backbone, split):
    """The shards of one split's features."""
    return [
        f"<results>/features/{dataset}/{backbone}/{split}/{name}" for name in SHARDS
    ]


def manifest_path(dataset, backbone, split):
    """The manifest of one split's features."""
    return f"<results>/features/{dataset}/{backbone}/{split}/manifest.json"


def cell_paths(cells, files=CELL_FILES):
    """Files of cells: all that a cell has, or those named."""
    return [
        f"<results>/cells/{cell.dataset}/{cell.backbone}/{cell.method}/eps-{cell.epsilon}/{name}"
        for cell in cells
        for name in files
    ]


def job_marks(cells):
    """The marks of the jobs that train these cells."""
    return sorted(
        {
            "<results>/cells/{}/{}/{}.eps-{}.done".format(
                cell.dataset,
                cell.backbone,
                # networks have a job for each method
                f"{cell.method}/" if STUDY.methods[cell.method].tunes_network else "",
                cell.epsilon,
            )
            for cell in cells
        }
    )


def wildcards_cell(wildcards):
    """The cell that wildcards name."""
    return Cell(*(getattr(wildcards, field) for field in Cell._fields))


def tuned_options(wildcards):
    """The options of the network of a job."""
    return network_options(STUDY.methods[wildcards.method])


def cut_files(dataset=None):
    """The shards and manifests of the cuts of a dataset, or of all."""
    return [
        f"<results>/cuts/{cut.dataset}/{cut.backbone}/blocks-{cut.blocks}/{split}/{name}"
        for cut in study_cuts(STUDY, *([dataset] if dataset else []))
        for split in ("train", "test")
        for name in (*SHARDS, "manifest.json")
    ]


def cut_paths(wildcards, names=None):
    """The manifests of the activations that a network starts from, or files beside them; none where it has no cut."""
    blocks = tuned_options(wildcards).cut_blocks
    if blocks is None:
        return []
    return [
        f"<results>/cuts/{wildcards.dataset}/{wildcards.backbone}/blocks-{blocks}/{split}/{name}"
        for split in ("train", "test")
        for name in names or ["manifest.json"]
    ]


def tuned_rows(wildcards):
    """The files of the rows that a network trains on: images, activations or features."""
    options = tuned_options(wildcards)
    if options.from_images:
        return [
            f"<data>/{wildcards.dataset}/{split}.parquet" for split in ("train", "test")
        ]
    if options.cut_blocks:
        return cut_paths(wildcards, SHARDS)
    return tuned_features(wildcards)


def tuned_features(wildcards):
    """The feature shards of both splits."""
    return [
        path
        for split in ("train", "test")
        for path in shard_paths(wildcards.dataset, wildcards.backbone, split)
    ]


def tuned_tables(wildcards):
    """The two split tables, where a network trains on images."""
    return tuned_rows(wildcards) if tuned_options(wildcards).from_images else []


def searched_values(wildcards):
    """The result of the search over a method's options, where it has one."""
    if tuned_options(wildcards).search is None:
        return []
    cell = wildcards_cell(wildcards)
    return f"<results>/searches/{cell.dataset}/{cell.backbone}/{cell.method}/eps-{cell.epsilon}.json"


def network_files(wildcards):
    """Public files that a network starts from."""
    return (
        STUDY.methods[wildcards.method]
        .located(dataset=wildcards.dataset, backbone=wildcards.backbone)
        .input_files()
    )


def disagreeing_seed(wildcards):
    """Names no file, and has a network made again whose record has other options than the study."""
    cell = wildcards_cell(wildcards)
    folder = network_folder(
        f"{STUDY.results_dir}/{NETWORKS_FOLDER}", cell, wildcards.index
    )
    options = STUDY.methods[cell.method].located(
        dataset=cell.dataset, backbone=cell.backbone
    )
    with suppress(OSError, ValueError, KeyError, TypeError):
        written = json.loads((folder / NETWORK_FILES[0]).read_bytes())["options"]
        counts = workflow.is_main_process and parameters_count()
        if counts and written != dumped(options):
            make_again(str(folder.with_name(f".{folder.name}.done")))
    return []


def search_paths(cells):
    """The searches that the networks of cells are trained from."""
    return [
        str(search_path(f"<results>/{SEARCHES}", CellName(**cell._asdict())))
        for cell in cells
        if cell.method in searched_methods(STUDY)
    ]


def audited_methods(epsilon=None, *, private=False):
    """The methods that are audited, at one epsilon or at those that promise something."""
    at = [
        cell.method
        for cell in AUDITED_CELLS
        if cell.epsilon == epsilon or (private and cell.epsilon != INFINITE)
    ]
    return list(dict.fromkeys(at))


def audit_paths(dataset, suffixes=(RECORD_SUFFIX,)):
    """The records of the audits of one dataset."""
    return [
        str(audit_path(f"<results>/{AUDITS}", cell, suffix))
        for cell in AUDITED_CELLS
        if cell.dataset == dataset
        for suffix in suffixes
    ]


def audit_marks(dataset):
    """The marks of the jobs that audit one dataset."""
    jobs = {cell[1::2] for cell in AUDITED_CELLS if cell.dataset == dataset}
    return [
        f"<results>/{AUDITS}/{dataset}/{backbone}/.eps-{epsilon}.done"
        for backbone, epsilon in sorted(jobs)
    ]


def audit_files(dataset):
    """All that audits of one dataset write."""
    return [*audit_paths(dataset, AUDIT_SUFFIXES), *audit_marks(dataset)]


def long_tail_paths(dataset, suffixes=LONG_TAIL_SUFFIXES):
    """The measurements of the long tail of one dataset, where the study asks for them."""
    return expand(
        "<results>/{folder}/{dataset}/{backbone}{suffix}",
        folder=LONG_TAIL,
        dataset=[dataset] if dataset in LONG_TAIL_DATASETS else [],
        backbone=STUDY.backbones,
        suffix=suffixes,
    )


def law_files(dataset, suffixes=LAW_SUFFIXES):
    """The measurements of the laws of one dataset, where the study asks for them."""
    return [
        str(law_path(f"<results>/{LAYERS}", dataset, backbone, suffix))
        for backbone in (LAW_BACKBONES if dataset in LAW_DATASETS else ())
        for suffix in suffixes
    ]


def law_records(dataset):
    """The records of the laws of one dataset."""
    return law_files(dataset, [".json"])


def law_marks(dataset):
    """The marks of the jobs that measure the laws of one dataset."""
    return [f"{Path(path).parent}/.law.done" for path in law_records(dataset)]


def law_cells(wildcards):
    """The cells whose first networks are measured, of a (dataset, backbone)."""
    return [
        Cell(wildcards.dataset, wildcards.backbone, *network)
        for network in LAW_NETWORKS
    ]


def law_networks_paths(wildcards):
    """The files of the tuned networks of a (dataset, backbone) whose laws are measured."""
    return [
        str(network_folder(f"<results>/{NETWORKS_FOLDER}", cell, 0) / name)
        for cell in law_cells(wildcards)
        for name in NETWORK_FILES
    ]


def law_networks_marks(wildcards):
    """The marks of the jobs that train these networks."""
    folders = [
        network_folder(f"<results>/{NETWORKS_FOLDER}", cell, 0)
        for cell in law_cells(wildcards)
    ]
    return [f"{folder.parent}/.{folder.name}.done" for folder in folders]


def law_figures(dataset):
    """The figures of a dataset's laws."""
    backbones = LAW_BACKBONES if dataset in LAW_DATASETS else ()
    return [f"{name}_{backbone}" for name in LAW_FIGURES for backbone in backbones]


def law_outputs(dataset):
    """All that is made of the laws of one dataset."""
    tables = expand(
        "<results>/tables/{dataset}_{name}.{extension}",
        dataset=[dataset] if law_records(dataset) else [],
        name=LAW_TABLES,
        extension=["csv", "md"],
    )
    figures = expand(
        "<results>/figures/{dataset}/{name}.{extension}",
        dataset=dataset,
        name=law_figures(dataset),
        extension=["svg", "png"],
    )
    return [*law_files(dataset), *law_marks(dataset), *tables, *figures]


def long_tail_records(*datasets):
    """The records of long tails: of some datasets, or of all."""
    return [
        path
        for dataset in datasets or LONG_TAIL_DATASETS
        for path in long_tail_paths(dataset, [".json"])
    ]


def long_tail_summaries():
    """The summaries of the datasets whose long tails are measured."""
    return expand("<results>/summary/{dataset}.parquet", dataset=LONG_TAIL_DATASETS)


def long_tail_files(dataset):
    """All that is made of the long tail of one dataset."""
    figures = expand(
        "<results>/figures/{dataset}/long_tail.{extension}",
        dataset=[dataset] if dataset in LONG_TAIL_DATASETS else [],
        extension=["svg", "png"],
    )
    return [*long_tail_paths(dataset), *figures]


def long_tail_study_files():
    """The tables of long tails, and the figure beside the price of privacy where there is one."""
    tables = expand(
        "<results>/tables/{name}.{extension}",
        name=LONG_TAIL_TABLES if LONG_TAIL_DATASETS else [],
        extension=["csv", "md"],
    )
    return [*tables, *long_tail_gap_figure()]


def long_tail_gap_figure():
    """The figure of long tails beside the price of privacy: needs private and non-private cells, and points."""
    cells = [cell for cell in study_cells() if cell.dataset in LONG_TAIL_DATASETS]
    promised = [
        cell
        for cell in cells
        if cell.epsilon != INFINITE and STUDY.methods[cell.method].private
    ]
    ceilings = [
        cell for cell in cells if STUDY.methods[cell.method].head == CEILING_HEAD
    ]
    points = len(LONG_TAIL_DATASETS) * len(STUDY.backbones)
    shown = promised and ceilings and points > 1 and STUDY.long_tail.memorisation
    return expand(
        "<results>/figures/long_tail_gap.{extension}",
        extension=["svg", "png"] if shown else [],
    )


def compared_cells(wildcards):
    """The cells of a (dataset, backbone) whose groups are compared."""
    features = (wildcards.dataset, wildcards.backbone)
    return [cell for cell in COMPARED_CELLS if cell[:2] == features]


def compared_references(wildcards):
    """[method, epsilon, reference's method, its epsilon] of the cells whose gaps are compared with another's."""
    pairs = [
        ((cell.method, cell.epsilon), reference_of(STUDY, cell.method, cell.epsilon))
        for cell in compared_cells(wildcards)
    ]
    return [[*key, *reference] for key, reference in pairs if reference]


def fairness_files(dataset, suffixes=FAIRNESS_SUFFIXES):
    """All that is written of the groups of one dataset, where the study compares groups."""
    backbones = dict.fromkeys(
        cell.backbone for cell in COMPARED_CELLS if cell.dataset == dataset
    )
    return [
        str(fairness_path(f"<results>/{FAIRNESS}", dataset, backbone, suffix))
        for backbone in backbones
        for suffix in suffixes
    ]


def with_rare(dataset):
    """A dataset and its copies in which one class is rare."""
    return [dataset, *(rare.name for rare in rare_classes(STUDY.imbalance, dataset))]


def rare_cells(dataset, backbone):
    """The cells of a dataset and its copies on one backbone."""
    return [
        cell for cell in STUDY.cells(*with_rare(dataset)) if cell.backbone == backbone
    ]


def imbalance_files(dataset, suffixes=IMBALANCE_SUFFIXES):
    """The comparisons of a dataset's rare classes, a backbone each."""
    return [
        str(imbalance_path(f"<results>/{IMBALANCE}", dataset, backbone, suffix))
        for backbone in (STUDY.backbones if dataset in IMBALANCED else ())
        for suffix in suffixes
    ]


def fairness_records(dataset):
    """The records of the groups of one dataset."""
    return fairness_files(dataset, [RECORD_SUFFIX])


def costly_image_paths(dataset):
    """The images of one dataset that privacy costs most, where the study shows them."""
    shown = STUDY.report.costly_images > 0
    return [f"<results>/costly_images/{dataset}.json"] if shown else []


@cache
def dataset_cells(dataset):
    """The cells of one dataset."""
    return STUDY.cells(dataset)


@cache
def study_cells():
    """The cells of all datasets."""
    return STUDY.cells()


def tsne_pages(datasets):
    """The interactive t-SNE pages of datasets."""
    return expand(
        "<results>/figures/{dataset}/tsne_{backbone}.html",
        dataset=datasets,
        backbone=STUDY.backbones,
    )


def source_files(wildcards):
    """A source's files; folders by name alone, for looking into one may change its time."""
    if wildcards.dataset in WHOLE:
        return []
    files = DATASETS[wildcards.dataset].input_files()
    return [ancient(file) if Path(file).is_dir() else file for file in files]


def option_text(value):
    """A value as `--config name=value` takes it."""
    if isinstance(value, (dict, list)):
        return json.dumps(value)
    return "" if value is None else str(value)


def snakemake_call():
    """The words a person types after `snakemake` to run this study, from the working directory."""
    snakefile = Path(os.path.relpath(workflow.main_snakefile))
    here = snakefile == Path("Snakefile")
    files = [os.path.relpath(file) for file in workflow.overwrite_configfiles or []]
    given = public_addresses(dict(workflow.config_settings.config))
    values = [f"{key}={option_text(value)}" for key, value in given.items()]
    return [
        *([] if here else ["--snakefile", snakefile.as_posix()]),
        *(["--configfile", *files] if files else []),
        *(["--config", *values] if values else []),
    ]


# The words that made this run: a job's configuration file is the snapshot, and no person's.
CALL = RUN["call"] if RUN else snakemake_call()

if workflow.is_main_process:
    SNAPSHOT = take_snapshot(config, STUDY, call=CALL)
    start_jobs_with(SNAPSHOT)
    os.environ[SNAPSHOT_FILE] = str(SNAPSHOT.path)
    os.environ[RUN_VERSIONS] = json.dumps(VERSIONS)
elif RUN:
    os.environ[SNAPSHOT_FILE] = str(workflow.overwrite_configfiles[0])
    with suppress(OSError):
        os.utime(os.environ[SNAPSHOT_FILE])  # it is in use
    os.environ[RUN_VERSIONS] = json.dumps(RUN["versions"])


# of each training job: are its cells whole, and do their records agree with the study
CHECKED = {}
# What is told of once: the first file of a cell that is missing though its job is done, and the first such record.
LOST, DISAGREEING = [], []


def check_cells(mark, job):
    """Has a job run again that lost a file of its cells, or whose cells' records disagree with the study.

    Snakemake compares the parameters that it noted down; a record says what the cell was made from, whoever made it.

    Args:
      mark: the mark of the job.
      job: its (dataset, backbone, epsilon), and of networks the method.
    """
    if not workflow.is_main_process:
        return
    if job not in CHECKED:
        CHECKED[job] = cells_whole(mark, job) and (
            not parameters_count() or records_agree(*job)
        )
    if not CHECKED[job]:
        make_again(mark)


def disagreeing_cells(wildcards):
    """Names no file, and checks the cells of a training job."""
    job = (wildcards.dataset, wildcards.backbone, wildcards.epsilon)
    check_cells("{}/cells/{}/{}/.eps-{}.done".format(STUDY.results_dir, *job), job)
    return []


def disagreeing_networks(wildcards):
    """Names no file, and checks a cell of networks."""
    dataset, backbone, method, epsilon = wildcards_cell(wildcards)
    mark = (
        f"{STUDY.results_dir}/cells/{dataset}/{backbone}/{method}/.eps-{epsilon}.done"
    )
    check_cells(mark, (dataset, backbone, epsilon, method))
    return []


def cells_whole(mark, job):
    """Returns True if no file of a job's cells is missing, as far as the job is done; tells of the first that is."""
    if not os.path.exists(mark):
        return True  # without its mark a job runs
    dataset, backbone, epsilon, *methods = job
    for method in methods or head_methods(STUDY, epsilon):
        folder = (
            f"{STUDY.results_dir}/cells/{dataset}/{backbone}/{method}/eps-{epsilon}"
        )
        try:
            files = set(os.listdir(folder))
        except OSError:
            return False  # a cell that was never made, as of a new method, is nothing to tell of
        lost = [name for name in CELL_FILES if name not in files]
        if lost:
            if not LOST:
                LOST.append(f"{folder}/{lost[0]}")
                print(
                    f"dpprobe: files of cells are missing and are made again, {LOST[0]} first",
                    file=sys.stderr,
                )
            return False
    return True


def records_agree(dataset, backbone, epsilon, *methods):
    """Returns True if the records of a training job's cells agree with the study; tells of the first that does not."""
    for method in methods or head_methods(STUDY, epsilon):
        cell = CellName(
            dataset=dataset, backbone=backbone, method=method, epsilon=epsilon
        )
        path = cell.folder(f"{STUDY.results_dir}/cells") / METRICS_FILE
        difference = record_difference(path, cell)
        if difference is None:
            continue
        if not DISAGREEING:
            DISAGREEING.append(path)
            print(
                f"dpprobe: cells whose records disagree with the study are made again, {path} first: "
                f"{difference.place}: {difference.first}, and the study has {difference.second}",
                file=sys.stderr,
            )
        return False
    return True


def record_difference(path, cell):
    """Returns where a cell's record, if it can be read, differs from the study; None where they agree."""
    options = STUDY.methods[cell.method].located(
        dataset=cell.dataset, backbone=cell.backbone
    )
    promised, delta = cell.epsilon != INFINITE, STUDY.dataset_delta(cell.dataset)
    try:
        record = json.loads(path.read_bytes())
        if options.undecided:
            epsilon = cell.epsilon_value
            options = options.resolved(
                recorded_facts(record, epsilon=epsilon, delta=delta)
            )
        return disagreement(
            record,
            options=dumped(options),
            seeds=STUDY.seeds,
            study_seed=STUDY.seed,
            delta=delta if promised else None,
            accountant=STUDY.accountant if promised else None,
            unit=STUDY.dataset_unit(cell.dataset),
        )
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return None  # the job that reads the file says what is wrong with it


def lost_receipts():
    """The receipts of runs that are gone with their MLflow store."""
    names = [
        *STUDY.datasets,
        *(f"releases/{name}" for name in STUDY.releases),
        "_study",
    ]
    files = [f"{STUDY.results_dir}/tracking/{name}.json" for name in names]
    return [file for file in files if store_missing(Path(file))]


LOST_RECEIPTS = lost_receipts() if workflow.is_main_process else []
for file in LOST_RECEIPTS:
    print(
        f"dpprobe: {file}: its MLflow store is gone; tracking writes the runs again",
        file=sys.stderr,
    )


def runs_again(name):
    """Makes an input function that names no file, and has runs written again whose store is gone."""

    def no_file(wildcards):
        file = f"{STUDY.results_dir}/tracking/{name.format(**wildcards)}.json"
        if file in LOST_RECEIPTS:
            make_again(file)
        return []

    return no_file


def data_paths(dataset):
    """The split tables of one dataset."""
    return expand(
        "<data>/{dataset}/{file}",
        dataset=dataset,
        file=["train.parquet", "test.parquet", "dataset.json"],
    )


def feature_paths(dataset):
    """The features of one dataset."""
    return [
        path
        for backbone in STUDY.backbones
        for split in ("train", "test")
        for path in (
            *shard_paths(dataset, backbone, split),
            manifest_path(dataset, backbone, split),
        )
    ]


def text_paths(dataset):
    """The text embeddings of one dataset's class names."""
    return expand(
        "<results>/features/{dataset}/{backbone}/text.safetensors",
        dataset=dataset,
        backbone=TEXT_BACKBONES,
    )


def overlap_paths(dataset):
    """The near-duplicates of one dataset."""
    return expand(
        "<results>/overlap/{dataset}/{backbone}.{extension}",
        dataset=dataset,
        backbone=OVERLAP_BACKBONES,
        extension=["json", "parquet"],
    )


def calibration_paths(dataset):
    """The noise multipliers of one dataset."""
    return expand(
        "<results>/calibration/{dataset}/eps-{epsilon}.json",
        dataset=dataset,
        epsilon=STUDY.job_epsilons(),
    )


def embedding_paths(dataset):
    """The t-SNE embeddings of one dataset."""
    return expand(
        "<results>/embeddings/{dataset}/{backbone}/tsne.parquet",
        dataset=dataset,
        backbone=STUDY.backbones,
    )


def table_paths(dataset):
    """The tables of one dataset."""
    return expand(
        "<results>/tables/{dataset}_{name}.{extension}",
        dataset=dataset,
        name=[
            "accuracy",
            *(["fairness"] if fairness_records(dataset) else []),
            *(LAW_TABLES if law_records(dataset) else []),
        ],
        extension=["csv", "md"],
    )


def of_all_datasets(paths, *arguments):
    """The files that a function of one dataset names, for every dataset of the study."""
    return [path for name in STUDY.datasets for path in paths(name, *arguments)]


def later(paths, *arguments):
    """Makes an input function of what `paths` names: a job parses all rules, and has no use for most rules' files."""
    return lambda wildcards: paths(*arguments)


def summary_paths():
    """The summary of each dataset's cells."""
    return expand("<results>/summary/{dataset}.parquet", dataset=STUDY.datasets)


def study_tables():
    """The tables that people read, with the summaries that they are made of; without the papers' tables."""
    return [
        *summary_paths(),
        "<results>/tables/accuracy.csv",
        "<results>/tables/accuracy.md",
        *of_all_datasets(table_paths),
    ]


def shown_paper_tables():
    """The papers' tables where the study has a dataset of theirs."""
    shown = STUDY.paper_names() & published_datasets()
    return list(rules.write_paper_tables.output) if shown else []


def study_figures():
    """Every figure, interactive pages too."""
    both = ["svg", "png"] if len(STUDY.datasets) * len(STUDY.backbones) > 1 else []
    return [
        *expand("<results>/figures/tsne.{extension}", extension=both),
        *expand(
            "<results>/figures/{figure}.{extension}",
            figure=COMPARISONS,
            extension=["svg", "png"],
        ),
        *long_tail_gap_figure(),
        *of_all_datasets(figure_paths),
        *tsne_pages(STUDY.datasets),
    ]


# Runs of two datasets may share a store: when this Snakemake ends after it has written those of one, the next finds a
# store, and only the missing receipt then says that the other's are to be written.
def begin_run():
    """Writes the run's snapshot, and removes receipts of MLflow runs whose store is gone."""
    SNAPSHOT.write()
    SNAPSHOT.remove_older()
    for file in LOST_RECEIPTS:
        Path(file).unlink(missing_ok=True)
