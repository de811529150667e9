"""What the rules share: the study, path templates, input functions, resources."""

import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

import dpprobe.config
from dpprobe.config import Cell, INFINITE, NAME_PATTERN
from dpprobe.errors import ConfigError
from dpprobe.versions import VERSIONS

try:
    STUDY = dpprobe.config.load(config)
    if workflow.is_main_process:
        for warning in dpprobe.config.check(STUDY):
            print(f"dpprobe: warning: {warning}", file=sys.stderr)
except ConfigError as error:
    raise WorkflowError(str(error)) from None

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
EPSILON_PATTERN = r"[0-9][0-9.e+-]*|inf"


def names(group):
    """A wildcard pattern of exactly the names a study uses."""
    return "|".join(group)


wildcard_constraints:
    dataset=names(STUDY.datasets),
    backbone=names(STUDY.backbones),
    method=names(STUDY.methods),
    split="train|test",
    epsilon=EPSILON_PATTERN,


def dumped(options):
    """A block of the study as the plain values that Snakemake compares between runs."""
    return options.model_dump(mode="json")


def dataset_params(wildcards):
    return dumped(STUDY.datasets[wildcards.dataset])


def backbone_params(wildcards):
    return dumped(STUDY.backbones[wildcards.backbone])


def methods_params(epsilon):
    """The options of the methods that train at an epsilon."""
    return {name: dumped(STUDY.methods[name]) for name in STUDY.job_methods(epsilon)}


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


def dataset_cells(dataset):
    return [cell for cell in STUDY.cells() if cell.dataset == dataset]


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
