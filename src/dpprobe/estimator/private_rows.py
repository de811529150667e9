"""Compares public files with a fit's private rows, and with heads trained on private rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpprobe.errors import ConfigError
from dpprobe.estimator.array_inputs import MappedRows, read_source
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.public_inputs import NOTHING_CHECKED, PublicInputs
from dpprobe.heads.row_source import RowSource
from dpprobe.options import resolve_path
from dpprobe.training.public_file_check import PrivateData

# The latest heads that this process fitted on private rows, each [classes, d + 1]. These heads are
# only in memory, unlike heads of a study's cells.
_FITTED: deque[npt.NDArray[np.float32]] = deque(maxlen=256)


def remember_head(weights: npt.NDArray[np.float32]) -> None:
    """Keeps a copy of a fitted head [classes, d + 1], so that later fits refuse it as public."""
    _FITTED.append(weights.copy())


def compare_public_files(
    method: MethodOptions,
    rows: npt.NDArray[np.float32] | RowSource,
    class_names: Sequence[str],
) -> PublicInputs:
    """Compares a method's public files with a fit's rows, before the fit is booked."""
    if not method.public_files():  # without public files, rows need not be read
        return NOTHING_CHECKED
    for option, written in method.public_files().items():
        if not resolve_path(written).is_file():
            raise ConfigError(f"{option} {written}: no such file; correct the path")
    return _find_private_data(rows, class_names).check_public(method)


def _find_private_data(
    rows: npt.NDArray[np.float32] | RowSource, class_names: Sequence[str]
) -> PrivateData:
    """Returns the private rows of a fit, and the study that the rows come from, if any."""
    if isinstance(rows, FeatureStore):
        # <results>/features/<dataset>/<backbone>/<split>/manifest.json
        folders = [*rows.path.absolute().parents, *[Path()] * 5]
        results = folders[4] if folders[3].name == "features" else None
        cells = sorted(results.glob("cells/*")) if results else []
        return PrivateData(
            dataset=folders[2].name,
            backbone=folders[1].name,
            class_names=class_names,
            manifests=(rows.path,),
            datasets=tuple(folder.name for folder in cells),
            results=results,
            heads=_FITTED,
        )
    if not isinstance(rows, np.ndarray | MappedRows):
        rows = read_source(rows)
    return PrivateData(
        dataset="this fit",
        backbone="vectors",
        class_names=class_names,
        manifests=(),
        rows=MappedRows(rows) if isinstance(rows, np.ndarray) else rows,
        heads=_FITTED,
    )
