"""Writes scikit-learn's digits as a parquet file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from sklearn.datasets import load_digits


def digits_file(path: Path, *, mirrored: bool = False) -> dict[str, Any]:
    """Writes the images with the bytes of the source `sklearn`, unless they are mirrored.

    No mirrored image equals an original image.

    Returns:
      The options of the source.
    """
    data = load_digits()
    images = []
    for values in data.images[:, :, ::-1] if mirrored else data.images:
        content = io.BytesIO()
        Image.fromarray(np.rint(values * 255 / 16).astype(np.uint8)).save(content, "png")
        images.append({"bytes": content.getvalue(), "path": None})
    pq.write_table(pa.table({"image": images, "label": data.target}), path)
    return {
        "source": "parquet",
        "train": path.name,
        "class_names": [str(digit) for digit in range(10)],
    }
