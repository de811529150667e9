"""What the rules share: the study, path templates, input functions, resources."""

import json
import os
import re
import sys
from functools import cache
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.persistence import PersistenceBase

from dpprobe.artifacts import fingerprint, read_json
from dpprobe.data.addresses import public_addresses
from dpprobe.devices import put_python_on_path
from dpprobe.errors import ConfigError
from dpprobe.privacy.limits import INFINITE
from dpprobe.reporting.published import PAPER_TABLES, published_digest
from dpprobe.study.ablations import VARIED, varied
from dpprobe.study.check import check_study
from dpprobe.study.load import check_yaml, load_study
from dpprobe.tracking.receipt import store_missing
from dpprobe.versions import VERSIONS

try:
    if workflow.is_main_process:
        for file in workflow.overwrite_configfiles or ["config.yaml"]:
            check_yaml(Path(file))
    STUDY = load_study(config)
    if workflow.is_main_process:
        for warning in check_study(STUDY):
            print(f"dpprobe: warning: {warning}", file=sys.stderr)
except ConfigError as error:
    raise WorkflowError(str(error)) from None

# The commands of profiles/slurm are in Python.
put_python_on_path()

DATASETS = STUDY.all_datasets()
TEXT_BACKBONES = STUDY.text_backbones()
OVERLAP_BACKBONES = list(STUDY.backbones) if STUDY.overlap else []
DATA = STUDY.data_dir
RESULTS = STUDY.results_dir
CELL_FILES = (
    "metrics.json",
    "privacy.json",
    "heads.safetensors",
    "predictions.parquet",
    "history.parquet",
)
SHARDS = [
    f"shard-{index:05d}-of-{STUDY.features.shards:05d}.h5"
    for index in range(STUDY.features.shards)
]


# Where only a download tells how many rows a dataset has: ImageNet's.
UNKNOWN_ROWS = (1_281_167, 50_000)

# Options in which some methods differ alone: results are drawn against them.
METHOD_OPTIONS = {
    name: method.model_dump(mode="json") for name, method in STUDY.methods.items()
}
VARIED_OPTIONS = [option for option in VARIED if varied(METHOD_OPTIONS, option)]


def names(group):
    """A wildcard pattern of exactly the names a study uses; without any, one that matches none."""
    return "|".join(map(re.escape, group)) or "(?!)"


wildcard_constraints:
    dataset=names(DATASETS),
    backbone=names(STUDY.backbones),
    method=names(STUDY.methods),
    split="train|test",
    epsilon=names(STUDY.job_epsilons()),


def dumped(options):
    """A block of the study as the plain values that Snakemake compares between runs."""
    return options.model_dump(mode="json")


def source_state(wildcards):
    """What a dataset's source looks like from outside, so that an image replaced in place is seen."""
    return DATASETS[wildcards.dataset].source_state()


def download_receipt(wildcards):
    """The mark of a finished download, for a dataset that needs one."""
    needed = DATASETS[wildcards.dataset].download_params() is not None
    return f"{DATA}/downloads/{wildcards.dataset}/receipt.json" if needed else []


def overlap_splits(wildcards):
    """What a near-duplicate check compares: the private train split, then the public ones."""
    public = STUDY.overlap.public
    return [
        (wildcards.dataset, "train"),
        *((name, split) for name in public for split in ("train", "test")),
    ]


def overlap_counts(wildcards):
    """What a near-duplicate check found, where the study asks for one."""
    counts = f"{RESULTS}/overlap/{wildcards.dataset}/{wildcards.backbone}.json"
    return counts if STUDY.overlap else []


def methods_params(epsilon):
    """The options of the methods that train at an epsilon."""
    return {name: dumped(STUDY.methods[name]) for name in STUDY.job_methods(epsilon)}


def method_files(wildcards):
    """Public files that the methods of a job start from."""
    return sorted(
        {
            path
            for name in STUDY.job_methods(wildcards.epsilon)
            for path in STUDY.methods[name]
            .located(dataset=wildcards.dataset, backbone=wildcards.backbone)
            .input_files()
        }
    )


def dataset_figures():
    """The figures of a dataset that compare cells, where the study has what they compare."""
    found = ["accuracy"]
    if any(cell.epsilon != INFINITE for cell in STUDY.cells()):
        found.append("methods")
        if any(method.head == "nonprivate" for method in STUDY.methods.values()):
            found.append("gap")
    return [*found, *(f"by_{option}" for option in VARIED_OPTIONS)]


def figure_paths(dataset):
    """Every figure of one dataset."""
    figures = [
        *dataset_figures(),
        *(f"tsne_{backbone}" for backbone in STUDY.backbones),
        *(f"overlap_{backbone}" for backbone in OVERLAP_BACKBONES),
    ]
    return expand(
        f"{RESULTS}/figures/{dataset}/{{name}}.{{extension}}",
        name=figures,
        extension=["svg", "png"],
    )


def zero_shot_paths(dataset):
    return expand(
        f"{RESULTS}/zero_shot/{dataset}/{{backbone}}/{{file}}",
        backbone=TEXT_BACKBONES,
        file=["metrics.json", "predictions.parquet"],
    )


def few_shot_paths(dataset):
    return expand(
        f"{RESULTS}/few_shot/{dataset}/{{backbone}}.{{extension}}",
        backbone=STUDY.few_shot_backbones(),
        extension=["parquet", "json"],
    )


def privacy_params(wildcards):
    return {
        "delta": STUDY.dataset_delta(wildcards.dataset),
        "accountant": STUDY.accountant,
        "mode": STUDY.mode,
    }


def private_methods():
    return [name for name, method in STUDY.methods.items() if method.private]


def shard_paths(dataset, backbone, split):
    return [
        f"{RESULTS}/features/{dataset}/{backbone}/{split}/{name}" for name in SHARDS
    ]


def cell_paths(cells, files=CELL_FILES):
    return [
        f"{RESULTS}/cells/{cell.dataset}/{cell.backbone}/{cell.method}/eps-{cell.epsilon}/{name}"
        for cell in cells
        for name in files
    ]


def job_marks(cells):
    """The marks of the jobs that train these cells."""
    return sorted(
        {
            f"{RESULTS}/cells/{cell.dataset}/{cell.backbone}/.eps-{cell.epsilon}.done"
            for cell in cells
        }
    )


def dataset_cells(dataset):
    return [cell for cell in STUDY.cells() if cell.dataset == dataset]


def tsne_pages(datasets):
    return expand(
        f"{RESULTS}/figures/{{dataset}}/tsne_{{backbone}}.html",
        dataset=datasets,
        backbone=STUDY.backbones,
    )


def target_files(rule_name):
    """What a named target asks for, if the workflow has it."""
    return (
        list(workflow.get_rule(rule_name).input) if workflow.is_rule(rule_name) else []
    )


def source_files(wildcards):
    """A source's files; folders by name alone, for looking into one may change its time."""
    files = DATASETS[wildcards.dataset].input_files()
    return [ancient(file) if Path(file).is_dir() else file for file in files]


def option_text(value):
    """A value as `--config name=value` takes it."""
    if isinstance(value, (dict, list)):
        return json.dumps(value)
    return "" if value is None else str(value)


def snakemake_call():
    """What a person types after `snakemake` to run this study, seen from the working directory."""
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


def size_mb(paths):
    """The size of input files that exist already; those still to be made count as nothing."""
    return sum(Path(path).stat().st_size for path in paths if Path(path).exists()) / 1e6


def memory(base, factor=0.0):
    """A mem_mb function: base MB, plus factor times the input's size, more on each attempt."""

    def mem_mb(wildcards, input, attempt):
        return int((base + factor * size_mb(input)) * attempt)

    return mem_mb


def minutes(base, per_gb=0.0):
    """A runtime function in minutes: base, plus so much for each GB of input, more on a retry."""

    def runtime(wildcards, input, attempt):
        return int((base + per_gb * size_mb(input) / 1e3) * attempt)

    return runtime


def network_threads(wildcards):
    """Networks gain from threads; the others are done before a second one has started."""
    return 4 if STUDY.backbones[wildcards.backbone].network else 1


def training_memory(wildcards, input, attempt):
    """float16 on disk is float32 in memory, unless it is streamed."""
    features = min(2.2 * size_mb(input), STUDY.features.memory_mb)
    return int((2000 + features) * attempt)


@cache
def expected_rows(dataset):
    """The rows of a dataset's two tables before they are made."""
    return DATASETS[dataset].count_rows() or UNKNOWN_ROWS


def table_rows(wildcards):
    """The rows of a dataset's two tables."""
    info = Path(f"{DATA}/{wildcards.dataset}/dataset.json")
    if not info.exists():
        return expected_rows(wildcards.dataset)
    splits = read_json(info)["splits"]
    return splits["train"]["rows"], splits["test"]["rows"]


def preparation_minutes(wildcards, attempt):
    """Every image is decoded: large photographs pass at 40 a second."""
    return int((20 + sum(table_rows(wildcards)) / 40 / 60) * attempt)


def extraction_memory(wildcards, input, attempt):
    """Weights are there twice while they are loaded; those named only are taken for ViT-L's."""
    return int((4000 + 3 * size_mb(input.weights)) * attempt)


def extraction_minutes(wildcards, attempt):
    """A shard through a large network on four CPUs: four images a second; the others are quick."""
    rows = dict(zip(("train", "test"), table_rows(wildcards)))[wildcards.split]
    rate = 4 if STUDY.backbones[wildcards.backbone].network else 200
    return int((20 + rows / STUDY.features.shards / rate / 60) * attempt)


def training_minutes(wildcards, input, attempt):
    """Three times what nine methods with five seeds took: two minutes a GB, method and seed."""
    heads = len(STUDY.job_methods(wildcards.epsilon)) * STUDY.seeds
    return int((30 + 6 * heads * size_mb(input) / 1e3) * attempt)


def keep_restored(persistence):
    """Lets a file marked with update() that has no backup pass for restored when it is there."""
    restore = persistence.restore_output

    def restore_output(path):
        backed_up = persistence._get_backup_path(path).exists()
        return restore(path) if backed_up else path.exists()

    persistence.restore_output = restore_output


async def leave_to_main_process(persistence, job):
    """Notes down nothing of a job's end."""


# A job on a cluster would note its files down as whole, but not what they were made from. Were the main process
# gone by then, the next one would take them for current, whatever had changed in between.
if workflow.remote_exec:
    PersistenceBase.finished = leave_to_main_process


# A receipt whose MLflow store is gone stands for runs that are gone; without it they are written anew. A
# dry run only says so.
if workflow.is_main_process:
    for name in (*STUDY.datasets, "_study"):
        receipt = Path(RESULTS, "tracking", f"{name}.json")
        if store_missing(receipt):
            print(
                f"dpprobe: {receipt}: its MLflow store is gone; tracking writes the runs again",
                file=sys.stderr,
            )
            if not workflow.output_settings.dryrun:
                receipt.unlink(missing_ok=True)
