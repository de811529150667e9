"""Checks if methods fit the numbers of features and blocks, before any features are extracted."""

from __future__ import annotations

from pathlib import Path

from dpprobe.backbones.feature_dimensions import read_dimensions
from dpprobe.backbones.hub_files import describe_missing
from dpprobe.errors import ConfigError
from dpprobe.heads.dimension_limits import dimension_fault
from dpprobe.shown_text import join_lines
from dpprobe.study.few_rows import few_rows_warnings
from dpprobe.study.network_methods import blocks_faults
from dpprobe.study.study import Study


def check_dimensions(study: Study, *, network: bool = False) -> list[str]:
    """Returns warnings; raises ConfigError if networks, checkpoints or methods do not fit.

    Networks whose dimensions are not cached are built, and importing torch takes seconds. So this
    check is separate from `check_study`, which must have passed before. Too few rows for an epsilon
    only cause warnings. So do weights that cannot be fetched, because features may exist already,
    or jobs may run elsewhere.

    Args:
      network: see `hub_files.describe_missing`.
    """
    dimensions = read_dimensions(study.backbones, Path(study.results_dir))
    faults = [f"backbones.{name}: {fault}" for name, fault in dimensions.faults.items()]
    for backbone, dimension in dimensions.known.items():
        if dimension is None or backbone in dimensions.faults:
            continue
        option = study.backbones[backbone].fewer_features
        remedy = f"; {option} in the backbone makes fewer of them" if option else ""
        faults += [
            f"methods.{name} on backbones.{backbone}: {fault}{remedy}"
            for name, method in study.methods.items()
            if not method.tunes_network and (fault := dimension_fault(method, dimension))
        ]
    faults += blocks_faults(study, dimensions.blocks)
    if faults:
        raise ConfigError(join_lines(f"config: {fault}" for fault in faults))
    missing = [
        f"backbones.{name}: {text}"
        for name, files in dimensions.hub_files.items()
        if (text := describe_missing(files, network=network))
    ]
    return [*dimensions.warnings, *missing, *few_rows_warnings(study, dimensions.known.values())]
