"""Reads a file of text embeddings, which `text_embeddings` writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpprobe.errors import DataError
from dpprobe.files import array_files

FORMAT = "dpprobe-text"
FORMAT_VERSION = 1


def check_classes(path: Path, class_names: Sequence[str]) -> None:
    """Raises DataError if a file has text embeddings of other classes, or in another order.

    A file without text embeddings passes here; the head that reads the weights reports the error.
    """
    try:
        _, metadata = read_text_embeddings(path)
    except DataError:
        return
    if list(metadata["class_names"]) != list(class_names):
        raise DataError(
            f"{path}: its classes differ, or have another order; name the text.safetensors of "
            "the same dataset"
        )


def read_text_embeddings(path: Path) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
    """Reads weights [classes, dimension] and metadata; raises DataError for a faulty file."""
    try:
        metadata, arrays = array_files.read_arrays(path, kind=FORMAT, version=FORMAT_VERSION)
        weights = arrays["weights"]
        if metadata["format"] != FORMAT or len(weights) != len(metadata["class_names"]):
            raise ValueError(f"format {metadata['format']}, {len(weights)} rows")
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: no text embeddings ({error}); delete it and run again") from error
    return weights, metadata
