"""Files of vectors that a released head takes: NumPy arrays with one row per item."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpprobe.errors import ConfigError
from dpprobe.release.bundle import BundleFacts

SUFFIX = ".npy"


def is_vector_file(path: Path) -> bool:
    return path.suffix.lower() == SUFFIX


def open_vectors(path: Path, facts: BundleFacts) -> npt.NDArray[Any]:
    """Opens a file of vectors [rows, dimension] without reading it.

    Raises ConfigError for other files, another dimension, and a bundle whose backbone takes images.
    """
    model = facts.backbone.architecture
    if not facts.backbone.takes_vectors:
        raise ConfigError(
            f"{path}: vectors, and {facts.name} computes its own from images; name images"
        )
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise ConfigError(f"vectors: no file {path}; correct it") from None
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(f"vectors: {path}: no NumPy array ({error}); write numpy.save") from error
    if array.dtype.kind not in "fiub" or array.ndim != 2 or array.shape[1] != facts.dimension:
        raise ConfigError(
            f"vectors: {path}: {array.dtype} {array.shape}; the head takes numbers [rows, "
            f"{facts.dimension}], the vectors of {model}"
        )
    return array
