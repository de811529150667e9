"""Made-up cells of several datasets and backbones, for figures and tables that compare them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpprobe.artifacts import read_json, write_json
from dpprobe.results.cell_results import CellResult, read_cell_results
from tests.support.cell_files import write_cell

EPSILONS = ("0.1", "1", "8", "inf")


def compared_cells(
    root: Path,
    *,
    datasets: Sequence[str] = ("digits",),
    backbones: Sequence[str] = ("small", "large"),
    methods: Sequence[str] = ("sgd", "feature_covariance"),
    epsilons: Sequence[str] = EPSILONS,
    changes: Mapping[str, Mapping[str, Any]] | None = None,
    real: float | None = None,
) -> list[CellResult]:
    """Writes cells of every combination and the ceilings, better from name to name.

    Args:
      changes: by dataset, what its records have instead; delta only where there is privacy.
      real: by how much the accuracy against ReaL's labels is above the headline.
    """
    paths = []
    for d, dataset in enumerate(datasets):
        for b, backbone in enumerate(backbones):
            for m, method in enumerate((*methods, "nonprivate")):
                for epsilon in epsilons if method != "nonprivate" else ("inf",):
                    path = write_cell(
                        root,
                        dataset=dataset,
                        backbone=backbone,
                        method=method,
                        epsilon=epsilon,
                        quality=1.2 + 0.3 * d + 0.5 * b + 0.2 * (m % 7),
                    )
                    record = read_json(path) | dict((changes or {}).get(dataset, {}))
                    record["head"] = method
                    if method != "sgd":  # whose options `write_cell` gives
                        record["options"] = {"head": method}
                    if epsilon == "inf":
                        record["delta"] = None
                    if real is not None:
                        headline = record["summary"]["accuracy"]
                        shifted = {key: headline[key] + real for key in ("mean", "low", "high")}
                        record["summary"]["real_accuracy"] = headline | shifted
                    write_json(path, record)
                    paths.append(path)
    return read_cell_results(paths)
