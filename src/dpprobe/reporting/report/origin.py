"""The origin of results, and the commands that reproduce them."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import yaml

from dpprobe.code_version import code_version
from dpprobe.data.table import DatasetInfo
from dpprobe.files.json_files import read_json
from dpprobe.privacy.risk import find_risk
from dpprobe.reporting.report.sources import Origin, Sources
from dpprobe.results.best_private import Best
from dpprobe.results.cell_files import METRICS_FILE
from dpprobe.study.run_command import run_words

LIBRARIES = (
    "dpprobe", "dp-accounting", "opacus", "torch", "timm", "open_clip_torch", "kymatio",
    "scikit-learn", "numpy", "scipy", "numba", "pyarrow", "h5py", "safetensors", "snakemake",
    "mlflow", "matplotlib", "openTSNE",
)  # fmt: skip


def cell_command(origin: Origin, dataset: str, backbone: str, method: str, epsilon: str) -> str:
    """Returns the command that reproduces a cell, for use in the folder of the study's run."""
    cell = origin.results / "cells" / dataset / backbone / method / f"eps-{epsilon}"
    return _snakemake_call(origin, (cell / METRICS_FILE).as_posix())


def _snakemake_call(origin: Origin, *targets: str) -> str:
    """Returns a Snakemake command with options last, as --configfile reads all following words."""
    return shlex.join(run_words(*targets, call=origin.call))


def write_commands(origin: Origin) -> dict[str, str]:
    """Returns commands to check out the code, to repeat the study, and to delete a cell."""
    commit, _, changes = (origin.commit or "").partition(" ")
    checkout = f"git checkout {commit}" if commit else ""
    if changes:
        checkout += f"  # {changes}, which the commit does not have"
    return {
        "checkout": checkout,
        "study": _snakemake_call(origin),
        "delete": f"rm -r {origin.results.as_posix()}/cells/DATASET/BACKBONE/METHOD/eps-EPSILON",
    }


def write_release(origin: Origin, best: Best) -> dict[str, str]:
    """Returns the YAML and the command to release a head with the settings of `best`."""
    risk = find_risk(best.epsilon)
    release = {
        "dataset": best.dataset,
        "backbone": best.backbone,
        "method": best.method,
        "epsilon": float(best.epsilon) if risk is None else risk.to_dict(),
    }
    name = next(iter(origin.study["releases"]), f"{best.dataset}_v1")
    return {
        "block": yaml.safe_dump({"releases": {name: release}}, sort_keys=False, allow_unicode=True),
        "command": _snakemake_call(origin, f"release_{name}"),
    }


def collect_provenance(
    origin: Origin, infos: Mapping[str, DatasetInfo], sources: Sources
) -> dict[str, Any]:
    versions = []
    for name in LIBRARIES:
        try:
            version = code_version() if name == "dpprobe" else metadata.version(name)
            versions.append((name, version))
        except metadata.PackageNotFoundError:
            continue
    fingerprints = [
        (f"data of {name}", "content", info.fingerprint) for name, info in infos.items()
    ]
    weights: dict[str, str] = {}
    for path in sources.manifests:
        record = read_json(path)
        dataset, backbone, split = path.parts[-4:-1]
        what = f"{split} features of {dataset}, {backbone}"
        fingerprints.append((what, "values", record["features_sha256"]))
        if "members" not in record:  # the members of a joined backbone state their weights
            weights[backbone] = record["weights_sha256"] or "no weights"
    fingerprints += [(f"weights of {name}", "SHA-256", value) for name, value in weights.items()]
    return {
        "commit": origin.commit or "not a git checkout",
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions,
        "fingerprints": fingerprints,
        "config": yaml.safe_dump(dict(origin.study), sort_keys=False, allow_unicode=True),
    }
